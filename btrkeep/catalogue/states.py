"""The states of all backups at once, and their changes by the thousand: what retention and expiry ask of the table of backups."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from btrkeep.catalogue.model import BackupState, NotedState
from btrkeep.catalogue.sqlite import Session, Values
from btrkeep.catalogue.tables import backup

_HERE = "host = :host AND name = coalesce(:name, '')"
# uuid as it is: no conversion has anything to do there.
_STATES = f"""
    SELECT {backup.select("host", "name", "started", "state", "outcome", "held_until", "held_why", "expired", "subvolume_id")},
        uuid, CASE WHEN name = '' THEN base END
    FROM backup ORDER BY host, started, name"""
# A hold, a mark or a suspect outcome: what the host's notes have something to say of, or had.
_NOTED = f"""
    SELECT {backup.select("host", "name", "state", "outcome", "held_until", "held_why", "expired")} FROM backup
    WHERE held_why IS NOT NULL OR expired IS NOT NULL OR outcome = 'suspect'
        OR state IN ('expired', 'deleting') OR state <> outcome"""
_SET = f"UPDATE backup SET state = :state, expired = :expired WHERE {_HERE}"
_MARK_DELETING = f"UPDATE backup SET state = 'deleting' WHERE {_HERE}"
_DROP = f"DELETE FROM backup WHERE {_HERE}"
_DROP_HOST = "DELETE FROM backup WHERE host = :host"


def stream(session: Session) -> Iterator[BackupState]:
    """All backups by host and start, read as they are asked for."""
    make = tuple.__new__  # half the time of BackupState(*row)
    return (make(BackupState, row) for row in session.stream(_STATES))


def noted(session: Session) -> list[NotedState]:
    """What the rows have from the notes of hosts: those that are held, marked, going, or once were suspect."""
    return [NotedState._make(row) for row in session.all(_NOTED)]


def put_many(session: Session, changes: Iterable[tuple[str, str | None, str, datetime | None]]) -> int:
    """Set state and time of expiry of (host, name); how many rows there were to change."""
    rows = [{"host": host, "name": name, "state": state, "expired": at} for host, name, state, at in changes]
    return session.run_many(_SET, rows)


def mark_deleting(session: Session, which: Iterable[tuple[str, str | None]]) -> int:
    """Set the state of these to `deleting`; how many rows there were to change."""
    return session.run_many(_MARK_DELETING, _named(which))


def drop_many(session: Session, which: Iterable[tuple[str, str | None]]) -> int:
    """Delete the rows, and their details by the foreign key; how many there were."""
    return session.run_many(_DROP, _named(which))


def drop_host(session: Session, host: str) -> int:
    """Delete all rows of a host's backups; how many there were."""
    return session.run(_DROP_HOST, {"host": host}).rowcount


def _named(which: Iterable[tuple[str, str | None]]) -> list[Values]:
    return [{"host": host, "name": name} for host, name in which]
