"""Rows of expiry: the runs of `expire`, what each does now, and what became of it. A later id is a later run."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select, update

from btrkeep.catalogue.model import Expiry, ExpiryFields
from btrkeep.catalogue.tables import expiry

_NOTHING_YET = {"planned": 0, "marked": 0, "revived": 0, "deleted": 0, "left_out": 0}
_UPDATE = update(expiry).where(expiry.c.id == bindparam("the_expiry"))
_NEWEST = select(expiry).order_by(expiry.c.id.desc())
_UNFINISHED = select(expiry).where(expiry.c.finished.is_(None)).order_by(expiry.c.id)


def start(connection: Connection, started: datetime, pid: int, pid_started: str | None, fields: ExpiryFields) -> int:
    """A new expiry; its id."""
    _see_that_they_are_known(fields)
    row = {**_NOTHING_YET, "started": started, "updated": started, "pid": pid, "pid_started": pid_started, **fields}
    key = connection.execute(insert(expiry), row).inserted_primary_key
    assert key is not None  # one row was inserted, so the dialect says which
    return int(key[0])


def update_fields(connection: Connection, expiry_id: int, changes: ExpiryFields) -> None:
    """Change the given fields. Raises KeyError when there is no such expiry, TypeError for a field that it does not have."""
    _see_that_they_are_known(changes)
    if changes and connection.execute(_UPDATE, {**changes, "the_expiry": expiry_id}).rowcount == 0:
        raise KeyError(expiry_id)


def _see_that_they_are_known(fields: ExpiryFields) -> None:
    if unknown := fields.keys() - ExpiryFields.__annotations__.keys():
        raise TypeError(f"an expiry has no field {', '.join(sorted(unknown))} that could be changed")
    if (fields.get("finished") is None) != (fields.get("outcome") is None):
        raise TypeError("an expiry ends with `finished` and `outcome`")


def newest(connection: Connection, limit: int) -> list[Expiry]:
    """The last `limit` ones, newest first."""
    return [Expiry(*row) for row in connection.execute(_NEWEST.limit(limit))]


def unfinished(connection: Connection) -> list[Expiry]:
    """Those without an end: running now, or killed. Oldest first."""
    return [Expiry(*row) for row in connection.execute(_UNFINISHED)]
