"""Rows of expiry: the runs of `expire`, what each does now, and what became of it. A later id is a later run."""

from datetime import datetime

from btrkeep.catalogue.model import Expiry, ExpiryFields
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import expiry

_FIRST = dict.fromkeys(expiry.columns) | {"planned": 0, "marked": 0, "revived": 0, "deleted": 0, "left_out": 0}
_NEWEST = f"SELECT {expiry.select()} FROM expiry ORDER BY id DESC LIMIT :most"
_NEWEST_OF_ALL = f"SELECT {expiry.select()} FROM expiry WHERE hosts IS NULL ORDER BY id DESC LIMIT :most"
_UNFINISHED = f"SELECT {expiry.select()} FROM expiry WHERE finished IS NULL ORDER BY id"


def start(session: Session, started: datetime, pid: int, pid_started: str | None, fields: ExpiryFields) -> int:
    """A new expiry; its id."""
    _validate_fields(fields)
    row = {**_FIRST, "started": started, "updated": started, "pid": pid, "pid_started": pid_started, **fields}
    return session.run(expiry.insert(but="id"), row).lastrowid or 0


def update_fields(session: Session, expiry_id: int, changes: ExpiryFields) -> None:
    """Change the given fields. Raises KeyError when there is no such expiry, TypeError for a field that it does not have."""
    _validate_fields(changes)
    if changes and session.run(expiry.update(changes, "id = :id"), {**changes, "id": expiry_id}).rowcount == 0:
        raise KeyError(expiry_id)


def _validate_fields(fields: ExpiryFields) -> None:
    if unknown := fields.keys() - ExpiryFields.__annotations__.keys():
        raise TypeError(f"an expiry has no field {', '.join(sorted(unknown))} that could be changed")
    if (fields.get("finished") is None) != (fields.get("outcome") is None):
        raise TypeError("an expiry ends with `finished` and `outcome`")


def newest(session: Session, limit: int, *, of_all: bool = False) -> list[Expiry]:
    """The last `limit` ones, newest first; with `of_all` those of all hosts."""
    return [Expiry(*row) for row in session.all(_NEWEST_OF_ALL if of_all else _NEWEST, {"most": limit})]


def unfinished(session: Session) -> list[Expiry]:
    """Those without an end: running now, or killed. Oldest first."""
    return [Expiry(*row) for row in session.all(_UNFINISHED)]
