"""Takes a sample: reads the kernel's numbers, stores them, and merges old samples into fewer.

A counter alone means nothing: it starts when its device appears. A difference is only calculated within one boot, of one and the
same device, and only if it is not negative. If a single device cannot be compared, the whole span is unknown: a gap in a curve is
honest, a dip or a spike is not. So no reboot, no replaced device and no counter that wraps ever shows as traffic.

After two weeks samples become one an hour, after a year one a day: ten years are some 4,000 raw samples, 8,400 hours and 3,300
days. A state (allocated, devices, options) is that of the last sample; a flow is added up; a peak stays the peak.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, cast
from zoneinfo import ZoneInfo

from btrkeep.catalogue import Catalogue, FreeSpaceScore, Sample
from btrkeep.catalogue.model_pool import SpaceType, join_activities, space_name, split_activities
from btrkeep.pool.activity import Counters, read_activity, read_counters
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.orphans import count_orphans

PATIENCE = 5.0
"""Seconds that a sample waits for other writers of the catalogue; the next sample comes soon."""
_PEAK_OVER = 10.0  # seconds: a short burst is not a rate
_AT_A_TIME = 48  # hours or days merged from older samples at once, in some tens of milliseconds


@dataclass(frozen=True, slots=True)
class PoolReading:
    """The numbers that are read of the pool."""

    allocation: Allocation
    """Its allocation."""
    counters: Counters
    """The kernel's counters."""
    orphans: int | None
    """Number of deleted subvolumes that wait for the cleaner; None: not permitted, because it needs CAP_SYS_ADMIN."""
    options: tuple[str, ...]
    """The pool's mount options on this machine; without those of the mount itself if a service cannot see them."""
    activity: tuple[str, ...]
    """The kernel's running operations, such as a balance."""


def read_counters_and_room(pool: Pool) -> PoolReading:
    """Reads the numbers from the kernel, which has all but the orphans in memory. Raises OSError."""
    allocation = read_allocation(pool.path)
    return PoolReading(
        allocation,
        read_counters(pool.path),
        count_orphans(pool.path),
        _options(pool),
        read_activity(pool.path, [device.devid for device in allocation.devices]),
    )


def _options(pool: Pool) -> tuple[str, ...]:
    machine = machine_mount(pool.path)
    return (*(machine.mount_options if machine else ()), *mount_of(pool.path).super_options)


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """The facts for a sample."""

    pool: Pool
    """The pool."""
    taken: datetime
    """When."""
    reading: PoolReading
    """The numbers of the pool."""
    score: FreeSpaceScore | None
    """The newest score of its free space; None: none."""


def store_sample(catalogue: Catalogue, pool: Pool, taken: datetime, reading: PoolReading) -> Sample:
    """Stores one sample in the catalogue. Raises CatalogueBusy if that was locked for longer than PATIENCE, and OperatorError."""
    catalogue.wait_at_most(PATIENCE)
    everything = SampleFacts(pool, taken, reading, catalogue.newest_score(pool.filesystem))
    return catalogue.add_sample(pool.filesystem, lambda before: make_sample(everything, before))


def make_sample(sample_facts: SampleFacts, before: Sample | None) -> Sample:
    """Returns the sample; `before` is the previous one. Pure."""
    counters = as_document(sample_facts.reading.counters)
    if sample_facts.pool.rehearsal:
        counters["clock"] = None  # nights of a rehearsal are minutes apart
    between = (sample_facts.taken - before.taken).total_seconds() if before else 0.0
    went = flow(before.counters if before else {}, counters, between)
    allocation = sample_facts.reading.allocation
    return Sample(
        filesystem=sample_facts.pool.filesystem,
        taken=sample_facts.taken,
        span="raw",
        size=allocation.size,
        allocated=allocation.allocated,
        used=allocation.used,
        spaces={
            space_name(SpaceType(space.type, space.profile)): (space.total, space.used, round(space.factor * 1000))
            for space in allocation.spaces
        },
        devices={str(device.devid): (device.size, device.allocated, *(device.errors or ())) for device in allocation.devices},
        orphans=sample_facts.reading.orphans,
        score=sample_facts.score.score if sample_facts.score else None,
        scored=sample_facts.score.taken if sample_facts.score else None,
        options=",".join(dict.fromkeys(sample_facts.reading.options)),
        activity=join_activities(sample_facts.reading.activity),
        seconds=went.seconds,
        read=went.read,
        written=went.written,
        peak_read=went.read / went.seconds if went.seconds >= _PEAK_OVER else 0.0,
        peak_written=went.written / went.seconds if went.seconds >= _PEAK_OVER else 0.0,
        pressure=went.pressure,
        counters=counters,
    )


def thin_samples(catalogue: Catalogue, filesystem: str, now: datetime, zone: ZoneInfo) -> None:
    """Merges old samples into hours and days, some at a time. Raises CatalogueBusy, and OperatorError."""
    for step in STEPS:
        oldest = catalogue.oldest_sample(filesystem, step.span)
        due = window(step, oldest, now, zone, _AT_A_TIME) if oldest else None
        if due:
            old = catalogue.samples(filesystem, *due, step.span)
            catalogue.replace_samples([sample.id for sample in old], merge_samples(old, step, zone))


RAW_FOR = timedelta(days=14)
HOURS_FOR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ThinningStep:
    """A step of merging: samples of one span become a longer one when they are old."""

    span: str
    """The shorter span."""
    into: str
    """The longer span."""
    after: timedelta
    """The age from which they are merged."""
    start: Callable[[datetime, ZoneInfo], datetime]
    """Returns the start of the longer span that contains a moment."""
    length: timedelta
    """The length of the longer span."""


def _hour(moment: datetime, _zone: ZoneInfo) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """Returns the start, in UTC, of the day in the zone that contains the moment."""
    return moment.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


STEPS = (
    ThinningStep("raw", "hour", RAW_FOR, _hour, timedelta(hours=1)),
    ThinningStep("hour", "day", HOURS_FOR, day_of, timedelta(days=1)),
)


def window(step: ThinningStep, oldest: datetime, now: datetime, zone: ZoneInfo, at_most: int) -> tuple[datetime, datetime] | None:
    """Returns the period to merge into `into` of `span`: whole hours or days, about `at_most` of them; None if nothing is due."""
    start, last = step.start(oldest, zone), step.start(now - step.after, zone)
    if start >= last:
        return None
    return start, min(last, step.start(start + at_most * step.length + step.length / 2, zone))


def merge_samples(samples: Sequence[Sample], step: ThinningStep, zone: ZoneInfo) -> list[Sample]:
    """Merges samples of one span, oldest first, into one for each hour or day that has any."""
    return [_merged_sample(list(group), step.into) for _, group in groupby(samples, lambda sample: step.start(sample.taken, zone))]


def _merged_sample(interval: list[Sample], span: str) -> Sample:
    waiting = [sample.orphans for sample in interval if sample.orphans is not None]
    samples = [sample for sample in interval if sample.seconds]
    return replace(
        interval[-1],
        span=span,
        orphans=max(waiting, default=None),
        activity=join_activities(sorted({word for sample in interval for word in split_activities(sample.activity)})),
        seconds=sum(sample.seconds for sample in samples),
        read=sum(sample.read for sample in samples),
        written=sum(sample.written for sample in samples),
        peak_read=max((sample.peak_read for sample in samples), default=0.0),
        peak_written=max((sample.peak_written for sample in samples), default=0.0),
        pressure=_added(sample.pressure for sample in samples),
        counters={},
        id=0,
    )


def _added(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for seconds_by_kind in mappings:
        for kind, seconds in seconds_by_kind.items():
            totals[kind] = round(totals.get(kind, 0.0) + seconds, 3)
    return totals


_READ, _WRITTEN = 1, 3  # positions in the numbers of Counters.devices
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Flow:
    """The bytes read and written before a reading."""

    seconds: float = 0.0
    """The seconds between the two readings; 0: unknown."""
    read: int = 0
    """Bytes read from all devices."""
    written: int = 0
    """Bytes written to all devices."""
    pressure: Mapping[str, float] = field(default_factory=dict)
    """Seconds that processes waited, by kind ("io some")."""


UNKNOWN = Flow()


def as_document(counters: Counters) -> dict[str, object]:
    """Returns them as stored in the catalogue."""
    return {"boot": counters.boot, "clock": counters.clock, "devices": counters.devices, "pressure": counters.pressure}


def flow(before: Mapping[str, object], after: Mapping[str, object], between: float) -> Flow:
    """Returns the flow between two readings, as `as_document` makes them. `between`: seconds by the wall clock.

    The seconds are those of the monotonic clock; in a rehearsal, which has no such clock (None), `between`.
    """
    if not before or before.get("boot") != after["boot"]:
        return UNKNOWN
    then, now = cast(Mapping[str, Any], before), cast(Mapping[str, Any], after)
    seconds = between if now["clock"] is None or then["clock"] is None else now["clock"] - then["clock"]
    differences = _differences(then["devices"], now["devices"])
    if seconds <= 0 or differences is None:
        return UNKNOWN
    return Flow(
        seconds,
        sum(difference[_READ] for difference in differences),
        sum(difference[_WRITTEN] for difference in differences),
        _pressure(then["pressure"], now["pressure"], seconds),
    )


def _differences(before: Mapping[str, list[int]], after: Mapping[str, list[int]]) -> list[tuple[int, ...]] | None:
    """Returns the differences of all present devices; None if one was not present before, or restarted counting."""
    if not after.keys() <= before.keys():
        return None
    differences = [tuple(now - then for then, now in zip(before[name], after[name], strict=True)) for name in after]
    # The last number, milliseconds busy, has 32 bits and wraps every seven weeks, so it is not used.
    return differences if all(value >= 0 for difference in differences for value in difference[: _WRITTEN + 1]) else None


def _pressure(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Returns the pressure of the kinds that both readings have. A waiting time longer than the elapsed time means that a counter
    was reset.
    """
    pressure = {kind: (after[kind] - before[kind]) / _MICRO for kind in after if kind in before}
    return {kind: round(value, 3) for kind, value in pressure.items() if 0 <= value <= seconds * 1.1}
