"""Rows of balance and balance_step: runs of `btrfs-balancer run`, and the block groups in each. A later id is a later run."""

from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from btrkeep.catalogue.model_balance import Balance, BalanceFields, BalanceStep
from btrkeep.catalogue.tables import balance, balance_step

_NOTHING_YET = {"block_groups": 0, "moved": 0, "gained": 0.0, "failed": 0}
_STEP_FIELDS = tuple(field.name for field in fields(BalanceStep))
_STEP_VALUES = attrgetter(*_STEP_FIELDS)
_UPDATE = update(balance).where(balance.c.id == bindparam("the_balance"))
_NEWEST = select(balance).where(balance.c.filesystem == bindparam("the_filesystem")).order_by(balance.c.id.desc())
_UNFINISHED = select(balance).where(balance.c.finished.is_(None)).order_by(balance.c.id)
_STEPS = select(balance_step).where(balance_step.c.balance == bindparam("the_balance")).order_by(balance_step.c.number)
_MEASURED = (
    select(balance_step)
    .join(balance, balance.c.id == balance_step.c.balance)
    .where(balance.c.filesystem == bindparam("the_filesystem"), balance_step.c.outcome == "done")
    .order_by(balance.c.id.desc(), balance_step.c.number.desc())
)


def start(connection: Connection, row: dict[str, Any], given: BalanceFields) -> int:
    """A new run, `row` with the columns that never change; its id."""
    _see_that_they_are_known(given)
    key = connection.execute(insert(balance), {**_NOTHING_YET, "updated": row["started"], **row, **given}).inserted_primary_key
    assert key is not None  # one row was inserted, so the dialect says which
    return int(key[0])


def update_fields(connection: Connection, balance_id: int, changes: BalanceFields) -> None:
    """Change the given fields. Raises KeyError when there is no such run, TypeError for a field that it does not have."""
    _see_that_they_are_known(changes)
    if changes and connection.execute(_UPDATE, {**changes, "the_balance": balance_id}).rowcount == 0:
        raise KeyError(balance_id)


def finish(connection: Connection, balance_id: int, changes: BalanceFields) -> None:
    """The same for a run that ends. Raises TypeError when `finished` or `outcome` is missing."""
    if changes.get("finished") is None:
        raise TypeError("a balance ends with `finished` and `outcome`")
    update_fields(connection, balance_id, {**changes, "current": None})


def _see_that_they_are_known(given: BalanceFields) -> None:
    if unknown := given.keys() - BalanceFields.__annotations__.keys():
        raise TypeError(f"a balance has no field {', '.join(sorted(unknown))} that could be changed")
    if (given.get("finished") is None) != (given.get("outcome") is None):
        raise TypeError("a balance ends with `finished` and `outcome`")


def add_step(connection: Connection, step: BalanceStep) -> None:
    """One more block group of a run that is there."""
    connection.execute(insert(balance_step), dict(zip(_STEP_FIELDS, _STEP_VALUES(step), strict=True)))


def newest(connection: Connection, filesystem: str, limit: int | None, since: datetime | None) -> list[Balance]:
    """The last `limit` runs on a filesystem, None: all, newest first."""
    query = _NEWEST if since is None else _NEWEST.where(balance.c.started >= since)
    return [Balance(*row) for row in connection.execute(query.limit(limit), {"the_filesystem": filesystem})]


def unfinished(connection: Connection) -> list[Balance]:
    """Those without an end: running now, or killed. Oldest first."""
    return [Balance(*row) for row in connection.execute(_UNFINISHED)]


def steps(connection: Connection, balance_id: int) -> list[BalanceStep]:
    """The block groups of a run, in their order."""
    return [BalanceStep(*row) for row in connection.execute(_STEPS, {"the_balance": balance_id})]


def measured(connection: Connection, filesystem: str, limit: int) -> list[BalanceStep]:
    """The last `limit` block groups that were relocated on a filesystem, newest first."""
    return [BalanceStep(*row) for row in connection.execute(_MEASURED.limit(limit), {"the_filesystem": filesystem})]
