"""Runs of many hosts since a moment, and what became of the backups of some: asked for whole lists, never host by host."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, or_, select

from btrkeep.catalogue.columns import Moment
from btrkeep.catalogue.model_tried import Fate, Tried
from btrkeep.catalogue.tables import backup, run

_SINCE = bindparam("since", type_=Moment)
# A later id is a later run: with the first id that can be meant all older rows are passed over, of one host and of all.
_FIRST = select(func.min(run.c.id)).where(or_(run.c.finished >= _SINCE, run.c.finished.is_(None)))
_TRIED = (
    select(
        run.c.host,
        run.c.id,
        run.c.started,
        run.c.finished,
        run.c.outcome,
        run.c.backup,
        run.c.error,
        run.c.literal_bytes,
        run.c.pid,
        run.c.pid_started,
        run.c.night,
    )
    .where(run.c.id >= bindparam("first"), run.c.started >= _SINCE)
    .order_by(run.c.id)
)
_IS_FINAL = backup.c.name != bindparam("none", None, backup.c.name.type)  # '' in the table: a `.working`, no backup yet
_COUNTS = select(backup.c.host, func.count()).where(_IS_FINAL).group_by(backup.c.host)
_FATES = (
    select(backup.c.host, backup.c.name, backup.c.state, backup.c.outcome)
    .where(_IS_FINAL)
    .order_by(backup.c.host, backup.c.started, backup.c.name)
)
_AT_A_TIME = 500  # values in one statement


def since(connection: Connection, moment: datetime, hosts: Collection[str] | None) -> list[Tried]:
    """Runs that began at `moment` or later, of all hosts or of these, in the order of their ids."""
    first = connection.scalar(_FIRST, {"since": moment})
    if first is None:
        return []
    values = {"since": moment, "first": first}
    if hosts is None:
        return [Tried._make(row) for row in connection.execute(_TRIED, values)]
    parts = (_among(_TRIED, run.c.host, some) for some in _parts(hosts))
    found = [Tried._make(row) for query in parts for row in connection.execute(query, values)]
    return sorted(found, key=lambda one: one.id)


def counts(connection: Connection) -> dict[str, int]:
    """How many final backups each host has; a host without any is not there."""
    return {row[0]: row[1] for row in connection.execute(_COUNTS)}


def fates(connection: Connection, hosts: Collection[str]) -> list[Fate]:
    """What became of the final backups of these hosts, by host and start."""
    parts = (_among(_FATES, backup.c.host, some) for some in _parts(sorted(hosts)))
    return [Fate._make(row) for query in parts for row in connection.execute(query)]


def _among(query: Select[Any], column: Any, hosts: Collection[str]) -> Select[Any]:
    return query.where(column.in_(hosts))


def _parts(hosts: Collection[str]) -> list[list[str]]:
    every = list(hosts)
    return [every[start : start + _AT_A_TIME] for start in range(0, len(every), _AT_A_TIME)]
