"""The states of all backups at once, and their changes by the thousand: what retention and expiry ask of the table of backups."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable, Result, Text, bindparam, case, delete, or_, select, type_coerce, update

from btrkeep.catalogue.model import BackupState, NotedState
from btrkeep.catalogue.tables import backup

_HERE = (backup.c.host == bindparam("the_host"), backup.c.name == bindparam("the_name"))
# uuid as plain text: no conversion has anything to do there.
_STATES = select(
    backup.c.host,
    backup.c.name,
    backup.c.started,
    backup.c.state,
    backup.c.outcome,
    backup.c.held,
    backup.c.expired,
    backup.c.subvolume_id,
    type_coerce(backup.c.uuid, Text),
    case((backup.c.name == bindparam("working", None, backup.c.name.type), backup.c.base)),
).order_by(backup.c.host, backup.c.started, backup.c.name)
# A hold, a mark or a suspect outcome: what the host's notes have something to say of, or had.
_NOTED = select(backup.c.host, backup.c.name, backup.c.state, backup.c.outcome, backup.c.held, backup.c.expired).where(
    or_(
        backup.c.held.is_not(None),
        backup.c.expired.is_not(None),
        backup.c.outcome == "suspect",
        backup.c.state.in_(("expired", "deleting")),
        backup.c.state != backup.c.outcome,
    )
)
_SET = update(backup).where(*_HERE).values(state=bindparam("the_state"), expired=bindparam("the_time"))
_MARK_DELETING = update(backup).where(*_HERE).values(state="deleting")
_DROP = delete(backup).where(*_HERE)
_DROP_HOST = delete(backup).where(backup.c.host == bindparam("the_host"))
_AT_A_TIME = 1000


def stream(connection: Connection, unread: set[Result[Any]]) -> Iterator[BackupState]:
    """All backups by host and start, read as they are asked for. The result is in `unread` until it has been read to its end."""
    make = tuple.__new__  # half the time of BackupState(*row)
    with connection.execution_options(yield_per=_AT_A_TIME).execute(_STATES) as rows:
        unread.add(rows)
        try:
            for some in rows.partitions():
                yield from [make(BackupState, row) for row in some]  # closed meanwhile: the next partition raises, the last one too
        finally:
            unread.discard(rows)


def noted(connection: Connection) -> list[NotedState]:
    """What the rows have from the notes of hosts: those that are held, marked, going, or once were suspect."""
    return [NotedState._make(row) for row in connection.execute(_NOTED)]


def put_many(connection: Connection, changes: Iterable[tuple[str, str | None, str, datetime | None]]) -> int:
    """Set state and time of expiry of (host, name); how many rows there were to change."""
    rows = [{"the_host": host, "the_name": name, "the_state": state, "the_time": at} for host, name, state, at in changes]
    return _many(connection, _SET, rows)


def mark_deleting(connection: Connection, which: Iterable[tuple[str, str | None]]) -> int:
    """Set the state of these to `deleting`; how many rows there were to change."""
    return _many(connection, _MARK_DELETING, [{"the_host": host, "the_name": name} for host, name in which])


def drop_many(connection: Connection, which: Iterable[tuple[str, str | None]]) -> int:
    """Delete the rows, and their details by the foreign key; how many there were."""
    return _many(connection, _DROP, [{"the_host": host, "the_name": name} for host, name in which])


def drop_host(connection: Connection, host: str) -> int:
    """Delete all rows of a host's backups; how many there were."""
    return connection.execute(_DROP_HOST, {"the_host": host}).rowcount


def _many(connection: Connection, statement: Executable, rows: list[dict[str, Any]]) -> int:
    return connection.execute(statement, rows).rowcount if rows else 0
