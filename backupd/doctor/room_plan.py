"""Decides the steps of `backupd doctor --fix room`. Pure: from one reading of the filesystem to the next step.

A temporary device gives metadata and balance the space that they need. Then data block groups of the permanent devices are moved
into each other until enough space is unallocated. Finally all data on the temporary device is moved back, and the device is
removed. Each step depends only on the present state of the filesystem, so a killed run continues where it stopped
(docs/decisions/0067).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

DATA, METADATA = 1, 4  # BTRFS_BLOCK_GROUP_DATA, BTRFS_BLOCK_GROUP_METADATA, btrfs_tree.h
_MIB = 1 << 20
_RESERVED = _MIB  # at the start of each device, never part of a chunk
SMALLEST = 256 * _MIB
"""The size below which the kernel does not shrink a device, in bytes."""
_LEAST_DEVICE = 512 * _MIB
_PATIENCE = 12  # moving eleven block groups that are 91% full frees the size of one
_MOST_FAILED = 3
_REPEATS = 5  # an empty block group can appear on the temporary device at any moment
_MOST_RETURNED = 1000
_SUPPORTED = frozenset({"single", "dup", "raid1"})
_MOST_DEVICES = 2


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """A device of the filesystem."""

    devid: int
    """Its number."""
    size: int
    """Bytes."""
    path: str
    """The kernel's name for it."""
    uuid: str = ""
    """The device's UUID."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a chunk on one device."""

    devid: int
    """The device's number."""
    start: int
    """The offset on the device, bytes."""
    length: int
    """Bytes."""

    @property
    def end(self) -> int:
        """Returns the first byte after it."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class PlacedBlockGroup:
    """A block group and its position on the devices."""

    vaddr: int
    """Its logical address."""
    length: int
    """Bytes."""
    used: int
    """Bytes in use."""
    flags: int
    """Type and profile, as the kernel's flags."""
    pieces: tuple[Piece, ...]
    """Its parts on the devices."""

    @property
    def is_data(self) -> bool:
        """Returns True if it contains data, possibly with metadata."""
        return bool(self.flags & DATA)


@dataclass(frozen=True, slots=True)
class RoomReading:
    """The filesystem at one moment."""

    devices: tuple[PoolDevice, ...]
    """Its devices."""
    groups: tuple[PlacedBlockGroup, ...]
    """Its block groups."""
    profiles: frozenset[str]
    """The profiles of all types of block groups."""
    busy: str = ""
    """The running exclusive operation or scrub; "": none."""
    read_only: bool = False
    """True if it is mounted read-only."""
    missing: tuple[int, ...] = ()
    """Numbers of missing devices."""

    def unallocated(self, devid: int) -> int:
        """Bytes of a device that no chunk uses."""
        size = next(device.size for device in self.devices if device.devid == devid)
        taken = sum(piece.length for group in self.groups for piece in group.pieces if piece.devid == devid)
        return max(0, size - taken - _RESERVED)

    def usable(self, temporary: Sequence[int]) -> int:
        """Bytes that new block groups can use on the permanent devices; with raid1 each needs two devices."""
        free = [self.unallocated(device.devid) for device in self.devices if device.devid not in temporary]
        return min(free, default=0) if "raid1" in self.profiles else sum(free)

    def on(self, devids: Sequence[int]) -> list[PlacedBlockGroup]:
        """Returns the block groups that have a part on one of these devices."""
        return [group for group in self.groups if any(piece.devid in devids for piece in group.pieces)]


class Refusal(StrEnum):
    """Why nothing is started."""

    READ_ONLY = "read-only"
    MISSING = "missing device"
    BUSY = "busy"
    PROFILE = "profile"
    DEVICES = "devices"
    DATA_FULL = "data full"


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """The plan, before anything is changed."""

    count: int
    """Number of temporary devices."""
    size: int
    """Bytes of each temporary device."""
    unallocated: int
    """Unallocated bytes of the permanent devices now."""
    goal: int
    """The required value of `unallocated`."""
    gain: int
    """Free bytes inside data block groups."""
    refusal: Refusal | None = None
    """Why the repair may not start; None if it may."""
    details: str = ""
    """Details of `refusal` for the message."""

    @property
    def is_needed(self) -> bool:
        """Returns True if fewer bytes are unallocated than wanted."""
        return self.unallocated < self.goal


def plan(reading: RoomReading, floor: int, temporary: Sequence[int] = ()) -> RoomPlan:
    """Returns the plan. `floor`: the unallocated bytes below which the pool's health warns; `temporary`: devices that
    were added.
    """
    data = [group for group in reading.groups if group.is_data]
    longest = max((group.length for group in data), default=0)
    metadata = max((sum(piece.length for piece in group.pieces) for group in reading.groups if not group.is_data), default=0)
    count = 2 if "raid1" in reading.profiles else 1
    size = max(_LEAST_DEVICE, -(-(2 * longest + 2 * metadata + 64 * _MIB) // _MIB) * _MIB)
    gain = sum(group.length - group.used for group in data)
    goal = 2 * floor
    room_plan = RoomPlan(count, size, reading.usable(temporary), goal, gain)
    refusal, details = _refusal(reading, temporary, room_plan, longest)
    return RoomPlan(count, size, room_plan.unallocated, goal, gain, refusal, details)


def _refusal(reading: RoomReading, temporary: Sequence[int], room_plan: RoomPlan, longest: int) -> tuple[Refusal | None, str]:
    lasting = [device for device in reading.devices if device.devid not in temporary]
    if reading.read_only:
        return Refusal.READ_ONLY, ""
    if reading.missing:
        return Refusal.MISSING, ", ".join(map(str, reading.missing))
    if unsupported := sorted(reading.profiles - _SUPPORTED):
        return Refusal.PROFILE, ", ".join(unsupported)
    if len(lasting) > _MOST_DEVICES:
        return Refusal.DEVICES, str(len(lasting))
    if reading.busy:
        return Refusal.BUSY, reading.busy
    # The free space must exceed the rest of one block group; otherwise no move empties one.
    if not temporary and room_plan.is_needed and room_plan.unallocated + room_plan.gain - longest < room_plan.goal:
        return Refusal.DATA_FULL, ""
    return None, ""


class RoomEnd(StrEnum):
    """The reason why no further block group of the permanent devices is moved, or why the whole job ends."""

    REACHED = "reached"
    EXHAUSTED = "exhausted"  # there is no other block group
    NO_GAIN = "no gain"
    NO_SPACE = "no space"
    STUCK = "stuck"  # the temporary device cannot be emptied


@dataclass(frozen=True, slots=True)
class MoveBlockGroup:
    """Relocate a block group."""

    vaddr: int
    """Its logical address."""
    flags: int
    """Type and profile, as the kernel's flags."""
    used: int
    """Bytes in use."""
    back: bool
    """True if it is moved away from a temporary device."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """Lets the filesystem use only `size` bytes of a temporary device, so that nothing new is allocated after its last chunk."""

    devid: int
    """The device's number."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class RemoveDevice:
    """Removes a temporary device that has no chunk."""

    devid: int
    """The device's number."""


@dataclass(frozen=True, slots=True)
class TurnBack:
    """From now on, data on the temporary devices is moved back."""

    reason: RoomEnd
    """Why no further block group is moved to free space."""


@dataclass(frozen=True, slots=True)
class TurnForth:
    """The data moved back has used the space again, because extents are not split and the free space is fragmented: another round
    is needed.

    Moving more at once does not help. With the temporary device, new block groups are longer, and more of them stays free.
    """


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing left to do, or nothing can be done (STUCK)."""

    reason: RoomEnd
    """Why it ended."""


RoomStep = MoveBlockGroup | Shrink | RemoveDevice | TurnBack | TurnForth | End


@dataclass(slots=True)
class RoomProgress:
    """The work of this process."""

    moved: set[int] = field(default_factory=set)
    """Addresses of block groups that were moved."""
    failed: set[int] = field(default_factory=set)
    """Addresses of block groups that the kernel did not move."""
    best: int | None = None
    """The most bytes gained so far; None: nothing was moved yet."""
    since: int = 0
    """Number of moves since `best` was reached."""
    returned: int = 0
    """Number of moves from temporary devices."""
    empty: int = 0
    """Number of empty block groups among those of `returned`."""

    def note(self, reading: RoomReading, temporary: Sequence[int]) -> None:
        """Records the result of a move: unallocated bytes of the permanent devices, less the bytes that have to be moved
        back to them.
        """
        gained = reading.usable(temporary) - to_return(reading, temporary)
        self.since = 0 if self.best is None or gained > self.best else self.since + 1
        self.best = gained if self.best is None else max(self.best, gained)


def to_return(reading: RoomReading, temporary: Sequence[int]) -> int:
    """Bytes of the permanent devices that the block groups on temporary devices will use, at most."""
    per_device = "raid1" in reading.profiles
    return sum(
        group.length if per_device else sum(piece.length for piece in group.pieces if piece.devid in temporary)
        for group in reading.on(temporary)
    )


def next_step(
    reading: RoomReading,
    temporary: Sequence[int],
    goal: int,
    highest: int,
    *,
    is_returning: bool,
    is_last_round: bool,
    progress: RoomProgress,
) -> RoomStep:
    """Returns the next step. `highest`: the highest address of a block group when the round began; later block groups are not
    moved.
    """
    if not is_returning:
        return _gaining(reading, temporary, goal, highest, progress)
    return _returning(reading, temporary, goal, is_last_round, progress)


def _gaining(reading: RoomReading, temporary: Sequence[int], goal: int, highest: int, progress: RoomProgress) -> RoomStep:
    if reading.usable(temporary) - to_return(reading, temporary) >= goal:
        return TurnBack(RoomEnd.REACHED)
    if len(progress.failed) >= _MOST_FAILED:
        return TurnBack(RoomEnd.NO_SPACE)
    if progress.since >= _PATIENCE:
        return TurnBack(RoomEnd.NO_GAIN)
    away = {group.vaddr for group in reading.on(temporary)}
    candidates = [
        group
        for group in reading.groups
        if group.is_data
        and group.vaddr <= highest
        and group.used < group.length
        and group.vaddr not in away | progress.moved | progress.failed
    ]
    if not candidates:
        return TurnBack(RoomEnd.EXHAUSTED)
    least = min(candidates, key=lambda group: (group.used / group.length, group.vaddr))
    return MoveBlockGroup(least.vaddr, least.flags, least.used, back=False)


def _returning(reading: RoomReading, temporary: Sequence[int], goal: int, is_last_round: bool, progress: RoomProgress) -> RoomStep:
    present = [device for device in reading.devices if device.devid in temporary]
    if not present:
        return End(RoomEnd.REACHED)
    for device in present:
        pieces = [piece for group in reading.groups for piece in group.pieces if piece.devid == device.devid]
        size = max(SMALLEST, -(-max((piece.end for piece in pieces), default=0) // _MIB) * _MIB)
        if device.size > size:
            return Shrink(device.devid, size)
    away = reading.on(temporary)
    # Without unallocated space on the permanent devices, the kernel can make a metadata chunk on the temporary one at any time.
    if not any(group.used for group in away) and reading.usable(temporary) < goal and not is_last_round:
        return TurnForth()
    if not away:  # shrink all of them before removing one: otherwise the kernel moves its chunks to the others
        return RemoveDevice(present[0].devid)
    left = [group for group in away if group.vaddr not in progress.failed]
    if not left or progress.returned >= _MOST_RETURNED or progress.empty >= _REPEATS:
        return End(RoomEnd.STUCK)
    last = max(left, key=lambda group: max(piece.start for piece in group.pieces if piece.devid in temporary))
    return MoveBlockGroup(last.vaddr, last.flags, last.used, back=True)
