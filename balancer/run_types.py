"""The data of a run: settings, the block group that is planned or under way, results, and events.

`balancer.run` makes them; the command line shows them. Nothing here is read from a filesystem.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from balancer.choose import Floors
from balancer.cost_model import Estimate
from balancer.score import Array
from balancer.survey import Cost
from btrkeep.choices import DEFAULT_POLICY, MAX_PRESSURE
from btrkeep.process.progress import Notice, Waiting

MAP_CELLS = 256
"""Of `PlannedBlockGroup.shares`: two rows of 64 characters, for example, as `balancer.explain.rows` draws them."""


class StopReason(StrEnum):
    """Why a run has ended. DONE, NO_GAIN, BUDGET, TIME and WINDOW are as intended; the others need a look, or another day."""

    DONE = "done"  # nothing is worth it any more
    NO_GAIN = "no gain"  # the last block groups brought nothing of what the policy is for
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


INTENDED = frozenset({StopReason.DONE, StopReason.NO_GAIN, StopReason.BUDGET, StopReason.TIME, StopReason.WINDOW})


class Hindrance(StrEnum):
    """Why the kernel did not relocate a block group although nothing is wrong with it."""

    SWAP = "swap"  # a swap file lies in it: it stays as long as the file is in use
    BUSY = "busy"  # another exclusive operation began between the choice and the balance


class BalanceOutcome(StrEnum):
    """The result of one block group. The catalogue stores these values."""

    DONE = "done"
    GONE = "gone"  # it did not exist any more
    NO_SPACE = "no space"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RoomFloor:
    """A minimum of room: `size` bytes, but at most this `share` of the whole filesystem, so that it fits small ones as well."""

    size: int = 4 << 30
    share: float = 0.02

    def of(self, total: int) -> int:
        """Bytes, for a filesystem that holds `total`."""
        return min(self.size, int(total * self.share))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run.

    `budget`: bytes that may move, `time`: seconds, `until`: an aware moment; None: no such limit. A block group is begun only if
    its used bytes fit the budget and it should be finished in time; when time or window end, it is cancelled. `min_unallocated`
    counts as `btrkeep.pool.allocation.Room.unallocated` does.

    `yield_to_backups`: stop when backups or an expiry begin, in a pool on the filesystem; with `only_to_expiry` continue beside
    backups. No block group is begun while an expiry deletes, and an expiry waits for the current one. `locks` are folders of locks
    of additional pools; those of configured pools, or of pools whose top is a mount point or above the path, are found
    automatically.
    `max_pressure`: the share of time (0 to 1) in which some process waited for the disks (PSI io, "some") above which no further
    block group is begun; None: not checked. `patience`: the maximum number of seconds to wait, each time, for the pressure to fall;
    with `wait_for_others` also for another exclusive operation and for backups. Without it those end the run at once.

    `devices`: only block groups on one of these devices, by number; (): any. `fill`: only block groups that are not on this device,
    until another device has as much unallocated space.
    """

    policy: str = DEFAULT_POLICY
    floors: Floors = field(default_factory=Floors)
    budget: int | None = None
    time: float | None = None
    until: datetime | None = None
    min_unallocated: RoomFloor = field(default_factory=RoomFloor)
    yield_to_backups: bool = True
    only_to_expiry: bool = False
    locks: tuple[Path, ...] = ()
    max_pressure: float | None = MAX_PRESSURE
    wait_for_others: bool = False
    patience: float = 600.0
    dry_run: bool = False
    devices: tuple[int, ...] = ()
    fill: int | None = None

    @property
    def by_device(self) -> bool:
        """Returns True if block groups are moved to or from a device."""
        return bool(self.devices) or self.fill is not None


@dataclass(frozen=True, slots=True)
class PlannedBlockGroup:
    """A block group that would be balanced, or is about to be, at that moment. `number`: its place in the plan or run, from 1.

    `type`: type and profile flags. `benefit`: score per GiB moved. `moved_so_far`: bytes of the plan or run, this one included.
    `left`: the budget before it, None without one. `worth`: how many block groups were worth balancing when it was chosen, this one
    included. `shares`: f64[MAP_CELLS], the used share of each cell of its map, by address; None in a plan, which does not read it.
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
        """Returns True if the rest of the budget covers it."""
        return self.left is None or self.used <= self.left


@dataclass(frozen=True, slots=True)
class BalanceProgress:
    """Progress of the current block group. `left`: its used bytes, as of the filesystem's last commit.

    The kernel first copies and then changes the references, so `left` stays constant for a while and falls in large steps.
    `written`: bytes to the devices since the step began, by all programs. `seconds`: since then. `total_moved` and `total_written`:
    of the run, with this step.
    """

    left: int
    written: int
    seconds: float
    total_moved: int
    total_written: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """The result of a block group.

    `moved`: its used bytes before, less those still there. `written`: bytes written to all devices meanwhile, every copy of data
    and metadata, by all programs. `gained`: the score of all block groups before, less that after. `freed`: unallocated bytes after
    it, less those before. `score`, `unallocated`: of the filesystem afterwards. `error`: the kernel's message, None if it
    succeeded; `hindrance`: what it means, if that matters.
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
    hindrance: Hindrance | None = None
    freed: int = 0

    @property
    def is_failure(self) -> bool:
        """Returns True if it failed for a reason that an operator should know; a swap file in it is none."""
        return self.outcome is BalanceOutcome.FAILED and self.hindrance is not Hindrance.SWAP


@dataclass(frozen=True, slots=True)
class SpaceNumbers:
    """A filesystem at one moment. Bytes except `block_groups`, `fragments` and `score`, which are those of its data block groups.

    `allocated`: the length of all of them, `used`: their used bytes, `unallocated`: see `btrkeep.pool.model.Room`.
    `free_in_large`: bytes free in extents of 16 MiB and more.
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
    reason: StopReason
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
