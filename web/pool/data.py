"""The pool: its newest sample, its space over months, a day of its disks, and its faults. The same data as in `backupd trend`,
`backupd forecast` and `backupd day`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from math import ceil
from zoneinfo import ZoneInfo

from btrkeep.catalogue import Catalogue, FreeSpaceScore, Job, Sample, SampleMark
from btrkeep.charts.trend import TrendContext
from btrkeep.decisions.day_phases import MINUTES, Phase, PhaseSum, Slot, bounds, phases, slots, sums
from btrkeep.decisions.findings import FACT, UNKNOWN, UNUSABLE, Finding, from_text
from btrkeep.decisions.trend import (
    YEAR,
    FullForecast,
    Point,
    TooLittleHistory,
    forecasts,
    metadata_share,
    points,
    step_for,
    year_before,
)
from web.mapping import from_row
from web.running import is_alive
from web.source import RequestContext, stale_after


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """The space of one type and profile, in bytes of files."""

    name: str
    """Such as "data raid1"."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes in use."""
    copies: float
    """Bytes of the devices for one byte of a file."""

    @property
    def share(self) -> float:
        """Returns the used share of the allocated space."""
        return self.used / self.allocated if self.allocated else 0.0


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device."""

    devid: int
    """Its number."""
    size: int
    """Bytes."""
    allocated: int
    """Bytes in block groups."""
    errors: tuple[int, ...] | None
    """Counts since the last reset, of writing, reading, flushing, corruption and generation; null: unknown."""

    @property
    def has_errors(self) -> bool:
        """Returns True if any error was ever counted."""
        return any(self.errors or ())


@dataclass(frozen=True, slots=True)
class PoolNow(Point):
    """The newest sample, with its profiles and devices. Sizes are bytes of the devices: data stored twice counts twice."""

    spaces: tuple[SpaceRow, ...]
    """By type and profile."""
    devices: tuple[DeviceRow, ...]
    """The devices."""
    scored: datetime | None
    """When the score was measured; null: never."""
    options: str
    """The mount options."""
    activity: str
    """What the kernel does, such as a balance."""


def pool_now(catalogue: Catalogue, filesystem: str) -> PoolNow | None:
    """Returns the newest sample; None if there is none yet."""
    sample = catalogue.newest_sample(filesystem)
    return _now(sample, catalogue.newest_score(filesystem)) if sample else None


def _now(sample: Sample, scored: FreeSpaceScore | None) -> PoolNow:
    """Returns the sample with the newest score: a balance may have scored the free space after the newest sample."""
    is_newer = scored and (sample.scored is None or scored.taken > sample.scored)
    return from_row(
        PoolNow,
        sample,
        metadata_share=metadata_share(sample),
        spaces=tuple(SpaceRow(name, total, used, factor / 1000) for name, (total, used, factor) in sorted(sample.spaces.items())),
        devices=tuple(_device(name, numbers) for name, numbers in sorted(sample.devices.items(), key=lambda pair: int(pair[0]))),
        score=scored.score if scored and is_newer else sample.score,
        scored=scored.taken if scored and is_newer else sample.scored,
    )


def _device(name: str, numbers: Sequence[int]) -> DeviceRow:
    size, allocated, *errors = numbers
    return DeviceRow(int(name), size, allocated, tuple(errors) or None)


SPANS = {1: "a day", 7: "a week", 30: "a month", 90: "three months", 180: "half a year", 365: "a year", 3650: "all"}
"""The numbers of days to choose from, and their names."""
USUAL = 180
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One moment. Sizes are bytes of the devices: data stored twice counts twice."""

    taken: datetime
    """When it was measured."""
    size: int
    """Size of all devices."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes with data or metadata."""
    unallocated: int
    """Not in block groups."""
    unused: int
    """Allocated and not used: a balance can free this space."""
    metadata_share: float
    """The part of `used` that is metadata, 0 to 1."""
    orphans: int | None
    """Number of deleted subvolumes that wait for the cleaner; null: unknown."""
    most_orphans: int | None
    """The highest number since the point before, because a sample misses subvolumes that wait only for minutes; null: unknown."""
    score: float | None
    """The score of the free space; null: it was not scored."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """When something is full. A moment is null if it is more than ten years away."""

    what: str
    """The space that is full."""
    now: int | None
    """Bytes now; null: unknown."""
    per_day: float | None
    """Growth in bytes per day; null: unknown."""
    usual: datetime | None
    """The time with the usual growth."""
    earliest: datetime | None
    """The time with the fastest growth."""
    latest: datetime | None
    """The time with the slowest growth."""
    why_not: str | None
    """Why there is no forecast; null: there is one."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The pool over time."""

    since: datetime
    """The start of the period."""
    until: datetime
    """Its end."""
    days: int
    """Its length."""
    points: tuple[TrendPoint, ...]
    """At most 400, oldest first; empty: there are no samples."""


def trend(catalogue: Catalogue, filesystem: str, now: datetime, days: int) -> Trend:
    """Returns the trend of that many days until now."""
    return replace(trend_between(catalogue, filesystem, now - timedelta(days=days), now), days=days)


def trend_between(catalogue: Catalogue, filesystem: str, since: datetime, until: datetime) -> Trend:
    """Returns the trend from `since` to `until`."""
    step = step_for(until - since)
    marks = catalogue.sample_marks(filesystem, since, until + timedelta(seconds=1))
    chosen = catalogue.samples_by_id(_last_of_each(marks, since, step))
    return Trend(since, until, ceil((until - since) / _DAY), _points(chosen, marks, since, step))


def trend_context(
    catalogue: Catalogue, filesystem: str, shown: Trend, limit: float, forecast: FullForecast | TooLittleHistory | None
) -> TrendContext:
    """Returns what the chart of this trend has in addition: the limit, the level of a year before, and the forecast."""
    since, until, step = shown.since - YEAR - _DAY, shown.until - YEAR, step_for(shown.until - shown.since)
    marks = catalogue.sample_marks(filesystem, since, until)
    before = year_before(catalogue.samples_by_id(_last_of_each(marks, since, step)), [point.taken for point in shown.points])
    return TrendContext(limit, before, forecast if isinstance(forecast, FullForecast) else None)


def shortest_span(trend_of: Callable[[int], Trend]) -> int:
    """Returns the shortest of SPANS that contains all of the history, at most USUAL. `trend_of` returns the trend of that many
    days.
    """
    days = USUAL
    for shorter in sorted((span for span in SPANS if span < USUAL), reverse=True):
        whole_span = trend_of(days)
        step = step_for(timedelta(days=days))  # a point is the last sample within its step
        if not whole_span.points or whole_span.until - whole_span.points[0].taken + step > timedelta(days=shorter):
            break
        days = shorter
    return days


def _last_of_each(marks: Sequence[SampleMark], since: datetime, step: timedelta) -> list[int]:
    """Returns the ids of the last samples within each step, which `points` would select from all samples."""
    return list({int((mark.taken - since) / step): mark.id for mark in marks}.values())


def _points(samples: Sequence[Sample], marks: Sequence[SampleMark], since: datetime, step: timedelta) -> tuple[TrendPoint, ...]:
    most = _most_orphans(marks, since, step)
    return tuple(
        from_row(
            TrendPoint,
            point,
            metadata_share=round(point.metadata_share, 4),
            most_orphans=most.get(int((point.taken - since) / step)),
        )
        for point in points(samples, since, step)
    )


def _most_orphans(marks: Sequence[SampleMark], since: datetime, step: timedelta) -> dict[int, int]:
    orphans: dict[int, int] = {}
    for mark in marks:
        if mark.orphans is not None:
            at = int((mark.taken - since) / step)
            orphans[at] = max(orphans.get(at, 0), mark.orphans)
    return orphans


def outlooks(catalogue: Catalogue, filesystem: str, now: datetime) -> tuple[Outlook, Outlook]:
    """Returns when the unallocated space runs out, and when all space is used; extrapolated from the usual days of history."""
    allocated, used = both_forecasts(catalogue, filesystem, now)
    return _outlook("allocated", allocated), _outlook("used", used)


def both_forecasts(
    catalogue: Catalogue, filesystem: str, now: datetime
) -> tuple[FullForecast | TooLittleHistory, FullForecast | TooLittleHistory]:
    """Returns the forecasts of the allocated and of the used bytes."""
    since = now - timedelta(days=USUAL)
    marks = catalogue.sample_marks(filesystem, since, now + timedelta(seconds=1))
    daily = points(catalogue.samples_by_id(_last_of_each(marks, since, _DAY)), since, _DAY)
    return forecasts(daily)


def _outlook(field: str, result: FullForecast | TooLittleHistory) -> Outlook:
    if isinstance(result, TooLittleHistory):
        return Outlook(field, None, None, None, None, None, str(result))
    return Outlook(field, result.now, result.growth.usual, result.usual, result.earliest, result.latest, None)


_EARLIEST = date(1970, 1, 3)


@dataclass(frozen=True, slots=True)
class DayView:
    """A day, in slots of five minutes."""

    date: str | None
    """The requested day in the pool's zone; null: the last 24 hours."""
    before: str
    """The day before it, such as 2026-11-20."""
    after: str | None
    """The day after it; null: there is none yet."""
    start: datetime
    """Its start."""
    end: datetime
    """Its end."""
    zone: str
    """The pool's time zone."""
    slots: tuple[Slot, ...]
    """Its slots."""
    phases: tuple[Phase, ...]
    """The times in which jobs ran."""
    sums: tuple[PhaseSum, ...]
    """Totals by kind of job."""

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


def part_of_day(day: DayView, since: datetime, until: datetime) -> DayView:
    """Returns the slots and jobs of the day from `since` to `until`; its totals stay. Without a slot, returns the whole day."""
    chosen = tuple(slot for slot in day.slots if slot.end > since and slot.start < until)
    if not chosen:
        return day
    start, end = chosen[0].start, chosen[-1].end
    ran = (replace(phase, start=max(phase.start, start), end=min(phase.end, end)) for phase in day.phases)
    return replace(day, start=start, end=end, slots=chosen, phases=tuple(phase for phase in ran if phase.start < phase.end))


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
    day = date.fromisoformat(text)
    if not _EARLIEST <= day <= date(9000, 1, 1):
        raise ValueError(f"{text} is not a valid day")
    return day


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """The pool's problems, as `backupd notify` found them at its last check."""

    level: str
    """ok, unknown, warning or error."""
    looked: datetime | None
    """When it was checked; null: never."""
    is_old: bool
    """Whether the last check is too old to rely on."""
    findings: tuple[Finding, ...] = ()
    """The problems."""
    unlooked: tuple[str, ...] = ()
    """Checks that could not be made."""
    pool_looked: datetime | None = None
    """When the pool itself could be read last; null: unknown."""

    @property
    def fault(self) -> str:
        """Returns why the pool cannot be read; "" if it can."""
        return next((finding.text for finding in self.findings if finding.check == UNUSABLE), "")

    @property
    def is_known(self) -> bool:
        """Returns True if the pool was checked recently."""
        return self.looked is not None and not self.is_old


def pool_health(source: RequestContext) -> PoolHealth:
    """Returns the pool's health. Raises the catalogue's exceptions. An old result is shown, but never counts as healthy."""
    kept = from_text(source.catalogue.get_fact(FACT))
    if kept is None:
        return PoolHealth(UNKNOWN, None, is_old=False)
    verdict, is_old = kept.verdict, abs(source.now - kept.looked) > stale_after(source)
    level = verdict.level if verdict.findings or not is_old else UNKNOWN
    return PoolHealth(level, kept.looked, is_old, verdict.findings, verdict.unlooked, kept.pool_looked)
