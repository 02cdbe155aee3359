"""Finds out whether the catalogue can be believed: it may have been lost, or the clock cannot be right.

Both are looked at whenever it is opened, and kept in it for the dashboard, which can look neither into the pool nor at clocks.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from backupd.expire.clocks import doubt
from backupd.expire.words import expiry_words
from backupd.repo.reconcile import all_rows
from btrkeep.catalogue import Catalogue
from btrkeep.config.published import CLOCK, LOST
from btrkeep.decisions import pool_health as judge
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool


@dataclass(frozen=True, slots=True)
class Doubts:
    """`lost`: the pool has backups and the catalogue knows none. `clock`: what is against the clock, None: nothing."""

    lost: bool
    clock: str | None


def is_lost(pool: Pool, catalogue: Catalogue) -> bool:
    """Whether the pool has backups and the catalogue has none. The pool is only read if the catalogue has none."""
    return not catalogue.has_backups() and has_backups(pool)


def has_backups(pool: Pool) -> bool:
    """Whether the pool has a backup that `backupd rebuild` would find: a folder with a backup's name may be somebody's own."""
    try:
        return any(row.name for row in all_rows(pool, trouble=[]))
    except FileNotFoundError:  # nothing was ever backed up
        return False


def see(pool: Pool, catalogue: Catalogue, now: datetime) -> Doubts:
    """Looks for both, and notes a change in the catalogue, for the dashboard."""
    clock = doubt(catalogue, now, rehearsal=pool.rehearsal)
    found = Doubts(is_lost(pool, catalogue), expiry_words(clock) if clock else None)
    with suppress(OperatorError):  # one that cannot be written says so where something has to be
        for fact, words in ((LOST, "1" if found.lost else None), (CLOCK, found.clock)):
            if words != catalogue.get_fact(fact):
                catalogue.set_fact(fact, words)
    return found


def lost(state: Path) -> OperatorError:
    """The error of a lost catalogue, with a hint."""
    said = judge.lost(state)
    return OperatorError(said.text, said.hint)
