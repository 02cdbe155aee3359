"""The notes of a host that is fetched: whose copy it is, and the holds and acceptances that come along."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from backupd.replicate.far_answers import Announced
from backupd.replicate.far_pool import FarPool
from backupd.replicate.outcome import (
    ReplicationContext,
)
from backupd.repo.listing import names_of
from backupd.repo.notes_json import ACCEPTED, HOLD, Notes, NotesFull, has_room_for_foreign, read_notes, write_notes
from btrkeep.config.model import ReplicaSettings
from btrkeep.decisions.replication import (
    HostFetches,
    Obstacle,
    ReplicaMark,
    obstacle_words,
)
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool
from btrkeep.units import format_time, parse_time

_PARTS = ("at", "until", "why")  # of a note
_LONGEST_WHY = 1000  # letters of a reason that another pool sends


def mark_of(notes: Notes) -> ReplicaMark | None:
    """Whose copy the host is; None for one that is backed up here."""
    return ReplicaMark(str(notes.replica.get("pool")), str(notes.replica.get("name"))) if notes.replica else None


def wants(replica: ReplicaSettings, host: str, named: tuple[str, ...] = ()) -> bool:
    """Returns True if the replica fetches that host, and it is among those that somebody has named."""
    return any(fnmatchcase(host, pattern) for pattern in replica.hosts) and (not named or host in named)


def other_replica(context: ReplicationContext, host: str, has: ReplicaMark | None, wanted: ReplicaMark) -> str | None:
    """Returns the other configured replica that has fetched the host, and still wants it: each has a retention of its own.

    One whose configuration is wrong, or may stand in a file that cannot be read, counts as wanting it.
    """
    if has is None or has.pool != wanted.pool or has.replica == wanted.replica:
        return None
    config = context.config
    other = config.replicas.get(has.replica)
    if other is None and (config.unread or has.replica in config.excluded_copies):
        return has.replica
    return other.name if other and wants(other, host) else None


def require_marked(context: ReplicationContext, far: FarPool, host: str) -> None:
    """Notes whose copy the host is, before anything of it is here. Needs the host's lock.

    Raises OperatorError if it is a copy of another pool, or another replica has it: since the plan was made, somebody else may have
    fetched it.
    """
    folder = context.pool.host(host)
    notes, wanted = read_notes(folder), ReplicaMark(far.id, context.replica.name)
    mark = mark_of(notes)
    if mark is None:
        if names_of(context.pool, host):  # also of one that cannot be read
            raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.BACKED_UP_HERE)))
        write_notes(folder, replace(notes, replica={"pool": far.id, "name": context.replica.name, "at": format_time(context.now)}))
    elif mark.pool != wanted.pool:
        raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.OF_ANOTHER_POOL, text=mark.pool)))
    elif other := other_replica(context, host, mark, wanted):
        raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.OF_ANOTHER_REPLICA, text=other)))
    elif mark != wanted:  # the replica has another name now
        write_notes(folder, replace(notes, replica={**(notes.replica or {}), "name": context.replica.name}))


def take_notes(pool: Pool, host: str, name: str, announced: Announced, replica: ReplicaSettings, now: datetime) -> None:
    """Takes a hold and an acceptance over along with the backup; what is noted here stays, also if it comes again. The replica's
    settings may refuse holds, or end them earlier.

    Long reasons are cut. Raises NotesFull when the other pool's notes would take more than half of the file.
    """
    found = {key: note for key in (HOLD, ACCEPTED) if (note := announced.notes.get(key)) and _is_note(note)}
    if not found:
        return
    folder = pool.host(host)
    before = notes = read_notes(folder)
    for key, note in found.items():
        if before.note(name, key):  # the other side must not end it
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
    """Returns the end of a hold, which is not later than the limit."""
    return format_time(min(parse_time(until), limit) if until else limit)


def _is_note(note: Mapping[str, object]) -> bool:
    try:
        for part in ("at", "until"):
            if note.get(part) is not None:
                parse_time(str(note[part]))
    except ValueError:
        return False
    return bool(note.get("at"))
