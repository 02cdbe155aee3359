"""The data of a run: settings, the block group that is planned or under way, results, and events.

`balancer.run` makes them; the command line shows them. Nothing here is read from a filesystem.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from balancer.choose import Floors
from balancer.model import Estimate
from balancer.score import Array
from balancer.survey import Cost
from btrkeep.process.progress import Notice, Waiting

MAP_CELLS = 256
"""Of `PlannedBlockGroup.shares`: two rows of 64 characters, for example, as `balancer.blockmap.rows` draws them."""


class Ending(StrEnum):
    """Why a run has ended. DONE, BUDGET, TIME and WINDOW are as intended; the others need a look, or another day."""

    DONE = "done"  # nothing is worth it any more
    BUDGET = "budget"
    TIME = "time"
    WINDOW = "window"
    SIGNAL = "stopped"
    UNALLOCATED = "unallocated"  # too little space that no block group has
    EXCLUSIVE = "exclusive operation"  # somebody balances, resizes, adds or removes a device
    BACKUPS = "backups"
    PRESSURE = "pressure"
    NO_SPACE = "no space"  # the kernel found no room for two block groups in a row
    FAILED = "failed"  # an error that would meet the next block group too


INTENDED = frozenset({Ending.DONE, Ending.BUDGET, Ending.TIME, Ending.WINDOW})


SWAP = "a swap file lies in it"
"""The `error` of a block group that the kernel passes over. It stays where it is as long as the file is swapped to."""

BUSY = "another exclusive operation was faster"
"""The `error` of a block group that was chosen a moment before somebody else took the filesystem for himself."""


class BalanceOutcome(StrEnum):
    """The result of one block group. The catalogue stores these values."""

    DONE = "done"
    GONE = "gone"  # it did not exist any more
    NO_SPACE = "no space"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Least:
    """A floor of room: `size` bytes, but no more than this `share` of the whole filesystem, so that small ones have one as well."""

    size: int = 4 << 30
    share: float = 0.02

    def of(self, total: int) -> int:
        """Bytes, for a filesystem that holds `total`."""
        return min(self.size, int(total * self.share))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run.

    `budget`: bytes that may move, `time`: seconds, `until`: an aware moment; None: no such limit. A block group is begun only when
    what is used of it still fits the budget, and only when it should be done in time; time and window cancel one that is not.
    `min_unallocated` counts as `btrkeep.pool.room.Room.unallocated` does.

    `yield_to_backups`: stop when backups or an expiry begin, in a pool that lies on the filesystem; with `only_to_expiry` go on
    beside backups. No block group is begun while an expiry deletes, and an expiry waits for the one under way. `locks` are folders
    of locks of pools that are known otherwise; those of pools that are configured, or whose top is a mount point or above the path,
    are found.
    `max_pressure`: the share of time (0 to 1) in which something waited for the disks (PSI io, "some") above which no further
    block group is begun; None: not looked at. `patience`: seconds to wait at most, each time, for the pressure to go down; and for
    another exclusive operation to end, and for backups, with `wait_for_others`. Without it those end the run at once.
    """

    policy: str = "benefit"
    floors: Floors = field(default_factory=Floors)
    budget: int | None = None
    time: float | None = None
    until: datetime | None = None
    min_unallocated: Least = field(default_factory=Least)
    yield_to_backups: bool = True
    only_to_expiry: bool = False
    locks: tuple[Path, ...] = ()
    max_pressure: float | None = 0.4
    wait_for_others: bool = False
    patience: float = 600.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PlannedBlockGroup:
    """A block group that would be balanced, or is about to be, as it looked then. `number`: its place in the plan or run, from 1.

    `type`: flags of use and profile. `benefit`: score per GiB that moves. `moved_so_far`: bytes of the plan or run, with this one.
    `left`: of the budget before it, None without one. `worth`: how many block groups were worth it when it was chosen, this one
    included. `shares`: f64[MAP_CELLS], what is used of each cell of its map, by address; None in a plan, which does not read that.
    """

    number: int
    vaddr: int
    length: int
    type: int
    used: int
    fragments: int
    score: float
    benefit: float
    cost: Cost
    estimate: Estimate
    moved_so_far: int
    worth: int
    left: int | None
    shares: Array | None = None

    @property
    def is_within(self) -> bool:
        """Whether the rest of the budget covers it."""
        return self.left is None or self.used <= self.left


@dataclass(frozen=True, slots=True)
class BalanceProgress:
    """Progress of the block group under way. `left`: bytes used of it, as of the filesystem's last commit.

    The kernel copies first and changes the references afterwards, so `left` stands still for a while and falls in large steps.
    `written`: bytes to the devices since the step began, others' included. `seconds`: since then. `total_moved` and
    `total_written`: of the run, with this step.
    """

    left: int
    written: int
    seconds: float
    total_moved: int
    total_written: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """The result of a block group.

    `moved`: bytes used of it before, less what is still there now. `written`: what was written to all devices meanwhile, every
    copy of data and metadata, and others' writes too. `gained`: the score of all block groups before, less that after.
    `score`, `unallocated`: of the filesystem after it. `error`: the kernel's words, None when all went well.
    """

    group: PlannedBlockGroup
    started: datetime
    seconds: float
    outcome: BalanceOutcome
    moved: int
    written: int
    gained: float
    score: float
    unallocated: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SpaceNumbers:
    """A filesystem at one moment. Bytes but for `block_groups`, `fragments` and `score`, which are of its data block groups.

    `allocated`: the length of all of them, `used`: what is used of them, `unallocated`: see `btrkeep.pool.room.Room`.
    `free_in_large`: free in extents of 16 MiB and more.
    """

    block_groups: int
    allocated: int
    used: int
    unallocated: int
    fragments: int
    score: float
    largest_free: int
    free_in_large: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `why` is a sentence for people. `planned`: only of a dry run, all that would be balanced.

    `signal`: the number of the one that ended it, None when none did.
    """

    filesystem: str
    before: SpaceNumbers
    after: SpaceNumbers
    steps: tuple[StepDone, ...]
    started: datetime
    seconds: float
    ending: Ending
    why: str
    planned: tuple[PlannedBlockGroup, ...] = ()
    signal: int | None = None

    @property
    def moved(self) -> int:
        """Bytes of data that have another place now."""
        return sum(step.moved for step in self.steps)

    @property
    def written(self) -> int:
        """Bytes written to all devices during the steps, by whomever."""
        return sum(step.written for step in self.steps)

    @property
    def gained(self) -> float:
        """Score removed from the whole filesystem."""
        return self.before.score - self.after.score

    @property
    def amplification(self) -> float | None:
        """Bytes written per byte moved; None when nothing moved."""
        return self.written / self.moved if self.moved else None

    @property
    def balanced(self) -> int:
        """Block groups that were balanced to the end."""
        return sum(step.outcome is BalanceOutcome.DONE for step in self.steps)


@dataclass(frozen=True, slots=True)
class BalanceStarted:
    """A run begins; `numbers` are those before."""

    numbers: SpaceNumbers
    settings: RunSettings


@dataclass(frozen=True, slots=True)
class Cancelling:
    """The run has to end: the block group at `vaddr` is being cancelled, which may take some seconds."""

    why: str
    vaddr: int


BalanceEvent = BalanceStarted | PlannedBlockGroup | BalanceProgress | Cancelling | StepDone | Waiting | Notice | Report
"""In the main thread, in this order: the start; then for each block group its plan, its progress twice a second, maybe its
cancellation, and its result; then the report, unless the run ends with an exception.
"""
