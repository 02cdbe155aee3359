"""Summarises a day of disk activity: reads and writes over time, and the jobs that ran. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby, pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

from btrkeep.catalogue import Job, Sample
from btrkeep.catalogue.model_pool import split_activities
from btrkeep.decisions.trend import data_factor

_TOGETHER = timedelta(minutes=10)
"""Jobs of one kind with a shorter distance count as one: there are short pauses between the hosts of a night."""
_PASSIVE = "paused"
MINUTES = 5
"""The duration of a shown slot of the day."""


class Active(Protocol):
    """A sample, reduced to the activity of the kernel."""

    @property
    def taken(self) -> datetime: ...

    @property
    def activity(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the day."""

    start: datetime
    """Its start."""
    end: datetime
    """Its end, which is the start of the next slot."""
    known: float
    """How many of its seconds the samples cover."""
    read: float | None
    """Bytes per second read from all devices during `known`; None: unknown."""
    written: float | None
    """Bytes per second written to all devices during `known`; None: unknown."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which a job ran."""

    kind: str
    """One of JOBS."""
    start: datetime
    """When it started."""
    end: datetime
    """When it ended."""


@dataclass(frozen=True, slots=True)
class PhaseSum:
    """Disk activity while jobs of one kind ran. Bytes are those of the devices, including all copies."""

    kind: str
    """One of JOBS; "": the whole day."""
    seconds: float
    """How long they ran."""
    known: float
    """How many of `seconds` the samples cover, to which the fields below refer."""
    read: int
    """Bytes read from the devices."""
    written: int
    """Bytes written to the devices."""
    data: int
    """Bytes of files that rsync wrote or a balance moved, times the number of copies."""
    metadata: int | None
    """The bytes written in addition to `data`; None: less than `data` was written, because it was compressed or is not yet on the
    disk.
    """
    ratio: float | None
    """Bytes of metadata for each byte of data; None: unknown."""


def bounds(day: date | None, zone: ZoneInfo, now: datetime) -> tuple[datetime, datetime]:
    """The day of the zone, of 23 or 25 hours when the clocks change; None: the 24 hours up to the last five minutes."""
    if day is None:
        end = datetime.fromtimestamp(-(-now.timestamp() // (60 * MINUTES)) * 60 * MINUTES, UTC)
        return end - timedelta(days=1), end
    days = (day, day + timedelta(days=1))
    start, end = (datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC) for day in days)
    return start, end


def slots(samples: Sequence[Sample], start: datetime, end: datetime, count: int) -> list[Slot]:
    """Divides the time from `start` to `end` into `count` equal slots. The activity of a sample is spread evenly over its time."""
    length = (end - start) / count
    all_slots = []
    for number in range(count):
        begin = start + number * length
        seconds, read, written = within(samples, begin, begin + length)
        rates = (read / seconds, written / seconds) if seconds else (None, None)
        all_slots.append(Slot(begin, begin + length, seconds, *rates))
    return all_slots


def unknown_spans(all_slots: Sequence[Slot]) -> list[tuple[datetime, datetime]]:
    """Returns the periods without samples. They must not look like periods without activity."""
    runs = [list(group) for is_known, group in groupby(all_slots, lambda slot: slot.known > 0) if not is_known]
    return [(group[0].start, group[-1].end) for group in runs]


def within(samples: Iterable[Sample], start: datetime, end: datetime) -> tuple[float, float, float]:
    """Returns how many seconds between `start` and `end` the samples cover, and the bytes read and written in them."""
    seconds = read = written = 0.0
    for sample in samples:
        if sample.seconds:
            inside = _overlap(sample.taken - timedelta(seconds=sample.seconds), sample.taken, start, end)
            seconds += inside
            read += sample.read * inside / sample.seconds
            written += sample.written * inside / sample.seconds
    return seconds, read, written


def _overlap(start: datetime, end: datetime, begin: datetime, last: datetime) -> float:
    return max((min(end, last) - max(start, begin)).total_seconds(), 0.0)


def phases(jobs: Iterable[Job], samples: Sequence[Active], start: datetime, end: datetime) -> list[Phase]:
    """Returns when jobs ran, by kind, between `start` and `end`; jobs in close succession are merged.

    Every job has an end here. Activity observed in the kernel (a scrub, another program's balance) counts from the sample before.
    """
    all_phases = [Phase(job.kind, job.started, job.finished) for job in jobs if job.finished]
    all_phases += [
        Phase(word, before.taken, sample.taken)
        for before, sample in pairwise(samples)
        for word in split_activities(sample.activity)
        if _PASSIVE not in word and word in split_activities(before.activity)
    ]
    cut = [Phase(phase.kind, max(phase.start, start), min(phase.end, end)) for phase in all_phases]
    return _joined(sorted((phase for phase in cut if phase.start < phase.end), key=lambda phase: (phase.kind, phase.start)))


def _joined(ordered: Iterable[Phase]) -> list[Phase]:
    joined: list[Phase] = []
    for phase in ordered:
        if joined and joined[-1].kind == phase.kind and phase.start - joined[-1].end <= _TOGETHER:
            joined[-1] = Phase(phase.kind, joined[-1].start, max(joined[-1].end, phase.end))
        else:
            joined.append(phase)
    return joined


def kinds_of(all_phases: Sequence[Phase]) -> list[str]:
    """Returns the kinds of jobs that ran, in the order of their first start."""
    return list(dict.fromkeys(phase.kind for phase in sorted(all_phases, key=lambda phase: phase.start)))


def sums(
    samples: Sequence[Sample], jobs: Sequence[Job], all_phases: Sequence[Phase], start: datetime, end: datetime
) -> list[PhaseSum]:
    """Returns the totals of the whole day, and of each kind of job. Activity while two jobs run counts for both: the disks do not
    show whose it is.
    """
    factor = data_factor(samples[-1]) if samples else 1.0
    kinds = kinds_of(all_phases)
    return [
        _sum("", [Phase("", start, end)], samples, _data(jobs, start, end) * factor),
        *(
            _sum(
                kind,
                [phase for phase in all_phases if phase.kind == kind],
                samples,
                _data([job for job in jobs if job.kind == kind], start, end) * factor,
            )
            for kind in kinds
        ),
    ]


def _sum(kind: str, phases: Sequence[Phase], samples: Sequence[Sample], data: float) -> PhaseSum:
    parts = [within(samples, phase.start, phase.end) for phase in phases]
    covered, read, written = (sum(part[number] for part in parts) for number in range(3))
    seconds = sum((phase.end - phase.start).total_seconds() for phase in phases)
    whole, payload = round(written), round(data)
    metadata = whole - payload if whole >= payload and covered else None
    ratio = metadata / payload if metadata is not None and payload else None
    return PhaseSum(kind, seconds, covered, round(read), whole, payload, metadata, ratio)


def _data(jobs: Iterable[Job], start: datetime, end: datetime) -> float:
    """Returns the data of a job between `start` and `end`, assuming that it wrote evenly."""
    total = 0.0
    for job in jobs:
        if job.data and job.finished:
            took = (job.finished - job.started).total_seconds()
            share = _overlap(job.started, job.finished, start, end) / took if took > 0 else float(start <= job.started < end)
            total += job.data * share
    return total


@dataclass(frozen=True, slots=True)
class DayData:
    """A day, or another period."""

    name: str
    """The pool's name, safe to display."""
    start: datetime
    """Its start."""
    end: datetime
    """Its end."""
    zone: ZoneInfo
    """The time zone in which it is shown."""
    slots: Sequence[Slot]
    """Its slots."""
    phases: Sequence[Phase]
    """The times in which jobs ran."""
    sums: Sequence[PhaseSum]
    """Totals by kind of job."""
