"""What makes all that the catalogue says doubtful: it was lost, or the clock cannot be right.

Both are looked at whenever it is opened, and kept in it for the dashboard, which can look neither into the pool nor at clocks.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from backupd.expire.clocks import doubt
from backupd.expire.words import expiry_words
from backupd.repo.listing import hosts_of, names_of
from btrkeep.catalogue import Catalogue
from btrkeep.config.published import CLOCK, LOST
from btrkeep.decisions import pool_health as judge
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import WORKING, Pool


@dataclass(frozen=True, slots=True)
class Doubts:
    """`lost`: the pool has backups and the catalogue knows none. `clock`: what is against the clock, None: nothing."""

    lost: bool
    clock: str | None


def is_lost(pool: Pool, catalogue: Catalogue) -> bool:
    """Whether the pool has backups and the catalogue none. Only then the pool is looked at."""
    return not catalogue.has_backups() and has_backups(pool)


def has_backups(pool: Pool) -> bool:
    """Whether there is any, by names alone."""
    try:
        return any(name != WORKING for host in hosts_of(pool) for name in names_of(pool, host))
    except FileNotFoundError:  # nothing was ever backed up
        return False


def see(pool: Pool, catalogue: Catalogue, now: datetime) -> Doubts:
    """What there is; the dashboard is told when it has changed."""
    clock = doubt(catalogue, now, rehearsal=pool.rehearsal)
    found = Doubts(is_lost(pool, catalogue), expiry_words(clock) if clock else None)
    with suppress(OperatorError):  # one that cannot be written says so where something has to be
        for fact, words in ((LOST, "1" if found.lost else None), (CLOCK, found.clock)):
            if words != catalogue.get_fact(fact):
                catalogue.set_fact(fact, words)
    return found


def lost(state: Path) -> OperatorError:
    """What to say of a lost one, and what to do."""
    said = judge.lost(state)
    return OperatorError(said.text, said.hint)
