"""A day of the disks, and the jobs that ran: the same data as `backupd day`."""

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.catalogue import Catalogue, Job
from btrkeep.decisions.day_phases import MINUTES, Phase, PhaseSum, Slot, bounds, phases, slots, sums
from web.running import is_alive

_EARLIEST = date(1970, 1, 3)


@dataclass(frozen=True, slots=True)
class DayView:
    """From `start` to `end`, five minutes a slot. `date`: the day of the zone that was asked for; None: the last 24 hours."""

    date: str | None
    before: str
    """The days beside it, 2026-11-20."""
    after: str | None
    start: datetime
    end: datetime
    zone: str
    slots: tuple[Slot, ...]
    phases: tuple[Phase, ...]
    sums: tuple[PhaseSum, ...]

    @property
    def has_samples(self) -> bool:
        """Returns True if there are samples of that day."""
        return any(slot.read is not None for slot in self.slots)


def day_view(catalogue: Catalogue, filesystem: str, zone: ZoneInfo, now: datetime, day: date | None) -> DayView:
    """Returns a day of the zone, or the last 24 hours."""
    start, end = bounds(day, zone, now)
    samples = catalogue.samples(filesystem, start - timedelta(hours=2), end + timedelta(days=1))
    jobs = [_ended(job, now) for job in catalogue.jobs(filesystem, start, end)]
    ran = phases(jobs, samples, start, end)
    count = round((end - start) / timedelta(minutes=MINUTES))
    today = now.astimezone(zone).date()
    return DayView(
        day.isoformat() if day else None,
        max((day or today) - timedelta(days=1), _EARLIEST).isoformat(),
        (day + timedelta(days=1)).isoformat() if day and day < today else None,
        start,
        end,
        zone.key,
        tuple(slots(samples, start, end, count)),
        tuple(ran),
        tuple(sums(samples, jobs, ran, start, end)),
    )


def _ended(job: Job, now: datetime) -> Job:
    """Returns the job with an end: now for a running one, the last sign of life for a killed one."""
    if job.finished:
        return job
    heard = job.updated or job.started
    return replace(job, finished=now if is_alive(job.pid, job.pid_started, heard, now) else max(heard, job.started))


def parse_day(text: str | None) -> date | None:
    """Parses the requested day. Raises ValueError."""
    if not text:
        return None
    found = date.fromisoformat(text)
    if not _EARLIEST <= found <= date(9000, 1, 1):
        raise ValueError(f"{text} is no day of a backup")
    return found
