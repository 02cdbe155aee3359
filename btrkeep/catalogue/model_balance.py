"""The catalogue's data types for free space: scores and balances. See model.py for conventions.

Addresses and sizes are bytes, `seconds` durations, scores those of balancer/score.py. Fields are in the order of the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

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
