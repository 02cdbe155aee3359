"""Rows of balance and balance_step: runs of `btrfs-balancer run`, and the block groups in each. A later id is a later run."""

from datetime import datetime
from typing import Any

from btrkeep.catalogue.model_balance import Balance, BalanceFields, BalanceStep
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import balance, balance_step

_NOTHING_YET = {"block_groups": 0, "moved": 0, "gained": 0.0, "failed": 0}
_FIRST: dict[str, Any] = dict.fromkeys(balance.columns) | _NOTHING_YET
_NEWEST = f"""
    SELECT {balance.select()} FROM balance WHERE filesystem = :filesystem AND (:since IS NULL OR started >= :since)
    ORDER BY id DESC LIMIT :most"""
_UNFINISHED = f"SELECT {balance.select()} FROM balance WHERE finished IS NULL ORDER BY id"
_STEPS = f"SELECT {balance_step.select()} FROM balance_step WHERE balance = :id ORDER BY number"
_MEASURED = f"""
    SELECT {balance_step.select()} FROM balance_step JOIN balance ON balance.id = balance_step.balance
    WHERE balance.filesystem = :filesystem AND balance_step.outcome = 'done'
    ORDER BY balance.id DESC, balance_step.number DESC LIMIT :most"""
_ALL = 1 << 62


def start(session: Session, row: dict[str, Any], given: BalanceFields) -> int:
    """A new run, `row` with the columns that never change; its id."""
    _validate_fields(given)
    row = {**_FIRST, "updated": row["started"], **row, **balance.kept(given)}
    return session.run(balance.insert(but="id"), row).lastrowid or 0


def update_fields(session: Session, balance_id: int, changes: BalanceFields) -> None:
    """Change the given fields. Raises KeyError when there is no such run, TypeError for a field that it does not have."""
    _validate_fields(changes)
    if changes and session.run(balance.update(changes, "id = :id"), {**balance.kept(changes), "id": balance_id}).rowcount == 0:
        raise KeyError(balance_id)


def finish(session: Session, balance_id: int, changes: BalanceFields) -> None:
    """The same for a run that ends. Raises TypeError when `finished` or `outcome` is missing."""
    if changes.get("finished") is None:
        raise TypeError("a balance ends with `finished` and `outcome`")
    update_fields(session, balance_id, {**changes, "current": None})


def _validate_fields(given: BalanceFields) -> None:
    if unknown := given.keys() - BalanceFields.__annotations__.keys():
        raise TypeError(f"a balance has no field {', '.join(sorted(unknown))} that could be changed")
    if (given.get("finished") is None) != (given.get("outcome") is None):
        raise TypeError("a balance ends with `finished` and `outcome`")


def add_step(session: Session, step: BalanceStep) -> None:
    """One more block group of a run that is there."""
    session.run(balance_step.insert(), balance_step.values(step))


def newest(session: Session, filesystem: str, limit: int | None, since: datetime | None) -> list[Balance]:
    """The last `limit` runs on a filesystem, None: all, newest first."""
    values = {"filesystem": filesystem, "since": since, "most": _ALL if limit is None else limit}
    return [Balance(*row) for row in session.all(_NEWEST, values)]


def unfinished(session: Session) -> list[Balance]:
    """Those without an end: running now, or killed. Oldest first."""
    return [Balance(*row) for row in session.all(_UNFINISHED)]


def steps(session: Session, balance_id: int) -> list[BalanceStep]:
    """The block groups of a run, in their order."""
    return [BalanceStep(*row) for row in session.all(_STEPS, {"id": balance_id})]


def measured(session: Session, filesystem: str, limit: int) -> list[BalanceStep]:
    """The last `limit` block groups that were relocated on a filesystem, newest first."""
    return [BalanceStep(*row) for row in session.all(_MEASURED, {"filesystem": filesystem, "most": limit})]
