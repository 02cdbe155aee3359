"""Compares the other pool with this one: the backups to fetch, and the notes of the fetched hosts.

Deletions, ends of holds and renamings of hosts are never transferred, so the owner of the other pool cannot delete backups here.
The notes have the replica of which a host is a copy, and the transferred holds and acceptances.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from backupd.replicate.outcome import (
    ReplicationContext,
    ReplicationPlan,
)
from backupd.replicate.remote_pool import RemotePool
from backupd.replicate.wire import RemoteHost, StreamInfo
from backupd.repo.final_backups import is_unreadable
from backupd.repo.notes_json import ACCEPTED, HOLD, Notes, NotesFull, has_room_for_foreign, read_notes, write_notes
from backupd.repo.pool_files import hosts_of, names_of
from btrkeep.backup_states import FINISHED
from btrkeep.catalogue import WHOLE, Catalogue
from btrkeep.config import Config
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.replication import (
    HostFetches,
    LocalBackup,
    LocalHost,
    Obstacle,
    ReplicaMark,
    misplaced,
    obstacle_words,
    plan_fetches,
)
from btrkeep.errors import OperatorError
from btrkeep.pool.allocation import read_room
from btrkeep.pool.marker import Pool
from btrkeep.units import format_size, format_time, parse_time


def make_plan(
    context: ReplicationContext, far: RemotePool, named: tuple[str, ...] = (), *, damaged: bool = False
) -> tuple[ReplicationPlan, dict[str, RemoteHost]]:
    """Returns the backups to fetch, and the hosts as the other pool lists them. `damaged`: damaged copies are fetched again, too.

    Raises ConnectionBroken, RemoteRefused.
    """
    if far.id == context.pool.id:
        raise OperatorError("the other pool is the same pool", "correct `from` of the replica")
    mark = ReplicaMark(far.id, context.replica.name)
    near = _near_hosts(context.pool, context.catalogue)
    hosts, obstacles, present, listed, total = [], [], dict[str, tuple[str, ...]](), dict[str, RemoteHost](), 0
    all_there = list(far.hosts())
    owned = {far_host.name: (far_host.was, far_host.backups) for far_host in all_there if far_host.copy_of != context.pool.id}
    elsewhere = misplaced(owned, near, far.id)
    for far_host in all_there:
        if not wants(context.replica, far_host.name, named):
            continue
        listed[far_host.name] = far_host
        total += len(far_host.backups)
        host_fetches = _plan_host(context, far_host, near, mark, elsewhere, damaged=damaged)
        if host_fetches.obstacle:
            obstacles.append(host_fetches)
            continue
        if host_fetches.present:
            present[host_fetches.host] = host_fetches.present
        if host_fetches.fetches:
            hosts.append(host_fetches)
    moved = {old for obstacle in obstacles if (old := obstacle.former_name)}
    gone = [
        host
        for host, it in near.items()
        if it.mark == mark and not it.forgotten and wants(context.replica, host, named) and host not in listed and host not in moved
    ]
    return ReplicationPlan(tuple(hosts), tuple(obstacles), present, total, bool(named), tuple(sorted(gone))), listed


def _plan_host(
    context: ReplicationContext,
    far: RemoteHost,
    near: Mapping[str, LocalHost],
    mark: ReplicaMark,
    elsewhere: tuple[Mapping[str, str], Mapping[str, str]],
    *,
    damaged: bool,
) -> HostFetches:
    """Plans the fetches of one host. `elsewhere`: the result of `misplaced`."""
    here, (renamed, held) = near.get(far.name, LocalHost()), elsewhere
    if far.copy_of == context.pool.id:  # that pool fetches it from this one
        is_of_each_other = here.mark is not None and here.mark.pool == mark.pool
        return HostFetches(far.name, obstacle=Obstacle.NOBODY_BACKS_UP if is_of_each_other else None)
    if (
        far.copy_of
        and here.is_known
        and here.mark is None
        and {backup.uuid for backup in here.backups} & {backup.uuid for backup in far.backups}
    ):
        return HostFetches(far.name)  # this pool's own host, fetched through a third pool
    if new := renamed.get(far.name):
        return HostFetches(far.name, obstacle=Obstacle.NAME_REUSED_THERE, text=new)
    if not here.is_known and (old := next((name for name in far.was if renamed.get(name) == far.name), None)):
        return HostFetches(far.name, obstacle=Obstacle.RENAMED_THERE, text=old)
    if other := other_replica(context, far.name, here.mark, mark):
        return HostFetches(far.name, obstacle=Obstacle.OF_ANOTHER_REPLICA, text=other)
    if not here.forgotten and (name := held.get(far.name)):
        return HostFetches(far.name, obstacle=Obstacle.OTHER_NAME_HERE, text=name)
    zone = context.config.pool.zone
    return plan_fetches(far.name, far.backups, here, mark, context.replica, zone, context.now, damaged=damaged)


def _near_hosts(pool: Pool, catalogue: Catalogue) -> dict[str, LocalHost]:
    """Returns every host of this pool, according to the catalogue and the notes."""
    damaged, unreadable = dict[str, set[str]](), dict[str, set[str]]()
    for (host, name), path in catalogue.first_damaged().items():
        is_lost = path == WHOLE and is_unreadable(pool.host(host) / name)  # a disk may have been missing when it was read
        (unreadable if is_lost else damaged).setdefault(host, set()).add(name)
    backups: dict[str, list[LocalBackup]] = {}
    for row in catalogue.states():
        of_host = backups.setdefault(row.host, [])
        if row.name and row.uuid and (row.outcome or row.state) in FINISHED:
            of_host.append(LocalBackup(row.name, row.uuid, row.outcome or row.state, row.expired is not None))
    hosts = [host for host in hosts_of(pool) if host in backups or _is_marked(pool, host)]
    near = {host: _near(pool, host, backups.get(host, [])) for host in hosts}
    return {
        host: replace(near_host, damaged=damaged.get(host, ()), unreadable=unreadable.get(host, ()))
        for host, near_host in near.items()
    }


def _is_marked(pool: Pool, host: str) -> bool:
    """Returns True if the host is fetched; its notes may be all that is left of it here."""
    return read_notes(pool.host(host)).replica is not None


def _near(pool: Pool, host: str, near_backups: list[LocalBackup]) -> LocalHost:
    notes = read_notes(pool.host(host))
    near_backups = [replace(backup, is_original=notes.is_original(backup.name)) for backup in near_backups]
    return LocalHost(near_backups, mark_of(notes), notes.forgotten is not None, frozenset(notes.deleted), is_known=True)


def lacking_room(config: Config, far: RemotePool) -> str:
    """Returns a warning if this pool has less free space above min_free than the other pool uses; "" if it has more, or that
    is unknown.

    Only a warning: the replica may fetch only some hosts, or keep fewer backups.
    """
    try:
        room = read_room(config.pool.path)
    except OSError:  # the list of the pool's hosts reports it
        return ""
    free = max(0, room.available - config.pool.min_free.bytes_of(room.total))
    if far.used is None or far.used <= free:
        return ""
    return f"{format_size(far.used)} are used there, but only {format_size(free)} are free here above min_free"


_PARTS = ("at", "until", "why")  # keys of a note
_LONGEST_WHY = 1000  # characters of a reason sent by another pool


def mark_of(notes: Notes) -> ReplicaMark | None:
    """Returns the pool and the replica from which the host was fetched; None if it is backed up here."""
    return ReplicaMark(str(notes.replica.get("pool")), str(notes.replica.get("name"))) if notes.replica else None


def wants(replica: ReplicaSettings, host: str, named: tuple[str, ...] = ()) -> bool:
    """Returns True if the replica fetches that host, and the host is among the named ones."""
    return any(fnmatchcase(host, pattern) for pattern in replica.hosts) and (not named or host in named)


def other_replica(context: ReplicationContext, host: str, has: ReplicaMark | None, wanted: ReplicaMark) -> str | None:
    """Returns the other configured replica that has fetched the host and still wants it: each has its own retention.

    A replica with an invalid section, or one that an unreadable file may define, counts as if it still fetched the host.
    """
    if has is None or has.pool != wanted.pool or has.replica == wanted.replica:
        return None
    config = context.config
    other = config.replicas.get(has.replica)
    if other is None and (config.unread or has.replica in config.excluded_copies):
        return has.replica
    return other.name if other and wants(other, host) else None


def require_marked(context: ReplicationContext, far: RemotePool, host: str) -> None:
    """Records the pool and the replica from which the host is fetched, before its first backup arrives. Needs the host's lock.

    Raises OperatorError if it was fetched from another pool, or belongs to another replica, which may have fetched it since
    the plan was made.
    """
    folder = context.pool.host(host)
    notes, wanted = read_notes(folder), ReplicaMark(far.id, context.replica.name)
    mark = mark_of(notes)
    if mark is None:
        if names_of(context.pool, host):  # including one that cannot be read
            raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.BACKED_UP_HERE)))
        write_notes(folder, replace(notes, replica={"pool": far.id, "name": context.replica.name, "at": format_time(context.now)}))
    elif mark.pool != wanted.pool:
        raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.OF_ANOTHER_POOL, text=mark.pool)))
    elif other := other_replica(context, host, mark, wanted):
        raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.OF_ANOTHER_REPLICA, text=other)))
    elif mark != wanted:  # the replica has another name now
        write_notes(folder, replace(notes, replica={**(notes.replica or {}), "name": context.replica.name}))


def take_notes(pool: Pool, host: str, name: str, announced: StreamInfo, replica: ReplicaSettings, now: datetime) -> None:
    """Copies the hold and the acceptance of a backup; the notes here stay, even if the backup is fetched again. The replica's
    settings may refuse holds, or end them earlier.

    Long reasons are cut. Raises NotesFull if the notes of the other pool would take more than half of the file.
    """
    kept_notes = {key: note for key in (HOLD, ACCEPTED) if (note := announced.notes.get(key)) and _is_note(note)}
    if not kept_notes:
        return
    folder = pool.host(host)
    before = notes = read_notes(folder)
    for key, note in kept_notes.items():
        if before.note(name, key):  # the other server must not change it
            continue
        if key == HOLD and not replica.take_holds:
            continue
        kept = {part: str(note[part])[:_LONGEST_WHY] if note[part] is not None else None for part in _PARTS if part in note}
        if key == HOLD and replica.longest_hold is not None:
            kept["until"] = _earlier(kept.get("until"), now + timedelta(seconds=replica.longest_hold))
        notes = notes.with_note(name, key, {**kept, "from": replica.name})
    if notes != before:
        if not has_room_for_foreign(notes):
            raise NotesFull(
                f"{host}@{name} is not fetched: the notes of the other pool's backups would take more than half of notes.json",
                f"release holds there, or delete old backups of {host} here",
            )
        write_notes(folder, notes)


def _earlier(until: str | None, limit: datetime) -> str:
    """Returns the end of a hold, at most the limit."""
    return format_time(min(parse_time(until), limit) if until else limit)


def _is_note(note: Mapping[str, object]) -> bool:
    try:
        for part in ("at", "until"):
            if note.get(part) is not None:
                parse_time(str(note[part]))
    except ValueError:
        return False
    return bool(note.get("at"))
