"""Rows of runs: the history of what was tried. A later id is a later run."""

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from btrkeep.catalogue import hosts
from btrkeep.catalogue.model import Run, RunFields
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import run

_AT_A_TIME = 1000
_INSERT = run.insert(but="id")
_FIRST = dict.fromkeys(run.columns) | {"attempts": 0}
_DROP_PROGRESS = "DELETE FROM progress WHERE run_id = :id"
_NEWEST = f"SELECT {run.select()} FROM run ORDER BY id DESC LIMIT :most"
_NEWEST_OF_HOST = f"SELECT {run.select()} FROM run WHERE host = :host ORDER BY id DESC LIMIT :most"
_NEWEST_FINISH = 'SELECT finished AS "finished [moment]" FROM run WHERE finished IS NOT NULL ORDER BY id DESC LIMIT 1'
_UNFINISHED = f"SELECT {run.select()} FROM run WHERE finished IS NULL ORDER BY id"


def start(
    session: Session, host: str, started: datetime, pid: int, pid_started: str | None, night: bool, *, known: bool = False
) -> int:
    """A new run of `host`; its id. `known`: the host has its row already."""
    if not known:
        hosts.know(session, host)
    row = {**_FIRST, "host": host, "started": started, "pid": pid, "pid_started": pid_started, "night": night}
    return session.run(_INSERT, row).lastrowid or 0


def update_fields(session: Session, run_id: int, changes: RunFields) -> None:
    """Change the given fields. Raises KeyError when there is no such run, TypeError for a field that a run does not have."""
    if unknown := changes.keys() - RunFields.__annotations__.keys():
        raise TypeError(f"a run has no field {', '.join(sorted(unknown))} that could be changed")
    if changes and session.run(run.update(changes, "id = :id"), {**run.kept(changes), "id": run_id}).rowcount == 0:
        raise KeyError(run_id)


def finish(session: Session, run_id: int, changes: RunFields, *, shown: bool = True) -> None:
    """Change the given fields, and end what was shown of its progress, if anything was."""
    update_fields(session, run_id, changes)
    if shown:
        session.run(_DROP_PROGRESS, {"id": run_id})


def put_many(session: Session, many: Iterable[Run]) -> int:
    """Add history under new ids, in the given order; how many."""
    source, count = iter(many), 0
    while some := list(islice(source, _AT_A_TIME)):
        hosts.know_all(session, {one.host for one in some})
        session.run_many(_INSERT, [run.values(one) for one in some])
        count += len(some)
    return count


def newest(session: Session, host: str | None, limit: int) -> list[Run]:
    """The last `limit` runs, of one host or of all, newest first."""
    return [Run(*row) for row in session.all(_NEWEST if host is None else _NEWEST_OF_HOST, {"host": host, "most": limit})]


def unfinished(session: Session) -> list[Run]:
    """Runs that have no end: running now, or killed. Oldest first."""
    return [Run(*row) for row in session.all(_UNFINISHED)]


def newest_finish(session: Session) -> datetime | None:
    """When the newest run that has ended did so, by the clock of that time; None when none has ended.

    The newest by its id: after a night with a wrong clock an older run may have a later end.
    """
    found: datetime | None = session.value(_NEWEST_FINISH)
    return found
