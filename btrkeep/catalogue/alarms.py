"""Rows of alarm."""

from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter

from sqlalchemy import Connection, bindparam, delete, insert, select

from btrkeep.catalogue.model_alarm import StoredAlarm
from btrkeep.catalogue.tables import alarm

_FIELDS = tuple(field.name for field in fields(StoredAlarm))
_VALUES = attrgetter(*_FIELDS)
_ALL = select(alarm).order_by(alarm.c.what, alarm.c.subject)
_DROP = delete(alarm).where(alarm.c.what == bindparam("the_what"), alarm.c.subject == bindparam("the_subject"))


def every(connection: Connection) -> list[StoredAlarm]:
    """All of them, by event and subject."""
    return [StoredAlarm(*row) for row in connection.execute(_ALL)]


def put(connection: Connection, changed: Iterable[StoredAlarm], gone: Iterable[tuple[str, str]]) -> None:
    """Insert or replace the ones, forget the others, which are given by event and subject."""
    rows = [dict(zip(_FIELDS, _VALUES(one), strict=True)) for one in changed]
    keys = [{"the_what": row["what"], "the_subject": row["subject"]} for row in rows]
    keys += [{"the_what": what, "the_subject": subject} for what, subject in gone]
    if keys:
        connection.execute(_DROP, keys)
    if rows:
        connection.execute(insert(alarm), rows)
