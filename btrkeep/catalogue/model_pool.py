"""The catalogue's data types for the pool: scores of free space, balances, samples, and jobs. See model_backup.py for conventions.

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
"""The reasons for the end of a run, in the words of balancer.run_types.StopReason. killed: its process ended without a result, as
the next run found.
"""
STEP_OUTCOMES = ("done", "gone", "no space", "cancelled", "failed")
"""done: the block group was relocated. gone: it no longer existed. no space: there was no free space for its data (ENOSPC).
cancelled: by whatever stopped the run, half of it may have been moved.
"""


@dataclass(frozen=True, slots=True)
class FreeSpaceScore:
    """One score of the free space of all data block groups of a filesystem."""

    filesystem: str
    """The UUID."""
    taken: datetime
    """When it was measured."""
    block_groups: int
    """Number of data block groups."""
    length: int
    """The size of all data block groups."""
    used: int
    """Bytes of data in them."""
    unallocated: int
    """Unallocated bytes, in bytes of data: half of the raw bytes for raid1 and dup."""
    fragments: int
    """Number of free extents in the free space tree."""
    score: float
    """The sum of the scores of all block groups."""
    bad: int
    """Number of block groups with a score above balancer.score.BAD."""
    largest_free: int
    """The size of the largest free extent."""
    free_in_large: int
    """Bytes in free extents of at least 16 MiB, joined across bitmaps."""
    histogram: tuple[tuple[int, int, int], ...]
    """(minimum bytes, extents, their bytes) of each size class, which ends at twice its minimum; () if nothing is free."""


@dataclass(frozen=True, slots=True)
class Balance:
    """One run of `btrfs-balancer run`; while it has no end, also its current step."""

    id: int
    """A run that started later has a higher one."""
    filesystem: str
    """The UUID."""
    mountpoint: str
    """Where it was mounted."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; None: it is running, or was killed."""
    outcome: str | None
    """One of BALANCE_OUTCOMES; None: running now, or killed."""
    why: str | None
    """Why it ended, in words; None: it is running."""
    policy: str
    """The name of the policy, as in [balance]."""
    budget: int | None
    """Bytes that it may move; None: no limit."""
    pid: int
    """The process that runs it."""
    pid_started: str | None
    """Its start time; None: unknown."""
    block_groups: int
    """Number of relocated block groups."""
    moved: int
    """Bytes of data that it moved."""
    written: int | None
    """Bytes that all programs wrote to the devices while it ran; None: unknown."""
    gained: float
    """The sum of the decrease of the filesystem's score in its steps, without the effect of other programs."""
    failed: int
    """Number of block groups that it could not relocate."""
    current: int | None
    """vaddr of the block group that it relocates now; None: none at present."""
    before: Mapping[str, object]
    """The filesystem's numbers at its start; empty: unknown."""
    after: Mapping[str, object]
    """The filesystem's numbers at its end."""
    updated: datetime
    """When this was written."""


@dataclass(frozen=True, slots=True)
class BalanceStep:
    """One block group of a run: its state before, the expected gain and cost, and the actual ones."""

    balance: int
    """The `id` of its run."""
    number: int
    """Position in the run: 1, 2, ..."""
    vaddr: int
    """Logical address of the block group."""
    length: int
    """Its size."""
    used: int
    """Bytes of data in it before."""
    extents: int | None
    """Number of its extents; None: not counted."""
    refs: int | None
    """Number of references to its extents; None: not counted."""
    fragments: int
    """Number of its free extents."""
    score: float
    """Its score before."""
    started: datetime
    """When it started."""
    seconds: float
    """How long it took."""
    moved: int
    """Bytes moved: `used` if it is done; for a cancelled one the bytes moved until then, if known."""
    written: int | None
    """Bytes that all programs wrote to the devices during it; None: unknown."""
    estimate_written: int | None
    """Bytes that it was expected to write; None: no estimate."""
    estimate_seconds: float | None
    """How long it was expected to take; None: no estimate."""
    gained: float
    """Decrease of the filesystem's score, including the new place of the data."""
    outcome: str
    """One of STEP_OUTCOMES."""
    error: str | None
    """The kernel's error; None: there was none."""


SPANS = ("raw", "hour", "day")
"""raw: unchanged. hour, day: the summary of all samples of that hour or day."""
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
    """Returns the column `activity`: the operations ("balance", "scrub") separated by commas; "" for none."""
    return ", ".join(activities)


def split_activities(activity: str) -> tuple[str, ...]:
    """Returns the operations that `join_activities` wrote."""
    return tuple(activity.split(", ")) if activity else ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a filesystem at one time, and the activity of its devices since the sample before. Fields are in the order of
    the columns.

    Sizes are raw bytes of the devices: data stored twice counts twice. For an hour or a day they are those of its last sample.
    """

    filesystem: str
    """The UUID."""
    taken: datetime
    """When it was measured."""
    span: str
    """One of SPANS."""
    size: int
    """Size of all devices."""
    allocated: int
    """Bytes of the devices that belong to block groups."""
    used: int
    """Bytes of the devices that hold data and metadata."""
    spaces: Mapping[str, Sequence[int]]
    """By `space_name` ("data raid1"): allocated and used, both in bytes of files, and a thousand times the bytes of devices for
    each byte.
    """
    devices: Mapping[str, Sequence[int]]
    """By number ("1"): size, allocated, and errors of writing, reading, flushing, corruption, generation, unless unknown."""
    orphans: int | None
    """Number of deleted subvolumes that waited for the cleaner, the highest of an hour or a day; None: unknown."""
    score: float | None
    """The last score of the free space; None: it was never scored."""
    scored: datetime | None
    """When that was measured."""
    options: str
    """The mount options of the filesystem and of the mount."""
    activity: str
    """The kernel's operations at that time ("balance", "scrub"), as `join_activities` writes them."""
    seconds: float
    """The length of the time before `taken` to which `read` and the fields below refer; 0: they are unknown."""
    read: int
    """Bytes read from all devices."""
    written: int
    """Bytes written to all devices."""
    peak_read: float
    """The highest average of bytes read per second over one recorded interval."""
    peak_written: float
    """The highest average of bytes written per second, over the same intervals."""
    pressure: Mapping[str, float]
    """Seconds that processes waited, by kind ("io some"); empty: the kernel does not report."""
    counters: Mapping[str, object] = field(default_factory=dict)
    """The kernel's counters at a raw sample, for the difference to the next one."""
    id: int = 0
    """0: not stored yet."""


class SampleMark(NamedTuple):
    """The fields of a sample that are needed to choose among thousands; the rest is some hundred bytes of JSON."""

    id: int
    taken: datetime
    orphans: int | None
    activity: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job that ran or runs."""

    kind: str
    """One of JOBS."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """None: running now, or killed."""
    updated: datetime | None
    """The time of its last report; None: this job does not report."""
    data: int | None
    """Bytes of file data that it wrote or moved; None: unknown."""
    pid: int = 0
    """The process that runs it; 0: not known."""
    pid_started: str | None = None
    """Its start time; None: unknown."""
