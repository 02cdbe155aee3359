"""Decides what is wrong with the pool, for every command that reports it; when it has too little free space for a transfer; and how
many good copies its devices still have of all data. Pure.

A copy is what the loss of one more device destroys: raid5 counts as two copies, raid6 as three. Both copies of `dup` are on one
device.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from btrkeep.config import Config
from btrkeep.config.values import SizeOrShare
from btrkeep.decisions import FactReader, FactWriter, parse_fact
from btrkeep.decisions import findings as v
from btrkeep.decisions.findings import ERROR, NOTE, UNKNOWN, WARNING, Finding, PoolVerdict
from btrkeep.decisions.schedule import NOTHING_MISSED, ScheduleVerdict, schedule_findings
from btrkeep.errors import READ_ONLY_HINT
from btrkeep.pool.space_by_profile import ChunkUse, Room
from btrkeep.units import counted, format_share, format_size

LEAST_METADATA = 32 << 20
EXPIRE = "`backupd expire` deletes backups that are due; keep fewer backups, or add a device"
NO_POLICY = "no host has a retention policy, so nothing expires: set one in [retention], or add a device"


def room_advice(config: Config) -> str:
    """Returns the hint for a pool with too little free space."""
    policies = [*(host.retention for host in config.every_host.values()), *(copy.retention for copy in config.replicas.values())]
    return NO_POLICY if all(policy.missing for policy in policies) else EXPIRE


def least_metadata(total: int) -> int:
    """Free bytes for metadata below which no transfer starts: 32 MiB, or a hundredth of a small pool."""
    return min(LEAST_METADATA, total // 100)


def for_metadata(room: Room) -> int:
    """Returns the bytes that metadata can still use without taking space from another type."""
    return max(room.unallocated, room.metadata_free)


def lacks_room(room: Room, min_free: SizeOrShare) -> str:
    """Returns why no new transfer may start, or None. Free space in block groups and unallocated space are added."""
    if room.available < min_free.bytes_of(room.total):
        return f"the pool has too little free space: {room}, below min_free = {min_free}"
    if for_metadata(room) < least_metadata(room.total):
        return f"the pool has too little free space for metadata: {room}"
    return ""


_FLOOR_SHARE, _FLOOR = 0.02, 4 << 30  # the same amount as btrfs-balancer leaves
_LITTLE_METADATA = 256 << 20
_SLACK = 0.02  # how far below the limit usage must fall to clear the alarm, so that a fluctuating level does not alarm twice a day


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How many good copies the used bytes have."""

    copies: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Bytes by type ("data") and number of good copies."""
    lost: int = 0
    """Bytes with all copies on missing devices."""
    reduced: int = 0
    """Bytes with one good copy left although their profile keeps more."""
    missing: tuple[int, ...] = ()
    """Numbers of the missing devices."""

    @property
    def single(self) -> int:
        """Returns the bytes with one good copy, because of their profile or because a device is missing."""
        return sum(of.get(1, 0) for of in self.copies.values())


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The facts about the pool at a time; None: unknown. With a `fault` everything else is unknown."""

    fault: str = ""
    """Why the pool cannot be used; "" if it can."""
    hint: str = ""
    """What to do about `fault`."""
    foreign: str | None = None
    """The pool to which the catalogue in the state folder belongs; "": this one."""
    lost: bool = False
    """True if the pool has backups, but the catalogue has none."""
    read_only: bool | None = None
    """True if the filesystem is mounted read-only."""
    missing: tuple[int, ...] | None = None
    """Numbers of the missing devices."""
    errors: Mapping[int, Mapping[str, int]] | None = None
    """The counters that are not zero, by device number and by name."""
    room: Room | None = None
    """Size and free space of the filesystem."""
    was_full: bool = False
    """True if more than `used_limit` was used at the last check."""
    redundancy: Redundancy | None = None
    """How many good copies the used bytes have. If a device is missing, it is read only with CAP_SYS_ADMIN."""
    schedule: ScheduleVerdict = NOTHING_MISSED
    """Whether runs start in time."""
    left_devices: tuple[str, ...] = ()
    """The recorded temporary devices."""


class CatalogueFacts(NamedTuple):
    """Facts that come from the catalogue; the fields are those of PoolFacts."""

    foreign: str | None = ""
    lost: bool = False
    was_full: bool = False
    redundancy: Redundancy | None = None


NOTHING_WRONG = CatalogueFacts()


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The configured limits."""

    pool: Path
    """The pool's folder."""
    state: Path
    """The state folder."""
    min_free: SizeOrShare
    """Free space below which no transfer starts."""
    used_limit: float
    """The share of used space at which there is an alarm, 0 to 1."""
    advice: str = EXPIRE
    """What to do about too little space."""

    @classmethod
    def of(cls, config: Config) -> "HealthLimits":
        """Returns the limits of a pool."""
        return cls(config.pool.path, config.pool.state, config.pool.min_free, config.notify.used_limit, room_advice(config))


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
    values: dict[str, object] = {v.CATALOGUE: facts.foreign, v.READ_ONLY: facts.read_only, v.MISSING: facts.missing}
    values |= {v.ERRORS: facts.errors, **dict.fromkeys(of_room, facts.room), v.SCHEDULE: None if facts.schedule.unknown else True}
    yield from (check for check in v.CHECKS if check in values and values[check] is None)


def _catalogue(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    if facts.foreign:
        text = f"the catalogue in {limits.state} belongs to another pool ({facts.foreign})"
        yield Finding(v.CATALOGUE, ERROR, text, "set another `state`, or run `backupd rebuild`")
    elif facts.lost:
        yield lost(limits.state)


def clock_findings(doubt: str | None, synchronised: bool | None) -> Iterator[Finding]:
    """Yields findings about the machine's clock. `doubt`: why it cannot be right; `synchronised`: according to the kernel.

    An unsynchronised clock is only a note: it is usual in containers and many virtual machines, whose clock is right.
    """
    if doubt:
        yield Finding(v.CLOCK, WARNING, doubt, "check that the clock is right: `timedatectl`")
    if synchronised is False:
        yield Finding(
            v.CLOCK, NOTE, "the clock is not synchronised", "chrony or systemd-timesyncd keeps it right: `apt install chrony`"
        )
    elif synchronised is None:
        yield Finding(
            v.CLOCK, UNKNOWN, "the kernel does not let this process read its clock's state", "run this outside a service's sandbox"
        )


def lost(state: Path) -> Finding:
    """Returns the finding that the catalogue in that folder was lost."""
    text = f"the catalogue in {state} lists none of the backups in the pool: it was lost"
    hint = "check that `state` is the right folder, and mounted; then rebuild it from the pool: `backupd rebuild`"
    return Finding(v.CATALOGUE, ERROR, text, hint)


def _mount(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    if facts.read_only:
        text = f"{limits.pool} is mounted read-only: no backup can be made"
        yield Finding(v.READ_ONLY, ERROR, text, READ_ONLY_HINT, unusable=True)


def _devices(facts: PoolFacts) -> Iterator[Finding]:
    for devid in facts.missing or ():
        text = f"device {devid} is missing: the pool is mounted without it{_copies(facts)}"
        yield Finding(v.MISSING, ERROR, text, "`backupd doctor` has the commands that replace it", device=devid)
    for devid, errors in (facts.errors or {}).items():
        kinds = ", ".join(counted(count, f"{name} error") for name, count in errors.items() if count)
        hint = "`backupd doctor` shows what to do; the counters stay until they are reset"
        yield Finding(v.ERRORS, ERROR, f"device {devid} has counted {kinds}", hint, device=devid, count=sum(errors.values()))


def _copies(facts: PoolFacts) -> str:
    """Returns the effect of a missing device on the data, as a further sentence."""
    if facts.redundancy is None:
        return "; the number of remaining good copies could not be read"
    return f"; {redundancy_words(facts.redundancy)}"


class Shortage(StrEnum):
    """The type of space that is short when nearly nothing is unallocated."""

    DATA = "data"  # data block groups have no free space either: only deleting, or another device, helps
    METADATA = "metadata"  # metadata cannot use the free space inside data block groups
    ALLOCATED = "allocated"  # both have free space inside their block groups


def unallocated_floor(total: int) -> int:
    """Returns the unallocated bytes below which a filesystem of `total` bytes has too few."""
    return min(_FLOOR, int(total * _FLOOR_SHARE))


def shortage(room: Room) -> Shortage:
    """Returns what is short in a pool of which nearly nothing is unallocated."""
    if room.free < unallocated_floor(room.total):
        return Shortage.DATA
    return Shortage.METADATA if room.metadata_free < min(_LITTLE_METADATA, room.total // 100) else Shortage.ALLOCATED


def _unallocated(room: Room, advice: str) -> Finding:
    unallocated, metadata, free = (format_size(number) for number in (room.unallocated, room.metadata_free, room.free))
    level = ERROR if room.metadata_free < min(_LITTLE_METADATA, room.total // 100) else WARNING
    match shortage(room):
        case Shortage.DATA:
            text = f"data is full: {unallocated} are unallocated, and {free} are free in data block groups"
            hint = advice
        case Shortage.METADATA:
            text = f"metadata is full: {unallocated} are unallocated, and metadata cannot use the {free} free in data block groups"
            hint = f"`backupd doctor --fix room` moves data together; {advice}"
        case _:
            rest = f"{free} are free in data block groups, {metadata} for metadata"
            text = f"all space is allocated: {unallocated} are unallocated; {rest}"
            hint = "`backupd doctor` shows the commands that make space unallocated; `backupd doctor --fix room` runs them"
    return Finding(v.UNALLOCATED, level, text, hint)


def _room(facts: PoolFacts, limits: HealthLimits) -> Iterator[Finding]:
    room = facts.room
    if room is None or not room.total:
        return
    if reason := lacks_room(room, limits.min_free):
        yield Finding(v.ROOM, ERROR, f"no further transfer starts: {reason}", limits.advice, unusable=True)
    if facts.left_devices:
        text = f"a temporary device is still part of the pool: {', '.join(facts.left_devices)}"
        yield Finding(v.UNALLOCATED, WARNING, text, "`backupd doctor --fix room` removes it")
    elif room.unallocated < unallocated_floor(room.total):
        yield _unallocated(room, limits.advice)
    used, limit = 1 - room.available / room.total, limits.used_limit
    if used >= (limit - _SLACK if facts.was_full else limit):
        text = f"{format_share(used)} of the pool's {format_size(room.total)} are used, the limit is {format_share(limit)}: {room}"
        yield Finding(v.USED, WARNING, text, "keep fewer backups, or add a device; `backupd usage` shows what each host uses")


_REDUNDANCY = "redundancy"
PROMISED: Mapping[str, int] = {
    "single": 1, "raid0": 1, "dup": 2, "raid1": 2, "raid10": 2, "raid5": 2, "raid1c3": 3, "raid6": 3, "raid1c4": 4,
}  # fmt: skip
"""How many copies a profile keeps while all devices are present."""
_STRIPED = ("single", "raid0", "dup")
"""Profiles that lose data with the first missing device."""


def copies_left(profile: str, devids: tuple[int, ...], missing: Collection[int]) -> int:
    """Returns how many copies of chunks with this profile are left on these devices. An unknown profile counts as one copy."""
    away = sum(devid in missing for devid in devids)
    promised = PROMISED.get(profile, 1)
    if profile in _STRIPED or profile not in PROMISED:
        return 0 if away else promised
    if profile == "raid10":  # stripes mirror each other in consecutive pairs
        pairs = zip(devids[::2], devids[1::2], strict=False)
        return min((promised - sum(devid in missing for devid in pair) for pair in pairs), default=0)
    return max(0, promised - away)


def redundancy(uses: Iterable[ChunkUse], missing: Collection[int]) -> Redundancy:
    """Returns the good copies of everything. If no device is missing, `devids` of the chunks may be empty."""
    chunks = list(uses)
    best = Counter[str]()
    for chunk in chunks:
        best[chunk.type] = max(best[chunk.type], PROMISED.get(chunk.profile, 1))
    copies: dict[str, Counter[int]] = {}
    lost = reduced = 0
    for chunk in chunks:
        left = copies_left(chunk.profile, chunk.devids, missing)
        copies.setdefault(chunk.type, Counter())[left] += chunk.used
        lost += chunk.used if left == 0 else 0
        reduced += chunk.used if left == 1 and best[chunk.type] > 1 else 0
    return Redundancy({kind: dict(of) for kind, of in copies.items()}, lost, reduced, tuple(sorted(missing)))


def note_redundancy(facts: FactWriter, current: Redundancy | None) -> None:
    """Stores the redundancy for programs that may not read the chunks; only while a device is missing, because otherwise every
    program can compute it.
    """
    text = json.dumps(redundancy_as_json(current), sort_keys=True) if current and current.missing else None
    if text != facts.get_fact(_REDUNDANCY):
        facts.set_fact(_REDUNDANCY, text)


def noted_redundancy(facts: FactReader) -> Redundancy | None:
    """Returns the newest stored redundancy; None if none is stored."""
    return parse_fact(facts.get_fact(_REDUNDANCY), _noted, None)


def _noted(given: Mapping[str, Any]) -> Redundancy:
    copies: dict[str, dict[int, int]] = {}
    for row in given["copies"]:
        copies.setdefault(str(row["type"]), {})[int(row["copies"])] = int(row["bytes"])
    return Redundancy(copies, int(given["lost"]), int(given["one_good_copy_left"]), tuple(map(int, given["missing"])))


def redundancy_words(current: Redundancy) -> str:
    """Formats it in one line: lost bytes, bytes with one good copy left, and the number of copies of the rest."""
    return "; ".join(_parts(current)) or "nothing is stored"


def _parts(current: Redundancy) -> Iterator[str]:
    if current.lost:
        yield f"{format_size(current.lost)} cannot be read: every copy is on a missing device"
    if current.reduced:
        yield f"{format_size(current.reduced)} have one good copy left ({_by_type(current, 1)})"
    for count in sorted({count for of in current.copies.values() for count in of} - {0}):
        if count > 1 or not current.reduced:
            by_type = _by_type(current, count)
            if by_type:
                yield f"{'one copy' if count == 1 else f'{count} copies'} of {by_type}"


def _by_type(current: Redundancy, count: int) -> str:
    sizes = ((kind, of.get(count, 0)) for kind, of in sorted(current.copies.items()))
    return ", ".join(f"{format_size(size)} {kind}" for kind, size in sizes if size)


def redundancy_as_json(current: Redundancy) -> dict[str, Any]:
    """Returns it for --json."""
    sizes = ((kind, count, size) for kind, of in sorted(current.copies.items()) for count, size in sorted(of.items()))
    copies = [{"type": kind, "copies": count, "bytes": size} for kind, count, size in sizes]
    return {"copies": copies, "lost": current.lost, "one_good_copy_left": current.reduced, "missing": list(current.missing)}
