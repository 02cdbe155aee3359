"""Rows of score: one look at the free space of a filesystem each. A wrong clock does not change which is the newest: the one kept
last.
"""

from dataclasses import fields
from datetime import datetime
from operator import attrgetter

from sqlalchemy import Connection, bindparam, insert, select

from btrkeep.catalogue.model_balance import FreeSpaceScore
from btrkeep.catalogue.tables import score

_FIELDS = tuple(field.name for field in fields(FreeSpaceScore))
_VALUES = attrgetter(*_FIELDS)
_OF = (
    select(*(score.c[name] for name in _FIELDS))
    .where(score.c.filesystem == bindparam("the_filesystem"))
    .order_by(score.c.taken, score.c.id)
)

_NEWEST = (
    select(*(score.c[name] for name in _FIELDS))
    .where(score.c.filesystem == bindparam("the_filesystem"))
    .order_by(score.c.id.desc())
    .limit(1)
)


def add(connection: Connection, one: FreeSpaceScore) -> int:
    """Insert it; its id."""
    key = connection.execute(insert(score), dict(zip(_FIELDS, _VALUES(one), strict=True))).inserted_primary_key
    assert key is not None  # one row was inserted, so the dialect says which
    return int(key[0])


def of(connection: Connection, filesystem: str, since: datetime | None) -> list[FreeSpaceScore]:
    """Those of a filesystem, taken at `since` or later if it is given, oldest first."""
    query = _OF if since is None else _OF.where(score.c.taken >= since)
    return [FreeSpaceScore(*row) for row in connection.execute(query, {"the_filesystem": filesystem})]


def newest(connection: Connection, filesystem: str) -> FreeSpaceScore | None:
    """The one that was kept last; None when there is none."""
    row = connection.execute(_NEWEST, {"the_filesystem": filesystem}).first()
    return FreeSpaceScore(*row) if row else None
