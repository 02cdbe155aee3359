"""Takes a sample: looks, keeps it, and lets the old ones become fewer."""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from backupd.sampling.flows import as_document, flow
from backupd.sampling.thin import STEPS, merged, window
from btrkeep.catalogue import Catalogue, FreeSpaceScore, Sample
from btrkeep.catalogue.model_sample import SpaceType, join_activities, space_name
from btrkeep.pool.activity import Counters, read_activity, read_counters
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.orphans import count_orphans

PATIENCE = 5.0
"""Seconds that a sample waits for other writers of the catalogue; the next one comes soon."""
_PEAK_OVER = 10.0  # seconds: a moment's burst is no rate
_AT_A_TIME = 48  # hours or days that are made of older samples at once: some tens of milliseconds


@dataclass(frozen=True, slots=True)
class PoolReading:
    """`orphans`: how many deleted subvolumes wait; None when we may not ask, which needs CAP_SYS_ADMIN.

    `options`: how the pool is mounted, as the machine has it; without those of the mount where a service cannot see them.
    """

    allocation: Allocation
    counters: Counters
    orphans: int | None
    options: tuple[str, ...]
    activity: tuple[str, ...]


def look(pool: Pool) -> PoolReading:
    """Asks the kernel. It has everything but the orphans in memory. Raises OSError."""
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
    """The facts available when a sample is taken."""

    pool: Pool
    taken: datetime
    look: PoolReading
    score: FreeSpaceScore | None


def keep(catalogue: Catalogue, pool: Pool, taken: datetime, look: PoolReading) -> Sample:
    """Put one look into the catalogue. Raises CatalogueBusy when that was held for longer than PATIENCE, and OperatorError."""
    catalogue.wait_at_most(PATIENCE)
    everything = SampleFacts(pool, taken, look, catalogue.newest_score(pool.filesystem))
    return catalogue.add_sample(pool.filesystem, lambda before: make(everything, before))


def make(what: SampleFacts, before: Sample | None) -> Sample:
    """The sample; `before` is the newest so far. Pure."""
    counters = as_document(what.look.counters)
    if what.pool.rehearsal:
        counters["clock"] = None  # its nights follow each other within minutes
    between = (what.taken - before.taken).total_seconds() if before else 0.0
    went = flow(before.counters if before else {}, counters, between)
    allocation = what.look.allocation
    return Sample(
        filesystem=what.pool.filesystem,
        taken=what.taken,
        span="raw",
        size=allocation.size,
        allocated=allocation.allocated,
        used=allocation.used,
        spaces={
            space_name(SpaceType(one.type, one.profile)): (one.total, one.used, round(one.factor * 1000))
            for one in allocation.spaces
        },
        devices={str(one.devid): (one.size, one.allocated, *(one.errors or ())) for one in allocation.devices},
        orphans=what.look.orphans,
        score=what.score.score if what.score else None,
        scored=what.score.taken if what.score else None,
        options=",".join(dict.fromkeys(what.look.options)),
        activity=join_activities(what.look.activity),
        seconds=went.seconds,
        read=went.read,
        written=went.written,
        peak_read=went.read / went.seconds if went.seconds >= _PEAK_OVER else 0.0,
        peak_written=went.written / went.seconds if went.seconds >= _PEAK_OVER else 0.0,
        pressure=went.pressure,
        counters=counters,
    )


def thin(catalogue: Catalogue, filesystem: str, now: datetime, zone: ZoneInfo) -> None:
    """Merges old samples into hours and days, some at a time. Raises CatalogueBusy, and OperatorError."""
    for step in STEPS:
        oldest = catalogue.oldest_sample(filesystem, step.span)
        due = window(step, oldest, now, zone, _AT_A_TIME) if oldest else None
        if due:
            old = catalogue.samples(filesystem, *due, step.span)
            catalogue.replace_samples([one.id for one in old], merged(old, step, zone))
