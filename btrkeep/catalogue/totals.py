"""Sums over many rows, for those who tell how it goes: the database adds them up, the rows themselves take seconds to read."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select

from btrkeep.catalogue.model_alarm import BalanceTotals, ExpiryTotals, RunTotals
from btrkeep.catalogue.tables import backup, balance, expiry, run

_RUNS = (
    select(run.c.outcome, func.count(), func.coalesce(func.sum(run.c.literal_bytes), 0))
    .where(run.c.finished.between(bindparam("since"), bindparam("latest")), run.c.outcome.is_not(None))
    .group_by(run.c.outcome)
    .order_by(run.c.outcome)
)
_BALANCES = select(
    func.count(),
    func.coalesce(func.sum(balance.c.block_groups), 0),
    func.coalesce(func.sum(balance.c.moved), 0),
    func.coalesce(func.sum(balance.c.written), 0),
).where(balance.c.filesystem == bindparam("the_filesystem"))
_EXPIRIES = select(func.count(), func.coalesce(func.sum(expiry.c.deleted), 0))
_STATES = select(backup.c.state, func.count()).group_by(backup.c.state)


def runs(connection: Connection, since: datetime, latest: datetime) -> list[RunTotals]:
    """Of the runs that ended at `since` or later, and not after `latest`, by outcome."""
    return [RunTotals(*row) for row in connection.execute(_RUNS, {"since": since, "latest": latest})]


def balances(connection: Connection, filesystem: str) -> BalanceTotals:
    """Of all runs on a filesystem."""
    return BalanceTotals(*connection.execute(_BALANCES, {"the_filesystem": filesystem}).one())


def expiries(connection: Connection) -> ExpiryTotals:
    """Of all runs of `expire`."""
    return ExpiryTotals(*connection.execute(_EXPIRIES).one())


def states(connection: Connection) -> dict[str, int]:
    """How many backups there are in each state; a state without any is not there."""
    return {row[0]: row[1] for row in connection.execute(_STATES)}
