"""Rows of backups. Functions take a connection; whoever calls them has begun the transaction."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Result, Text, and_, bindparam, delete, func, insert, or_, select, type_coerce
from sqlalchemy.exc import ResourceClosedError

from btrkeep.catalogue import hosts
from btrkeep.catalogue.columns import unescape
from btrkeep.catalogue.model import Backup
from btrkeep.catalogue.tables import backup, backup_detail, host

_FIELDS = tuple(column.name for column in backup.columns)
_VALUES = attrgetter(*_FIELDS)
_DROP = delete(backup).where(backup.c.host == bindparam("the_host"), backup.c.name == bindparam("the_name"))
_DROP_WITH_WORKING = delete(backup).where(
    backup.c.host == bindparam("the_host"), or_(backup.c.name == bindparam("the_name"), backup.c.name == bindparam("working", None))
)
_INSERT, _INSERT_DETAIL = insert(backup), insert(backup_detail)
_ORDERED = select(backup).order_by(backup.c.host, backup.c.started, backup.c.name)
_DETAILED = _ORDERED.add_columns(backup_detail.c.detail).outerjoin_from(
    backup, backup_detail, and_(backup_detail.c.host == backup.c.host, backup_detail.c.name == backup.c.name)
)
# An outer join although only hosts with a backup are wanted: an inner one lets SQLite begin with all backups instead of the hosts.
_NEWEST = (
    select(backup)
    .select_from(
        host.outerjoin(
            backup,
            and_(
                backup.c.host == host.c.name,
                backup.c.name == func.coalesce(hosts.newest_name(), hosts.newest_name(any_stamp=True)),
            ),
        )
    )
    .order_by(host.c.name)
)
# One row for each host, its names in lines: a backup's name has no line end, and 95,000 rows take three times as long.
_NAMES = select(backup.c.host, func.aggregate_strings(type_coerce(backup.c.name, Text), "\n")).group_by(backup.c.host)
_AT_A_TIME = 1000


def put(connection: Connection, one: Backup, *, known: bool = False) -> None:
    """Insert the row, or replace the one of the same host and name. `known`: the host has its row already."""
    if not known:
        hosts.know(connection, one.host)
    drop(connection, one.host, one.name)
    _insert(connection, one)


def finish(connection: Connection, one: Backup) -> None:
    """`put`, and the host's `.working` goes. The host is known, since a run of it has begun."""
    connection.execute(_DROP_WITH_WORKING, {"the_host": one.host, "the_name": one.name})
    _insert(connection, one)


def _insert(connection: Connection, one: Backup) -> None:
    connection.execute(_INSERT, row_of(one))
    if one.detail:
        connection.execute(_INSERT_DETAIL, _detail_row_of(one))


def drop(connection: Connection, of_host: str, name: str | None) -> None:
    """Delete the row, if it is there; its detail goes by the foreign key."""
    connection.execute(_DROP, {"the_host": of_host, "the_name": name})


def row_of(one: Backup) -> dict[str, Any]:
    """The values of the `backup` table's columns."""
    return dict(zip(_FIELDS, _VALUES(one), strict=True))


def _detail_row_of(one: Backup) -> dict[str, Any]:
    return {"host": one.host, "name": one.name, "detail": one.detail}


def drop_all(connection: Connection) -> None:
    """Delete every backup's row; hosts and runs stay."""
    connection.execute(delete(backup_detail))
    connection.execute(delete(backup))


def put_many(connection: Connection, many: Sequence[Backup]) -> None:
    """Insert rows that are not there yet: at least one, some thousands at the most."""
    hosts.know_all(connection, {one.host for one in many})
    connection.execute(_INSERT, [row_of(one) for one in many])
    if details := [_detail_row_of(one) for one in many if one.detail]:
        connection.execute(_INSERT_DETAIL, details)


def stream(connection: Connection, unread: set[Result[Any]], of_host: str | None, with_detail: bool) -> Iterator[Backup]:
    """Backups by host and start, read as they are asked for. The result is in `unread` until it has been read to its end."""
    query = _DETAILED if with_detail else _ORDERED
    if of_host is not None:
        query = query.where(backup.c.host == of_host)
    with connection.execution_options(yield_per=_AT_A_TIME).execute(query) as rows:
        unread.add(rows)
        try:
            for row in rows:
                yield Backup(*row)
                if rows.closed:  # otherwise those that were fetched in advance would come, and look like all
                    raise ResourceClosedError("the catalogue was closed before its backups were read to the end")
        finally:
            unread.discard(rows)


def names(connection: Connection) -> Iterator[tuple[str, str | None]]:
    """Host and name of every backup."""
    for host_name, found in connection.execution_options(yield_per=_AT_A_TIME).execute(_NAMES):
        for name in found.split("\n"):
            yield host_name, unescape(name) or None


def newest(connection: Connection, latest: datetime) -> list[Backup]:
    """The newest backup of each host, whatever its state, by host: one stamped after `latest` when it has no other."""
    return [Backup(*row) for row in connection.execute(_NEWEST, {"latest": latest}) if row.host is not None]
