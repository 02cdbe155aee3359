"""Rows of progress: what runs now, written about once a second for each transfer."""

from operator import attrgetter

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from btrkeep.catalogue import hosts
from btrkeep.catalogue.model import Progress
from btrkeep.catalogue.tables import progress

_FIELDS = tuple(column.name for column in progress.columns)
_VALUES = attrgetter(*_FIELDS)
_UPDATE = update(progress).where(progress.c.host == bindparam("the_host"))
_DROP = delete(progress).where(progress.c.host == bindparam("the_host"))
_ALL = select(progress).order_by(progress.c.host)


def put(connection: Connection, one: Progress) -> None:
    """Insert the host's row, or replace it."""
    row = dict(zip(_FIELDS, _VALUES(one), strict=True))
    if connection.execute(_UPDATE, {**row, "the_host": one.host}).rowcount == 0:
        hosts.know(connection, one.host)
        connection.execute(insert(progress), row)


def drop(connection: Connection, host: str) -> None:
    """Delete the host's row, if it is there."""
    connection.execute(_DROP, {"the_host": host})


def every(connection: Connection) -> list[Progress]:
    """What runs now, by host."""
    return [Progress(*row) for row in connection.execute(_ALL)]
