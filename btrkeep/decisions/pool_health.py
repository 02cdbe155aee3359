"""Decides what is wrong with the pool, for every command that reports it, and when it has too little room for a transfer. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from btrkeep.config import Config
from btrkeep.config.values import MinFree
from btrkeep.decisions import findings as v
from btrkeep.decisions.findings import ERROR, NOTE, UNKNOWN, WARNING, Finding, PoolVerdict
from btrkeep.decisions.redundancy import Redundancy, redundancy_words
from btrkeep.decisions.schedule import NOTHING_MISSED, ScheduleVerdict, schedule_findings
from btrkeep.pool.model import Room
from btrkeep.units import counted, format_share, format_size

LEAST_METADATA = 32 << 20
MAKE_ROOM = "`backupd expire` deletes what is due; keep less, or add a device"
"""The hint for a pool with too little room."""


def least_metadata(total: int) -> int:
    """Bytes of room for metadata below which no transfer starts: 32 MiB, or a hundredth of a small pool."""
    return min(LEAST_METADATA, total // 100)


def for_metadata(room: Room) -> int:
    """Bytes that metadata can still take without another kind giving any back."""
    return max(room.unallocated, room.metadata_free)


def lacks_room(room: Room, min_free: MinFree) -> str:
    """Returns why no new transfer may start, or None. Free space in block groups and unallocated space are added up."""
    if room.available < min_free.bytes_of(room.total):
        return f"the pool has too little room: {room}, below min_free = {min_free}"
    if for_metadata(room) < least_metadata(room.total):
        return f"the pool has too little room for metadata: {room}"
    return ""


_FLOOR_SHARE, _FLOOR = 0.02, 4 << 30  # what btrfs-balancer leaves too
_LITTLE_METADATA = 256 << 20
_SLACK = 0.02  # how far below its limit the pool's use must come, for a level that sways must not ring twice a day


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Facts about the pool at a moment; None if unknown.

    `redundancy`: with a missing device it is read only with CAP_SYS_ADMIN.

    `fault`: why it cannot be used, with a hint; "" if it can. With a fault, nothing else is known. `foreign`: the pool to which the
    catalogue in `state` belongs, "" for this one. `lost`: the pool has backups, but the catalogue has none. `errors`: the non-zero
    counters by device number. `was_full`: more than `used_limit` was used at the last look. `schedule`: whether runs start in time.
    `left_devices`: the temporary devices that are recorded.
    """

    fault: str = ""
    hint: str = ""
    foreign: str | None = None
    lost: bool = False
    read_only: bool | None = None
    missing: tuple[int, ...] | None = None
    errors: Mapping[int, Mapping[str, int]] | None = None
    room: Room | None = None
    was_full: bool = False
    redundancy: Redundancy | None = None
    schedule: ScheduleVerdict = NOTHING_MISSED
    left_devices: tuple[str, ...] = ()


class CatalogueFacts(NamedTuple):
    """Facts that come from the catalogue; the fields are those of PoolFacts."""

    foreign: str | None = ""
    lost: bool = False
    was_full: bool = False
    redundancy: Redundancy | None = None


NOTHING_WRONG = CatalogueFacts()


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Limits from the configuration; `used_limit` is a share."""

    pool: Path
    state: Path
    min_free: MinFree
    used_limit: float

    @classmethod
    def of(cls, config: Config) -> "HealthLimits":
        """Returns the limits of a pool."""
        return cls(config.pool.path, config.pool.state, config.pool.min_free, config.notify.used_limit)


def judge_pool(facts: PoolFacts, limits: HealthLimits) -> PoolVerdict:
    """Returns all findings, in the order of CHECKS."""
    if facts.fault:
        return PoolVerdict((Finding(v.UNUSABLE, ERROR, facts.fault, facts.hint, unusable=True),), v.CHECKS[1:])
    findings = (
        *_catalogue(facts, limits),
        *_mount(facts, limits),
        *_devices(facts),
        *_room(facts, limits),
        *schedule_findings(facts.schedule),
    )
    return PoolVerdict(findings, tuple(_unlooked(facts)))


def _unlooked(facts: PoolFacts) -> Iterator[str]:
    of_room = (v.ROOM, v.UNALLOCATED, v.USED)
    known: dict[str, object] = {v.CATALOGUE: facts.foreign, v.READ_ONLY: facts.read_only, v.MISSING: facts.missing}
    known |= {v.ERRORS: facts.errors, **dict.fromkeys(of_room, facts.room), v.SCHEDULE: None if facts.schedule.unknown else True}
    yield from (check for check in v.CHECKS if check in known and known[check] is None)


def _catalogue(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    if facts.foreign:
        text = f"the catalogue in {limits.state} is of another pool ({facts.foreign})"
        yield Finding(v.CATALOGUE, ERROR, text, "set another `state`, or run `backupd rebuild`")
    elif facts.lost:
        yield lost(limits.state)


def clock_findings(doubt: str | None, synchronised: bool | None) -> Iterator[Finding]:
    """Yields findings about the machine's clock. `doubt`: why it cannot be right; `synchronised`: the kernel's opinion.

    An unsynchronised clock is only a note: it is usual in containers and many virtual machines, whose clock is right.
    """
    if doubt:
        yield Finding(v.CLOCK, WARNING, doubt, "see that the clock is right: timedatectl")
    if synchronised is False:
        yield Finding(
            v.CLOCK, NOTE, "the clock is not synchronised", "chrony or systemd-timesyncd keeps it right: apt install chrony"
        )
    elif synchronised is None:
        yield Finding(
            v.CLOCK, UNKNOWN, "the kernel does not let this process read its clock's state", "run this outside a service's sandbox"
        )


def lost(state: Path) -> Finding:
    """Returns the finding that the catalogue in that folder was lost."""
    text = f"the catalogue in {state} knows none of the backups that are in the pool: it was lost"
    hint = "see that `state` is the right folder, and mounted; then make it again from the pool: `backupd rebuild`"
    return Finding(v.CATALOGUE, ERROR, text, hint)


def _mount(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    if facts.read_only:
        hint = "look at the kernel's messages (dmesg), then mount it read-write"
        yield Finding(v.READ_ONLY, ERROR, f"{limits.pool} is mounted read-only: no backup can be made", hint, unusable=True)


def _devices(facts: PoolFacts) -> Iterator[Finding]:
    for devid in facts.missing or ():
        text = f"device {devid} is missing: the pool is mounted without it{_copies(facts)}"
        yield Finding(v.MISSING, ERROR, text, "`backupd doctor` has the commands that replace it", device=devid)
    for devid, errors in (facts.errors or {}).items():
        kinds = ", ".join(counted(count, f"{name} error") for name, count in errors.items() if count)
        hint = "`backupd doctor` shows what to do; the counters stay until they are reset"
        yield Finding(v.ERRORS, ERROR, f"device {devid} has counted {kinds}", hint, device=devid, count=sum(errors.values()))


def _copies(facts: PoolFacts) -> str:
    """Returns what a missing device means for the data, as a further sentence."""
    if facts.redundancy is None:
        return "; how many good copies are left could not be read"
    return f"; {redundancy_words(facts.redundancy)}"


class Shortage(StrEnum):
    """What there is too little of when nearly nothing is unallocated."""

    DATA = "data"  # nor is there free space inside data block groups: only deleting, or another device, helps
    METADATA = "metadata"  # what is free inside data block groups is of no use to metadata
    ALLOCATED = "allocated"  # both have free space inside their block groups


def unallocated_floor(total: int) -> int:
    """Unallocated bytes below which a filesystem of `total` bytes is short of them."""
    return min(_FLOOR, int(total * _FLOOR_SHARE))


def shortage(room: Room) -> Shortage:
    """Returns what is short in a pool of which nearly nothing is unallocated."""
    if room.free < unallocated_floor(room.total):
        return Shortage.DATA
    return Shortage.METADATA if room.metadata_free < min(_LITTLE_METADATA, room.total // 100) else Shortage.ALLOCATED


def _unallocated(room: Room) -> Finding:
    unallocated, metadata, free = (format_size(number) for number in (room.unallocated, room.metadata_free, room.free))
    level = ERROR if room.metadata_free < min(_LITTLE_METADATA, room.total // 100) else WARNING
    match shortage(room):
        case Shortage.DATA:
            text = f"data is full: {unallocated} are unallocated, and {free} are free in data block groups"
            hint = MAKE_ROOM
        case Shortage.METADATA:
            text = f"metadata is full: {unallocated} are unallocated, and metadata cannot use the {free} free in data block groups"
            hint = "`backupd expire` deletes what is due; `backupd doctor --fix room` moves data together"
        case _:
            rest = f"{free} are free in data block groups, {metadata} for metadata"
            text = f"all space is allocated: {unallocated} are unallocated; {rest}"
            hint = "`backupd doctor` has the commands that free some; `backupd doctor --fix room` does it"
    return Finding(v.UNALLOCATED, level, text, hint)


def _room(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    room = facts.room
    if room is None or not room.total:
        return
    if reason := lacks_room(room, limits.min_free):
        hint = MAKE_ROOM
        yield Finding(v.ROOM, ERROR, f"no transfer starts any more: {reason}", hint, unusable=True)
    if facts.left_devices:
        text = f"a temporary device is still a part of the pool: {', '.join(facts.left_devices)}"
        yield Finding(v.UNALLOCATED, WARNING, text, "`backupd doctor --fix room` removes it")
    elif room.unallocated < unallocated_floor(room.total):
        yield _unallocated(room)
    used, limit = 1 - room.available / room.total, limits.used_limit
    if used >= (limit - _SLACK if facts.was_full else limit):
        text = f"{format_share(used)} of the pool's {format_size(room.total)} are used, the limit is {format_share(limit)}: {room}"
        yield Finding(v.USED, WARNING, text, "keep less, or add a device; `backupd forecast` shows when it is full")
