"""Rows of runs: the history of what was tried. A later id is a later run."""

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from btrkeep.catalogue import hosts
from btrkeep.catalogue.model import Run, RunFields
from btrkeep.catalogue.tables import progress, run

_FIELDS = tuple(field.name for field in fields(Run) if field.name != "id")
_VALUES = attrgetter(*_FIELDS)
_AT_A_TIME = 1000
_INSERT = insert(run)
_UPDATE = update(run).where(run.c.id == bindparam("the_run"))
_DROP_PROGRESS = delete(progress).where(progress.c.run_id == bindparam("the_run"))
_NEWEST = select(run).order_by(run.c.id.desc())
_NEWEST_FINISH = select(run.c.finished).where(run.c.finished.is_not(None)).order_by(run.c.id.desc()).limit(1)
_UNFINISHED = select(run).where(run.c.finished.is_(None)).order_by(run.c.id)


def start(
    connection: Connection, host: str, started: datetime, pid: int, pid_started: str | None, night: bool, *, known: bool = False
) -> int:
    """A new run of `host`; its id. `known`: the host has its row already."""
    if not known:
        hosts.know(connection, host)
    row = {"host": host, "started": started, "attempts": 0, "pid": pid, "pid_started": pid_started, "night": night}
    key = connection.execute(_INSERT, row).inserted_primary_key
    assert key is not None  # one row was inserted, so the dialect says which
    return int(key[0])


def update_fields(connection: Connection, run_id: int, changes: RunFields) -> None:
    """Change the given fields. Raises KeyError when there is no such run, TypeError for a field that a run does not have."""
    if unknown := changes.keys() - RunFields.__annotations__.keys():
        raise TypeError(f"a run has no field {', '.join(sorted(unknown))} that could be changed")
    if changes and connection.execute(_UPDATE, {**changes, "the_run": run_id}).rowcount == 0:
        raise KeyError(run_id)


def finish(connection: Connection, run_id: int, changes: RunFields, *, shown: bool = True) -> None:
    """Change the given fields, and end what was shown of its progress, if anything was."""
    update_fields(connection, run_id, changes)
    if shown:
        connection.execute(_DROP_PROGRESS, {"the_run": run_id})


def put_many(connection: Connection, many: Iterable[Run]) -> int:
    """Add history under new ids, in the given order; how many."""
    source, count = iter(many), 0
    while some := list(islice(source, _AT_A_TIME)):
        hosts.know_all(connection, {one.host for one in some})
        connection.execute(_INSERT, [_row_of(one) for one in some])
        count += len(some)
    return count


def _row_of(one: Run) -> dict[str, Any]:
    return dict(zip(_FIELDS, _VALUES(one), strict=True))


def newest(connection: Connection, host: str | None, limit: int) -> list[Run]:
    """The last `limit` runs, of one host or of all, newest first."""
    query = _NEWEST.limit(limit)
    if host is not None:
        query = query.where(run.c.host == host)
    return [Run(*row) for row in connection.execute(query)]


def unfinished(connection: Connection) -> list[Run]:
    """Runs that have no end: running now, or killed. Oldest first."""
    return [Run(*row) for row in connection.execute(_UNFINISHED)]


def newest_finish(connection: Connection) -> datetime | None:
    """When the newest run that has ended did so, by the clock of that time; None when none has ended.

    The newest by its id: after a night with a wrong clock an older run may have a later end.
    """
    found: datetime | None = connection.scalar(_NEWEST_FINISH)
    return found
