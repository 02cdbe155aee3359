"""Sums over many rows, for those who tell how it goes: the database adds them up, the rows themselves take seconds to read."""

from datetime import datetime

from btrkeep.catalogue.model_alarm import BalanceTotals, ExpiryTotals, RunTotals
from btrkeep.catalogue.sqlite import Session

_RUNS = """
    SELECT outcome, count(*), coalesce(sum(literal_bytes), 0) FROM run
    WHERE finished BETWEEN :since AND :latest AND outcome IS NOT NULL GROUP BY outcome ORDER BY outcome"""
_BALANCES = """
    SELECT count(*), coalesce(sum(block_groups), 0), coalesce(sum(moved), 0), coalesce(sum(written), 0) FROM balance
    WHERE filesystem = :filesystem"""
_EXPIRIES = "SELECT count(*), coalesce(sum(deleted), 0) FROM expiry"
_STATES = "SELECT state, count(*) FROM backup GROUP BY state"


def runs(session: Session, since: datetime, latest: datetime) -> list[RunTotals]:
    """Of the runs that ended at `since` or later, and not after `latest`, by outcome."""
    return [RunTotals(*row) for row in session.all(_RUNS, {"since": since, "latest": latest})]


def balances(session: Session, filesystem: str) -> BalanceTotals:
    """Of all runs on a filesystem."""
    (row,) = session.all(_BALANCES, {"filesystem": filesystem})
    return BalanceTotals(*row)


def expiries(session: Session) -> ExpiryTotals:
    """Of all runs of `expire`."""
    (row,) = session.all(_EXPIRIES)
    return ExpiryTotals(*row)


def states(session: Session) -> dict[str, int]:
    """How many backups there are in each state; a state without any is not there."""
    return dict(session.all(_STATES))
