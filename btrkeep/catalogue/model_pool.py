"""The catalogue's data types for the pool: scores of free space, balances, samples, and jobs. See model.py for conventions.

Addresses and sizes are bytes, `seconds` durations, scores those of balancer/score.py. Fields are in the order of the columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

BALANCE_OUTCOMES = (
    "done",
    "budget",
    "time",
    "window",
    "stopped",
    "unallocated",
    "exclusive operation",
    "backups",
    "pressure",
    "no space",
    "failed",
    "killed",
)
"""What ended a run, in the words of balancer.run_types.StopReason. killed: its process was gone when the next one came."""
STEP_OUTCOMES = ("done", "gone", "no space", "cancelled", "failed")
"""done: the block group was relocated. gone: it was not there any more. no space: its data found no room (ENOSPC). cancelled: by
whoever stopped the run, half of it may have moved."""


@dataclass(frozen=True, slots=True)
class FreeSpaceScore:
    """One score of the free space of all data block groups of a filesystem."""

    filesystem: str
    """The UUID."""
    taken: datetime
    block_groups: int
    length: int
    """Of all of them: what is allocated to data."""
    used: int
    unallocated: int
    """As data would be stored: halved for raid1 and dup."""
    fragments: int
    """Free extents, as the free space tree has them."""
    score: float
    """The sum over all block groups."""
    bad: int
    """Block groups that score above balancer.score.BAD."""
    largest_free: int
    free_in_large: int
    """Bytes that are free in extents of 16 MiB and more, joined across bitmaps."""
    histogram: tuple[tuple[int, int, int], ...]
    """(least bytes, extents, their bytes) of each size class, which reaches up to twice its least; () when nothing is free."""


@dataclass(frozen=True, slots=True)
class Balance:
    """One run of `btrfs-balancer run`; while it has no end, also its current step."""

    id: int
    filesystem: str
    mountpoint: str
    started: datetime
    finished: datetime | None
    outcome: str | None
    """One of BALANCE_OUTCOMES; None: running now, or killed."""
    why: str | None
    """In words, why it ended."""
    policy: str
    budget: int | None
    """Bytes that it may move; None: no limit."""
    pid: int
    pid_started: str | None
    block_groups: int
    """How many were relocated."""
    moved: int
    written: int | None
    """To all devices while it ran, by everybody; None: unknown."""
    gained: float
    """Score removed, by all steps; what else happened to the filesystem meanwhile is not in it."""
    failed: int
    """Block groups that were set aside."""
    current: int | None
    """vaddr of the block group that is being relocated; None between two of them."""
    before: Mapping[str, object]
    """The filesystem's numbers when it began, as JSON has them; empty: not known."""
    after: Mapping[str, object]
    """The same when it ended."""
    updated: datetime


@dataclass(frozen=True, slots=True)
class BalanceStep:
    """One block group of a run: its state before, the expected gain and cost, and the actual ones."""

    balance: int
    """The id of its run."""
    number: int
    """Within the run: 1, 2, ..."""
    vaddr: int
    length: int
    used: int
    extents: int | None
    """None: not counted before it moved."""
    refs: int | None
    """References to its extents."""
    fragments: int
    score: float
    started: datetime
    seconds: float
    moved: int
    """`used` for one that is done; what had moved for one that was cancelled, if that is known."""
    written: int | None
    """To all devices meanwhile, by everybody."""
    estimate_written: int | None
    estimate_seconds: float | None
    gained: float
    """Score removed from the filesystem, the new place of the data counted too."""
    outcome: str
    """One of STEP_OUTCOMES."""
    error: str | None


SPANS = ("raw", "hour", "day")
"""raw: as it was taken. hour, day: what is left of all samples of that hour or day."""
JOBS = ("backup", "expire", "balance")


class SpaceType(NamedTuple):
    """The type ("data", "metadata", "system", "mixed") and the profile ("single", "raid1") of block groups."""

    type: str
    profile: str


def space_name(space: SpaceType) -> str:
    """Returns the key of `Sample.spaces` for block groups of this type and profile: "data raid1"."""
    return f"{space.type} {space.profile}"


def read_space_name(name: str) -> SpaceType:
    """Returns the type and profile that `space_name` wrote. Raises ValueError for anything else."""
    type_, profile = name.split()
    return SpaceType(type_, profile)


def join_activities(activities: Iterable[str]) -> str:
    """Returns the column `activity`: the operations ("balance", "scrub") with commas between; "" for none."""
    return ", ".join(activities)


def split_activities(activity: str) -> tuple[str, ...]:
    """Returns the operations that `join_activities` wrote."""
    return tuple(activity.split(", ")) if activity else ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a filesystem at a moment, and the activity of its devices since the sample before. Fields are in the order of
    the columns.

    Sizes are raw bytes of the devices: data stored twice counts twice. For an hour or a day they are those of its last sample.
    """

    filesystem: str
    """The UUID."""
    taken: datetime
    span: str
    """One of SPANS."""
    size: int
    allocated: int
    used: int
    spaces: Mapping[str, Sequence[int]]
    """By `space_name` ("data raid1"): allocated, used, both as files have them, and a thousand times the bytes of devices that a
    byte of them takes."""
    devices: Mapping[str, Sequence[int]]
    """By number ("1"): size, allocated, and errors of writing, reading, flushing, corruption, generation, unless unknown."""
    orphans: int | None
    """Deleted subvolumes that waited for the cleaner; of an hour or a day the most. None: not known."""
    score: float | None
    """Of the free space, as it was scored last; None: never."""
    scored: datetime | None
    """When that was."""
    options: str
    """The mount options, those of the filesystem and those of the mount."""
    activity: str
    """What the kernel did besides ("balance", "scrub"), as `join_activities` writes it."""
    seconds: float
    """The time up to `taken` that `read` and all that follow are about; 0: they are not known."""
    read: int
    """From all devices."""
    written: int
    peak_read: float
    """The most in a second, on average over the shortest span that was kept."""
    peak_written: float
    pressure: Mapping[str, float]
    """Seconds that processes waited, by kind ("io some"); empty: the kernel does not report."""
    counters: Mapping[str, object] = field(default_factory=dict)
    """The counters themselves, of a raw sample, for the difference to the next one."""
    id: int = 0
    """0: not kept yet."""


class SampleMark(NamedTuple):
    """The part of a sample that is needed to choose among thousands; the rest is some hundred bytes of JSON."""

    id: int
    taken: datetime
    orphans: int | None
    activity: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job that ran, one of JOBS. `data`: bytes of file data that it wrote or moved; None if unknown."""

    kind: str
    started: datetime
    finished: datetime | None
    """None: running now, or killed."""
    updated: datetime | None
    """When it was last heard of; None: nobody writes that down."""
    data: int | None
    pid: int = 0
    pid_started: str | None = None
