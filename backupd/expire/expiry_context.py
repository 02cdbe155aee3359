"""The context of an expiry: what its steps share, how they lock a host, report a problem with one, and write to the catalogue.

The catalogue is a copy of the pool's records: an expiry continues without it, and the next reconciling corrects its rows.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from backupd.expire.host_backups import HostOnPool, asked_of, read_host_from_pool
from backupd.expire.report import ExpiryEvent, Summary
from backupd.repo.reconcile import RECONCILING
from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.config import Config
from btrkeep.decisions.expiry_plan import HostPlan, agreed, plan_host
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.locks import Lock, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation, ProgressSinks
from btrkeep.units import format_time, printable

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds for a last attempt: another program may hold the catalogue all night


class RowWriter:
    """Writes to the catalogue until a write fails. `problem`: the reason of the first failure; `report` gets it as a sentence."""

    def __init__(self, catalogue: Catalogue, report: Callable[[str], None]) -> None:
        self._catalogue = catalogue
        self._report = report
        self.problem: OperatorError | None = None

    def write(self, change: Callable[[Catalogue], object], *, is_last: bool = False) -> bool:
        """Calls `change`; returns False if the catalogue cannot be written. Later changes are then skipped, except a last one: each
        would wait for the program that holds the catalogue.
        """
        if self.problem and not is_last:
            return False
        try:
            change(self._catalogue)
        except (CatalogueBusy, CatalogueUnusable) as error:
            self.give_up(error)
            return False
        return True

    def give_up(self, error: OperatorError) -> None:
        """Reports that the catalogue cannot be written; no further change is written."""
        log.info("%s", error)
        if self.problem is None:
            self.problem = error
            if isinstance(error, CatalogueBusy):
                self._catalogue.wait_at_most(_PATIENCE)
            self._report(
                f"{error.message}; the pool's own records are complete, and the next run corrects the catalogue ({error.hint})"
            )


@dataclass(slots=True)
class ExpiryContext:
    """Everything an expiry needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    catalogue: Catalogue
    """The catalogue."""
    now: datetime
    """The start time: a grace that ends later ends for the next expiry."""
    sinks: ProgressSinks[ExpiryEvent]
    """The receivers of its events."""
    summary: Summary = field(default_factory=Summary)
    """The result so far."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    """Ends it early."""
    clock_waits: bool = False
    """True if no grace ends in this run, because the clock is in doubt."""
    rows: RowWriter = field(init=False)
    """Writes to the catalogue; after a failure, the expiry continues without it."""

    def __post_init__(self) -> None:
        self.rows = RowWriter(self.catalogue, self.problem)

    @property
    def zone(self) -> ZoneInfo:
        """The pool's zone."""
        return self.config.pool.zone

    def lock(self, host: str) -> Lock:
        """Takes the host's lock. Raises LockHeld. A backup waits for the lock, because it is never held for long."""
        return take_lock(self.pool.host_lock(host), RECONCILING, format_time(self.now))

    def locked(self, host: str, held: ExitStack) -> bool:
        """Returns whether `held` now has the host's lock. A host that another job uses is reported once, and left to
        the next run.
        """
        try:
            held.enter_context(self.lock(host))
        except LockHeld:
            if host not in self.summary.busy:
                self.summary.busy.append(host)
            return False
        return True

    def recheck_under_lock(self, plan: HostPlan) -> tuple[HostOnPool, HostPlan]:
        """Returns the host as read under its lock, and the actions that are both in the plan and in a new plan from
        this reading.
        """
        on_pool = read_host_from_pool(self.pool, self.config, plan.host, plan.rows)
        again = plan_host(on_pool.facts, self.zone, self.now, clock_waits=self.clock_waits)
        for name in plan.names & on_pool.unreadable.keys():
            if asked_of(on_pool.notes, name):  # it cannot be deleted at all, so later runs do not fail because of it
                self.sinks.notice(f"{plan.host} {name} was abandoned and stays on the disk: {on_pool.unreadable[name]}")
            else:
                self.problem(f"{plan.host} {name} is not deleted: {on_pool.unreadable[name]}")
        return on_pool, agreed(plan, again)

    def problem(self, text: str) -> None:
        """Reports, once, a problem that an operator must check."""
        if text not in self.summary.problems:
            self.summary.problems.append(text)
            self.sinks.notice(printable(text))

    @contextmanager
    def report_errors_of(self, host: str) -> Iterator[None]:
        """Reports an error of one host and continues with the others; a bug gets its traceback in the log.

        An unusable pool ends everything.
        """
        try:
            yield
        except PoolUnusable:
            raise
        except (OperatorError, OSError) as error:
            self.problem(f"{host} is not changed: {error}")
        except Exception as error:
            log.exception("%s", host)
            self.problem(f"{host} is not changed: {error!r}")
