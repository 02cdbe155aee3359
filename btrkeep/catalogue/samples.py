"""Rows of sample: how a filesystem was. A clock that was set back does not change which is the newest: the one kept last."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from btrkeep.catalogue.model_sample import Sample
from btrkeep.catalogue.tables import sample

_FIELDS = tuple(field.name for field in fields(Sample) if field.name != "id")
_VALUES = attrgetter(*_FIELDS)
_INSERT = insert(sample)
_OF = select(sample).where(sample.c.filesystem == bindparam("the_filesystem"))
_BY_TIME = _OF.order_by(sample.c.taken, sample.c.id)
# Not what was made of older ones: it was put in later than they were.
_NEWEST = _OF.where(sample.c.span == "raw").order_by(sample.c.id.desc()).limit(1)
_OLDEST = select(func.min(sample.c.taken)).where(
    sample.c.filesystem == bindparam("the_filesystem"), sample.c.span == bindparam("the_span")
)
_DROP = delete(sample).where(sample.c.id == bindparam("the_id"))


def add(connection: Connection, one: Sample) -> int:
    """Insert it; its id."""
    key = connection.execute(_INSERT, _row_of(one)).inserted_primary_key
    assert key is not None  # one row was inserted, so the dialect says which
    return int(key[0])


def _row_of(one: Sample) -> dict[str, Any]:
    return dict(zip(_FIELDS, _VALUES(one), strict=True))


def newest(connection: Connection, filesystem: str) -> Sample | None:
    """The one that was kept last."""
    row = connection.execute(_NEWEST, {"the_filesystem": filesystem}).first()
    return Sample(*row) if row else None


def oldest(connection: Connection, filesystem: str, span: str) -> datetime | None:
    """When the oldest one of that span was taken; None when there is none."""
    moment: datetime | None = connection.execute(_OLDEST, {"the_filesystem": filesystem, "the_span": span}).scalar()
    return moment


def of(connection: Connection, filesystem: str, since: datetime | None, until: datetime | None, span: str | None) -> list[Sample]:
    """Those of a filesystem from `since` on and before `until`, oldest first; with `span` only those of it."""
    query = _BY_TIME
    if since is not None:
        query = query.where(sample.c.taken >= since)
    if until is not None:
        query = query.where(sample.c.taken < until)
    if span is not None:
        query = query.where(sample.c.span == span)
    return [Sample(*row) for row in connection.execute(query, {"the_filesystem": filesystem})]


def replace(connection: Connection, ids: Sequence[int], by: Iterable[Sample]) -> int:
    """Delete these and insert those; how many were deleted."""
    if rows := [_row_of(one) for one in by]:
        connection.execute(_INSERT, rows)
    return connection.execute(_DROP, [{"the_id": id_} for id_ in ids]).rowcount if ids else 0
