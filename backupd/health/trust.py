"""Checks whether the catalogue and the clock can be trusted: the catalogue may have been lost, or the clock cannot be right.

Both are checked whenever the catalogue is opened, and the result is stored in it for the dashboard, which can read neither the pool
nor the clocks.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from backupd.expire.clocks import clock_doubt
from backupd.expire.report import expiry_words
from backupd.repo.pool_files import hosts_of, names_of
from backupd.repo.reconcile import row_of
from btrkeep.catalogue import Catalogue
from btrkeep.config.published import CLOCK, LOST
from btrkeep.decisions import pool_health as judge
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.marker import Pool


@dataclass(frozen=True, slots=True)
class TrustCheck:
    """`lost`: the pool has backups and the catalogue has none. `clock`: what is wrong with the clock, None if nothing."""

    lost: bool
    clock: str | None


def is_lost(pool: Pool, catalogue: Catalogue) -> bool:
    """Returns True if the pool has backups and the catalogue has none. The pool is only read if the catalogue has none."""
    return not catalogue.has_backups() and has_backups(pool)


def has_backups(pool: Pool) -> bool:
    """True if the pool has a backup. A folder with such a name may be somebody's own; one that cannot be read counts as ours."""
    try:
        return any(_is_ours(pool, host, name) for host in hosts_of(pool) for name in names_of(pool, host))
    except FileNotFoundError:  # nothing was ever backed up
        return False


def _is_ours(pool: Pool, host: str, name: str) -> bool:
    try:
        return row_of(pool, host, name) is not None
    except (LockHeld, PoolUnusable):
        raise
    except (OperatorError, OSError):
        return True


def check_trust(pool: Pool, catalogue: Catalogue, now: datetime) -> TrustCheck:
    """Checks both, and notes a change in the catalogue, for the dashboard."""
    clock = clock_doubt(catalogue, now, rehearsal=pool.rehearsal)
    trust_check = TrustCheck(is_lost(pool, catalogue), expiry_words(clock) if clock else None)
    with suppress(OperatorError):  # one that cannot be written says so where something has to be
        for fact, words in ((LOST, "1" if trust_check.lost else None), (CLOCK, trust_check.clock)):
            if words != catalogue.get_fact(fact):
                catalogue.set_fact(fact, words)
    return trust_check


def lost(state: Path) -> OperatorError:
    """The error of a lost catalogue, with a hint."""
    finding = judge.lost(state)
    return OperatorError(finding.text, finding.hint)
