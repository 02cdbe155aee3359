"""Decides which backups of another pool are fetched, in which order, from which parent, and what ends a stream. Pure.

Backups are identified by the UUID of their origin, never by name. A backup is fetched if this pool's own retention would keep it
among all backups of both sides, so nothing is fetched that the next expiry would delete.

An attacker who has taken over the other server can send without end, for example the same block of the same file again and again:
that takes no space, so `min_free` does not end it. The size that the server announces limits the stream of an honest server, but
not exactly: a backup may contain files that the newest transfer did not count, because a path failed or a deletion was refused. So
the limit is generous: a stream of an honest server must never reach it. The words of `receive_cause` are those of btrfs-progs 5.10
to 6.19 (cmds/receive.c, common/send-stream.c), and of the C library that they use.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from zoneinfo import ZoneInfo

from btrkeep.backup_states import ALTERED
from btrkeep.config import Retention
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.due import latest
from btrkeep.decisions.retention import Candidate, decide
from btrkeep.units import parse_backup_name


class Obstacle(StrEnum):
    """Why nothing of a host can be fetched, or why it cannot be demoted."""

    BACKED_UP_HERE = "backed-up-here"
    OF_ANOTHER_POOL = "of-another-pool"
    OF_ANOTHER_REPLICA = "of-another-replica"
    RENAMED_THERE = "renamed-there"
    NAME_REUSED_THERE = "name-reused-there"
    OTHER_NAME_HERE = "other-name-here"
    FORGOTTEN_HERE = "forgotten-here"
    OTHER_BACKUP = "other-backup"
    BOTH_BACK_UP = "both-back-up"
    NOBODY_BACKS_UP = "nobody-backs-up"
    NOT_THERE = "not-there"
    NOTHING_COMMON = "nothing-common"


@dataclass(frozen=True, slots=True)
class RemoteBackup:
    """A backup of the other pool."""

    name: str
    """Its name there."""
    uuid: str
    """Identifies the backup in every pool."""
    state: str
    """Its state there."""


@dataclass(frozen=True, slots=True)
class LocalBackup:
    """A final backup of this pool."""

    name: str
    """Its name here."""
    uuid: str
    """Identifies the backup in every pool."""
    state: str
    """Its state here."""
    going: bool = False
    """True if expiry has marked it."""
    is_original: bool = True
    """True if it was not changed since it became final."""


@dataclass(frozen=True, slots=True)
class ReplicaMark:
    """The notes of this pool about a fetched host: its origin pool and its replica."""

    pool: str
    replica: str


@dataclass(frozen=True, slots=True)
class LocalHost:
    """A host in this pool."""

    backups: Sequence[LocalBackup] = ()
    """Its final backups here."""
    mark: ReplicaMark | None = None
    """The notes about its origin; None if this pool backs it up."""
    forgotten: bool = False
    """True if `backupd forget` was called for it here."""
    refused: Collection[str] = ()
    """Names of backups that were deleted here on request."""
    is_known: bool = False
    """True if this pool has a folder for it."""
    damaged: Collection[str] = ()
    """Names of backups with files that are known to be damaged."""
    unreadable: Collection[str] = ()
    """Names of backups that are known to be damaged completely, so no difference to them can be received."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One backup to fetch. `parent`: a backup that both sides have, or will have by then; None sends everything.

    `again`: it replaces a damaged one.
    """

    backup: RemoteBackup
    parent: RemoteBackup | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Parents:
    """The backups of a host that both pools have and to which a difference can be received."""

    whole: tuple[RemoteBackup, ...] = ()
    """Those without known damage in this pool."""
    damaged: tuple[RemoteBackup, ...] = ()
    """Those with damaged files, whose damage the difference would inherit."""

    def of(self, backup: RemoteBackup, *, again: bool) -> RemoteBackup | None:
        """Returns the nearest earlier one without damage, else the nearest later one, else the nearest with damage, unless the
        backup is fetched `again` because it is damaged; None: all of it is sent.
        """
        return _nearest(self.whole, backup) or (None if again else _nearest(self.damaged, backup))

    def with_fetched(self, fetch: Fetch) -> "Parents":
        """Returns the common backups after a fetch."""
        if fetch.parent and fetch.parent in self.damaged:
            return replace(self, damaged=(*self.damaged, fetch.backup))
        return replace(self, whole=(*self.whole, fetch.backup))

    def without(self, backup: RemoteBackup) -> "Parents":
        """Returns the others, because that one cannot be read."""
        left = (tuple(candidate for candidate in ones if candidate != backup) for ones in (self.whole, self.damaged))
        return Parents(*left)


@dataclass(frozen=True, slots=True)
class HostFetches:
    """The fetches for a host."""

    host: str
    """Its name."""
    fetches: tuple[Fetch, ...] = ()
    """Its backups to fetch, oldest first."""
    present: tuple[str, ...] = ()
    """Names of the backups that both pools have now."""
    parents: Parents = Parents()
    """Those of them that can be parents."""
    obstacle: Obstacle | None = None
    """Why nothing can be fetched; None: it can be."""
    text: str = ""
    """Details of `obstacle`, such as a pool's name."""

    @property
    def common(self) -> str | None:
        """Returns the newest of those."""
        return max(self.present, default=None)

    @property
    def former_name(self) -> str | None:
        """Returns the name under which this pool has the host, if it is renamed in the other pool."""
        return self.text if self.obstacle is Obstacle.RENAMED_THERE else None


def plan_fetches(
    host: str,
    far_backups: Sequence[RemoteBackup],
    here: LocalHost,
    wanted: ReplicaMark,
    replica: ReplicaSettings,
    zone: ZoneInfo,
    now: datetime,
    *,
    damaged: bool = False,
) -> HostFetches:
    """Plans the fetches for a host. `wanted`: the mark for its notes. `damaged`: backups that are damaged here and are fetched
    again.
    """
    if obstacle := _obstacle(here, wanted, far_backups):
        return HostFetches(host, obstacle=obstacle[0], text=obstacle[1])
    names = {backup.name: backup.uuid for backup in here.backups}
    if other := [backup.name for backup in far_backups if names.get(backup.name, backup.uuid) != backup.uuid]:
        return HostFetches(host, obstacle=Obstacle.OTHER_BACKUP, text=other[0])
    present = {backup.uuid for backup in here.backups}
    original = {backup.uuid for backup in here.backups if backup.is_original}
    common = [backup for backup in far_backups if backup.uuid in original]
    new = [
        backup
        for backup in far_backups
        if backup.uuid not in present and backup.name not in here.refused and not _is_future(backup.name, now)
    ]
    new = _without_replacing(new, here.backups, replica.retention, zone, now)
    kept = _kept([*here.backups, *new], replica.retention, zone, now) if new else frozenset()
    fetched = [backup for backup in new if backup.name in kept]
    if replica.newest_only and fetched:
        newest = max(fetched, key=_by_name)
        fetched = [newest] if not common or newest.name > max(common, key=_by_name).name else []
    bad = {*here.damaged, *here.unreadable}
    altered = {backup.name for backup in here.backups if backup.state == ALTERED}  # altered backups are not in `common`
    again = [backup for backup in far_backups if damaged and backup.uuid in present and backup.name in {*bad, *altered}]
    parents = Parents(
        tuple(backup for backup in common if backup.name not in bad),
        tuple(
            backup
            for backup in common
            if backup.name in here.damaged and backup.name not in here.unreadable and backup not in again
        ),
    )
    return HostFetches(host, with_parents(fetched, again, parents), tuple(backup.name for backup in common), parents)


def misplaced(
    remote_hosts: Mapping[str, tuple[Collection[str], Sequence[RemoteBackup]]], near: Mapping[str, LocalHost], pool: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns two mappings for hosts with different names in the two pools: from the name in this pool to the name in the other
    pool, if that reports the rename; and from the name there to the name here of any host that has a backup of it.

    `remote_hosts`: the former names and the backups of each host that is backed up in the other pool; `pool`: its id.
    """
    places: dict[str, set[str]] = {}
    for name, host in near.items():
        for backup in host.backups:
            places.setdefault(backup.uuid, set()).add(name)
    owners: dict[str, set[str]] = {}
    held: dict[str, str] = {}
    for name, (_, backups) in remote_hosts.items():
        for here in sorted({place for backup in backups for place in places.get(backup.uuid, ())}):
            owners.setdefault(here, set()).add(name)
            if here != name:
                held.setdefault(name, here)
    renamed: dict[str, str] = {}
    for name, (was, _) in remote_hosts.items():
        for old in was:
            near_host, of = near.get(old), owners.get(old, set())
            if old == name or near_host is None or near_host.mark is None or near_host.mark.pool != pool or old in of:
                continue
            if name in of or (not of and name not in near):
                renamed.setdefault(old, name)
    return renamed, held


def _is_future(name: str, now: datetime) -> bool:
    started = parse_backup_name(name)
    return started is not None and started > latest(now)


def _without_replacing(
    new: Sequence[RemoteBackup], here: Sequence[LocalBackup], policy: Retention, zone: ZoneInfo, now: datetime
) -> list[RemoteBackup]:
    """Returns `new` without those older than the newest one here, if with them a backup would expire here that is kept now.

    Otherwise backups that the other pool invents for past days could replace the genuine ones.
    """
    newest = max((near_backup.name for near_backup in here), default="")
    late = [backup for backup in new if backup.name < newest]
    if not late or _kept(here, policy, zone, now) <= _kept([*here, *late], policy, zone, now):
        return list(new)
    return [backup for backup in new if backup.name > newest]


def _by_name(backup: RemoteBackup) -> str:
    return backup.name


def demotion_obstacle(
    far_backups: Sequence[RemoteBackup], here: Sequence[LocalBackup], *, is_copy_there: bool
) -> tuple[Obstacle, str] | None:
    """Returns why a host that is backed up here cannot become a copy of the other pool's host, with the subject; None if it can.

    `is_copy_there`: the other pool fetches it as well, so neither would back it up.
    """
    if not far_backups:
        return Obstacle.NOT_THERE, ""
    if is_copy_there:
        return Obstacle.NOBODY_BACKS_UP, ""
    names = {near_backup.name: near_backup.uuid for near_backup in here}
    if other := [backup.name for backup in far_backups if names.get(backup.name, backup.uuid) != backup.uuid]:
        return Obstacle.OTHER_BACKUP, other[0]
    if not {near_backup.uuid for near_backup in here} & {backup.uuid for backup in far_backups}:
        return Obstacle.NOTHING_COMMON, ""
    return None


def _obstacle(here: LocalHost, wanted: ReplicaMark, far_backups: Sequence[RemoteBackup]) -> tuple[Obstacle, str] | None:
    if here.forgotten:
        return Obstacle.FORGOTTEN_HERE, ""
    if here.mark is None:
        if {backup.uuid for backup in here.backups} & {backup.uuid for backup in far_backups}:
            return Obstacle.BOTH_BACK_UP, wanted.replica
        return (Obstacle.BACKED_UP_HERE, "") if here.is_known else None
    if here.mark.pool != wanted.pool:
        return Obstacle.OF_ANOTHER_POOL, here.mark.pool
    return None


def _kept(backups: Sequence[LocalBackup | RemoteBackup], policy: Retention, zone: ZoneInfo, now: datetime) -> frozenset[str]:
    candidates = [
        Candidate(backup.name, started, backup.state)
        for backup in backups
        if (started := parse_backup_name(backup.name)) is not None
    ]
    return frozenset(decision.name for decision in decide(candidates, policy, zone, now) if decision.keep)


def with_parents(new: Iterable[RemoteBackup], again: Iterable[RemoteBackup], parents: Parents) -> tuple[Fetch, ...]:
    """Assigns its parent to each backup, oldest first; a backup fetched earlier can be a parent.

    A backup that is fetched `again` is damaged and cannot be a parent before it has been fetched.
    """
    fetches, repeated = list[Fetch](), tuple(again)
    for backup in sorted([*new, *repeated], key=_by_name):
        is_again = backup in repeated
        fetches.append(Fetch(backup, parents.of(backup, again=is_again), is_again))
        parents = parents.with_fetched(fetches[-1])
    return tuple(fetches)


def planned_again(fetches: Iterable[Fetch], parents: Parents) -> tuple[Fetch, ...]:
    """Returns the same fetches with the remaining parents."""
    left = tuple(fetches)
    return with_parents(
        [fetch.backup for fetch in left if not fetch.again], [fetch.backup for fetch in left if fetch.again], parents
    )


def _nearest(backups: Iterable[RemoteBackup], backup: RemoteBackup) -> RemoteBackup | None:
    ordered = sorted(backups, key=_by_name)
    before = [other for other in ordered if other.name < backup.name]
    return before[-1] if before else next(iter(ordered), None)


OBSTACLES: Mapping[Obstacle, str] = {
    Obstacle.BACKED_UP_HERE: "it is backed up into this pool itself: rename the host in one of the two pools",
    Obstacle.OF_ANOTHER_POOL: "its backups here were fetched from another pool ({text}): run `backupd forget {host}`, then it is "
    "fetched once they are deleted; or name only other hosts in the replica's `hosts`; or back it up here: "
    "`backupd promote {host}`",
    Obstacle.OF_ANOTHER_REPLICA: "the replica {text} has it too: name it in the `hosts` of only one of the two",
    Obstacle.NAME_REUSED_THERE: "the other pool now calls this host {text}, and calls a different host {host}; first run "
    "`backupd rename {host} {text}` here, or choose another name if {text} has backups here; then {host} is fetched",
    Obstacle.OTHER_NAME_HERE: "this pool has its backups under the name {text}: run `backupd rename {text} {host}`, or "
    "`backupd forget` for one of the two names",
    Obstacle.RENAMED_THERE: "the other pool has renamed {text} to {host}: run `backupd rename {text} {host}` here too",
    Obstacle.FORGOTTEN_HERE: "it is forgotten here: `backupd forget {host} --undo` undoes that",
    Obstacle.OTHER_BACKUP: "the name {text} belongs to different backups here and in the other pool; nothing is fetched",
    Obstacle.BOTH_BACK_UP: "both pools back it up: to stop that here, run `backupd demote {text} {host}`; to stop it on the other "
    "server, run `demote` there, with the name of its replica of this pool",
    Obstacle.NOBODY_BACKS_UP: "each of the two pools treats it as a copy from the other: `backupd promote {host}` in one of them",
    Obstacle.NOT_THERE: "the other pool has no backup of it",
    Obstacle.NOTHING_COMMON: "the two pools have no backup of it in common: rename the host in one of them",
}


def obstacle_words(fetches: HostFetches) -> str:
    """Returns why nothing of the host can be fetched; "" if it can be."""
    return OBSTACLES[fetches.obstacle].format(host=fetches.host, text=fetches.text) if fetches.obstacle else ""


_FACTOR = 4
_MOST_CLAIMED = 4  # multiples of this filesystem's size that are plausible: with compression, more than one is possible


def longest_stream(claimed: int | None, filesystem: int) -> int:
    """Returns the most bytes a stream may have.

    `claimed`: bytes of all files of the backup that the other server announces, None if it does not; `filesystem`: the capacity of
    the receiving filesystem in bytes. The result is between one and sixteen times that size::

        limit
        16 fs |                    ________   a claim is believed up to 4 fs
              |                 /
           fs |________________/
              +---------------+----+------- claimed
                            fs/4  4 fs
    """
    believed = min(max(claimed or 0, 0), _MOST_CLAIMED * filesystem)
    return max(filesystem, _FACTOR * believed)


class ReceiveCause(StrEnum):
    """Why a `btrfs receive` ended with an error."""

    FULL = "full"
    QUOTA = "quota"
    READ_ONLY = "read-only"
    OUTSIDE = "outside"
    DISK = "disk"
    GARBLED = "garbled"
    PARENT = "parent"
    TOO_OLD = "too-old"
    CELL = "cell"
    UNKNOWN = "unknown"


_PATTERNS: tuple[tuple[str, ReceiveCause], ...] = (
    (r"^bwrap: ", ReceiveCause.CELL),
    (r": No space left on device$", ReceiveCause.FULL),
    (r": Disk quota exceeded$", ReceiveCause.QUOTA),
    (r": Read-only file system$", ReceiveCause.READ_ONLY),
    (r": Input/output error$", ReceiveCause.DISK),
    (r"^ERROR: (crc32 mismatch|unexpected EOF|send stream is truncated|invalid tlv|unexpected header)", ReceiveCause.GARBLED),
    (r"parent subvol(ume)?\b|source subvol\b|default subvolume", ReceiveCause.PARENT),
    (r"not compiled in$|unknown compression|encryption not supported$|stream version \d+ not supported", ReceiveCause.TOO_OLD),
)

HINTS: Mapping[ReceiveCause, str] = {
    ReceiveCause.FULL: "the pool is full: keep fewer backups, or add a device; `backupd usage` shows what each host uses",
    ReceiveCause.QUOTA: "a quota of this pool's filesystem stopped it: `btrfs qgroup show` names its limit",
    ReceiveCause.READ_ONLY: "this pool's filesystem has become read-only: dmesg shows why, and `backupd doctor` what to do",
    ReceiveCause.OUTSIDE: "the stream tries to write outside of the backup, as only an attack does: check the other server",
    ReceiveCause.DISK: "a disk of this pool could not be read or written: check dmesg and `backupd doctor`",
    ReceiveCause.GARBLED: "it was damaged in transit and is sent again next time; if that repeats, test the memory of both servers",
    ReceiveCause.PARENT: "another copy of its parent appeared during the transfer; it is sent again next time",
    ReceiveCause.TOO_OLD: "the btrfs program here cannot read the stream of the other server: install a newer btrfs-progs",
    ReceiveCause.CELL: "the cell that receives it cannot be set up: `backupd check` shows what is missing",
    ReceiveCause.UNKNOWN: "",
}
"""What to do next, "" if unknown."""


def receive_cause(lines: Iterable[str], *, is_read_only: bool) -> ReceiveCause:
    """Returns the cause in its messages; the first one with a known form counts.

    `is_read_only`: whether the pool's filesystem is; if not, the cell prevented the write.
    """
    for line in lines:
        for pattern, cause in _PATTERNS:
            if re.search(pattern, line):
                return ReceiveCause.OUTSIDE if cause is ReceiveCause.READ_ONLY and not is_read_only else cause
    return ReceiveCause.UNKNOWN
