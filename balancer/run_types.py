"""The data of a run: settings, the planned or present block group, results, and events.

`balancer.balancing` makes them; the command line shows them. Nothing here reads a filesystem.
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
"""Number of cells in `PlannedBlockGroup.shares`: for example two rows of 64 characters, as `balancer.explain.rows` draws them."""


class StopReason(StrEnum):
    """Why a run has ended. DONE, NO_GAIN, BUDGET, TIME and WINDOW are as intended; the others need attention, or another day."""

    DONE = "done"  # no block group is worth moving any longer
    NO_GAIN = "no gain"  # the last block groups did not improve what the policy aims at
    BUDGET = "budget"
    TIME = "time"
    WINDOW = "window"
    SIGNAL = "stopped"
    UNALLOCATED = "unallocated"  # too little unallocated space
    EXCLUSIVE = "exclusive operation"  # another program balances, resizes, adds or removes a device
    BACKUPS = "backups"
    PRESSURE = "pressure"
    NO_SPACE = "no space"  # the kernel found no space for two consecutive block groups
    FAILED = "failed"  # an error that would also affect the next block group


INTENDED = frozenset({StopReason.DONE, StopReason.NO_GAIN, StopReason.BUDGET, StopReason.TIME, StopReason.WINDOW})


class RelocationObstacle(StrEnum):
    """Why the kernel did not relocate a block group although there is no error."""

    SWAP = "swap"  # it contains a swap file, and cannot move while the file is in use
    BUSY = "busy"  # another exclusive operation started between the choice and the balance


class BalanceOutcome(StrEnum):
    """The result of one block group. The catalogue stores these values."""

    DONE = "done"
    GONE = "gone"  # it no longer existed
    NO_SPACE = "no space"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RoomFloor:
    """A minimum of free space: `size` bytes, but at most this `share` of the whole filesystem, for small filesystems."""

    size: int = 4 << 30
    share: float = 0.02

    def of(self, total: int) -> int:
        """Returns the bytes for a filesystem of size `total`."""
        return min(self.size, int(total * self.share))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run."""

    policy: str = DEFAULT_POLICY
    """The order of block groups."""
    floors: Floors = field(default_factory=Floors)
    """The lower limits for a block group to be balanced."""
    budget: int | None = None
    """Bytes that may be moved; a block group is started only if its used bytes fit. None: no limit."""
    time: float | None = None
    """Seconds; a block group is started only if it should be finished in time, and is cancelled at the end. None: no limit."""
    until: datetime | None = None
    """The same limit as `time`, but as a time with zone. None: no limit."""
    min_unallocated: RoomFloor = field(default_factory=RoomFloor)
    """As `btrkeep.pool.allocation.Room.unallocated` counts."""
    yield_to_backups: bool = True
    """True if it stops when backups or an expiry start in a pool on the filesystem. No block group is started while an expiry
    deletes, and an expiry waits for the current one.
    """
    only_to_expiry: bool = False
    """With `yield_to_backups`: True if it continues beside backups."""
    locks: tuple[Path, ...] = ()
    """Folders of locks of additional pools. Configured pools, and pools whose top folder is a mount point or above the path, are
    found automatically.
    """
    max_pressure: float | None = MAX_PRESSURE
    """Maximum share of time (0 to 1) in which some process waits for the disks (PSI io, "some"); above it no block group is
    started. None: not checked.
    """
    wait_for_others: bool = False
    """True if it also waits for another exclusive operation and for backups, which otherwise end the run at once."""
    patience: float = 600.0
    """Maximum seconds to wait, each time, until the pressure falls."""
    dry_run: bool = False
    """True if nothing is moved."""
    devices: tuple[int, ...] = ()
    """Only block groups on one of these devices, by number; empty: any."""
    fill: int | None = None
    """Only block groups that are not on this device, until another device has as much unallocated space; None: all."""

    @property
    def by_device(self) -> bool:
        """Returns True if block groups are moved to or from a device."""
        return bool(self.devices) or self.fill is not None


@dataclass(frozen=True, slots=True)
class PlannedBlockGroup:
    """A block group of a plan, or the next one of a run."""

    number: int
    """Its position in the plan or run, from 1."""
    vaddr: int
    """Its logical address."""
    length: int
    """Bytes."""
    type: int
    """Flags of type and profile."""
    used: int
    """Bytes in use."""
    fragments: int
    """Number of free extents."""
    score: float
    """Its score."""
    benefit: float
    """Score per GiB moved."""
    cost: Cost
    """What moving it will cost."""
    estimate: Estimate
    """The expected gain."""
    moved_so_far: int
    """Bytes of the plan or run, including this one."""
    candidates: int
    """How many block groups were worth balancing when it was chosen, including this one."""
    left: int | None
    """The budget before it; None: no limit."""
    shares: Array | None = None
    """f64[MAP_CELLS], the used share of each cell of its map, by address; None in a plan, which does not read it."""

    @property
    def is_within(self) -> bool:
        """Returns True if the rest of the budget covers it."""
        return self.left is None or self.used <= self.left


@dataclass(frozen=True, slots=True)
class BalanceProgress:
    """Progress of the current block group."""

    left: int
    """Its used bytes at the filesystem's last commit. The kernel first copies and then changes the references, so this number stays
    constant for a while and falls in large steps.
    """
    written: int
    """Bytes that all programs wrote to the devices since the step started."""
    seconds: float
    """Seconds since the step started."""
    total_moved: int
    """Bytes of the run, including this step."""
    total_written: int
    """Bytes of the run, including this step."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The result of a block group."""

    group: PlannedBlockGroup
    """The block group, as planned."""
    started: datetime
    """When it started."""
    seconds: float
    """How long it took."""
    outcome: BalanceOutcome
    """How it ended."""
    moved: int
    """Its used bytes before, minus those still there."""
    written: int
    """Bytes that all programs wrote to all devices during it."""
    gained: float
    """The score of all block groups before, minus that after."""
    score: float
    """The score of the filesystem afterwards."""
    unallocated: int
    """Bytes of the filesystem afterwards."""
    error: str | None = None
    """The kernel's message; None: it succeeded."""
    obstacle: RelocationObstacle | None = None
    """The meaning of `error`; None: it is a plain error, or there is none."""
    freed: int = 0
    """Unallocated bytes afterwards, minus those before."""

    @property
    def is_failure(self) -> bool:
        """The failure needs the attention of an administrator; a swap file in the block group does not."""
        return self.outcome is BalanceOutcome.FAILED and self.obstacle is not RelocationObstacle.SWAP


@dataclass(frozen=True, slots=True)
class SpaceNumbers:
    """A filesystem at one time. Numbers are those of its data block groups."""

    block_groups: int
    """Their number."""
    allocated: int
    """Their length, bytes."""
    used: int
    """Bytes in use."""
    unallocated: int
    """See `btrkeep.pool.space_by_profile.Room`."""
    fragments: int
    """Number of free extents."""
    score: float
    """The sum of their scores."""
    largest_free: int
    """Bytes of the largest free extent."""
    free_in_large: int
    """Bytes in free extents of at least 16 MiB."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    filesystem: str
    """The UUID."""
    before: SpaceNumbers
    """The filesystem at the start."""
    after: SpaceNumbers
    """The filesystem at the end."""
    steps: tuple[StepDone, ...]
    """Its block groups."""
    started: datetime
    """When it started."""
    seconds: float
    """How long it took."""
    reason: StopReason
    """Why it ended."""
    why: str
    """The same in a sentence."""
    planned: tuple[PlannedBlockGroup, ...] = ()
    """All that would be balanced, only in a dry run."""
    signal: int | None = None
    """The signal that ended it; None: none did."""

    @property
    def moved(self) -> int:
        """Bytes of data that were moved."""
        return sum(step.moved for step in self.steps)

    @property
    def written(self) -> int:
        """Bytes written to all devices during the steps, by all programs."""
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
        """Block groups that were completely balanced."""
        return sum(step.outcome is BalanceOutcome.DONE for step in self.steps)


@dataclass(frozen=True, slots=True)
class BalanceStarted:
    """A run begins."""

    numbers: SpaceNumbers
    """The filesystem before."""
    settings: RunSettings
    """The settings."""


@dataclass(frozen=True, slots=True)
class Cancelling:
    """The run must end: a block group is being cancelled, which may take some seconds."""

    why: str
    """Why the run must end."""
    vaddr: int
    """The logical address of the block group."""


BalanceEvent = BalanceStarted | PlannedBlockGroup | BalanceProgress | Cancelling | StepDone | Waiting | Notice | Report
"""The events, in the main thread, in this order: the start; then for each block group its plan, its progress twice a second, maybe
its cancellation, and its result; then the report, unless the run ends with an exception.
"""
