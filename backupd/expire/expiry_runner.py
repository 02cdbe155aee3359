"""One expiry, from its lock to its end: the order of the steps; other modules do them.

Restore a mount option that a killed run left; compare the clock with the last run's; finish deletions of a killed run; reconcile
the catalogue with the pool; plan; apply safety limits; delete; mark; remove notes of deleted backups; restore the mount option. A
signal stops it between any two small steps, in a consistent state. Steps that free space come before steps that need some.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from backupd.expire.delete_backups import Deleter
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import read_hosts
from backupd.expire.mark import drop_stale_notes, empty_gone, mark, remove_hosts
from backupd.expire.mount_option import MountOption
from backupd.expire.queue import CleanerQueue, Governor, governor
from backupd.expire.report import PAUSES, ExpiryProgress, Pause, Summary, expiry_words, held_words, stuck_words
from backupd.expire.trust import judge_clock, keep_clocks, read_clocks
from backupd.repo.reconcile import ReconcileResult, reconcile, stand_in
from btrkeep.backup_states import DELETING
from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.clock import elapsed
from btrkeep.decisions.expiry_plan import HostBackups, Plan, deletions_of, make_plan
from btrkeep.decisions.pool_health import lacks_room
from btrkeep.decisions.safety_limits import ClockPast, Forced
from btrkeep.errors import ConfigError, LockHeld, OperatorError
from btrkeep.fs.openat import is_there
from btrkeep.pool import qgroups
from btrkeep.pool.activity import written_bytes
from btrkeep.pool.allocation import read_room
from btrkeep.pool.atomic import NO_ROOM
from btrkeep.pool.locks import BALANCE_LOCK, take_lock
from btrkeep.pool.marker import MARKER
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.proc import start_time
from btrkeep.units import counted, format_time

_EVENT_INTERVAL, _ROW_INTERVAL = 0.25, 1.0
_LOOK_FOR_BACKUPS = 1.0
_LOOK_FOR_BALANCE = 0.5
LONGEST_YIELD = 6 * 3600.0
"""Seconds for which a whole expiry waits for backups: if one were always running, nothing would ever be deleted."""
_DRAINED = 30.0  # seconds without a drop until a paced batch counts as drained: one is very large, or has an open file
_LAST_DROPS = 300.0  # the same at the end, before the mount option is restored
_NO_ROW = 0  # the expiry is not in the catalogue


@dataclass(frozen=True, slots=True)
class ExpiryScope:
    """The scope of an expiry.

    `hosts`: only these, None: all. `asked`: only these backups, by host and name, that an operator wants deleted at once: then
    neither clock nor safety limits apply, and the expiry does not wait for running backups.
    """

    hosts: frozenset[str] | None = None
    asked: frozenset[tuple[str, str]] = frozenset()


EVERYTHING = ExpiryScope()


def dry_run_plan(context: ExpiryContext, forced: Forced, scope: ExpiryScope) -> Plan:
    """Returns what an expiry would do now, by the same decisions; nothing is written, and no lock is needed."""
    verdict, _ = judge_clock(context.catalogue, read_clocks(context.now), forced, rehearsal=context.pool.rehearsal)
    context.summary.clock, context.summary.stop = verdict.wait or verdict.stop, verdict.stop
    context.clock_waits = verdict.wait is not None
    plan = _plan(context, forced, scope)
    context.summary.stop = context.summary.stop or plan.stop
    context.summary.skipped_hosts = dict(plan.skipped_hosts)
    return plan


def _plan(context: ExpiryContext, forced: Forced, scope: ExpiryScope) -> Plan:
    """Returns the plan. The pool's limit counts the deletions of all hosts, so it does not apply to named hosts."""
    if scope.asked:
        forced = replace(forced, pool=True, every_host=True)
    elif scope.hosts is not None:
        forced = replace(forced, pool=True)
    if context.config.unread:  # it may have the retention, or a host whose backups are about to be deleted
        raise ConfigError(context.config.unread, "nothing is deleted until that file can be read: correct it, or move it away")
    facts = _named(context, read_hosts(context.pool, context.catalogue, context.config, scope.hosts))
    plan = make_plan(facts, context.zone, context.now, forced, clock_waits=context.clock_waits)
    return deletions_of(plan, scope.asked) if scope.asked else plan


def _named(context: ExpiryContext, facts: Iterable[HostBackups]) -> Iterator[HostBackups]:
    """Yields the hosts, and reports the backups that cannot be read and are therefore kept."""
    for host in facts:
        for name in host.unread:
            context.sinks.notice(
                f"{host.host} {name} cannot be read, so it is kept; `backupd damaged {host.host}` lists the damage"
            )
        yield host


class ExpiryRunner:
    """One expiry; the caller holds its lock. `wait`: wait until the cleaner has dropped the deleted backups."""

    def __init__(
        self, context: ExpiryContext, forced: Forced, limit: int | None, *, wait: bool, scope: ExpiryScope = EVERYTHING
    ) -> None:
        self.context, self.scope, self.forced = context, scope, forced
        self.limit, self.wait = limit, wait
        self.queue = CleanerQueue(context.pool.path, context.config.expiry.max_orphans)
        self.option = MountOption(context.pool, context.config.expiry.mount_option, context.sinks.notice, context.problem)
        self.deleter: Deleter | None = None
        self.paused: Pause | None = None
        self.row = _NO_ROW
        self.written_before = 0
        self._last_event = self._last_row = self._looked_for_backups = self._yielded = 0.0

    def run(self) -> Summary:
        """Runs the expiry. Raises PoolUnusable, and OperatorError if the catalogue cannot be read at the start; the mount option is
        always restored.
        """
        context, summary = self.context, self.context.summary
        if done := self.option.put_back():
            context.sinks.notice(f"left by a killed expiry: {done}")
        ensure_reserve(context.pool.path)
        self._begin_row()
        error: str | None = "internal error"
        try:
            with ExitStack() as held:
                self._steps(held)
            error = expiry_words(summary.stop) if summary.stop else None
        except (OperatorError, OSError) as problem:
            error = str(problem)
            raise
        finally:
            self.option.put_back()
            self._end_row(error)
        return summary

    def _steps(self, held: ExitStack) -> None:
        """Runs the steps in order; `held` gets the resources that they need until the end. Backups requested by name do not depend
        on the clock.
        """
        context, past = self.context, None
        if not self.scope.asked:
            verdict, past = judge_clock(context.catalogue, read_clocks(context.now), self.forced, rehearsal=context.pool.rehearsal)
            context.summary.clock, context.summary.stop = verdict.wait, verdict.stop
            if not verdict.wait:
                self._keep_clocks(past)
            if verdict.stop:
                return
            context.clock_waits = verdict.wait is not None
            if verdict.wait:
                context.sinks.notice(expiry_words(verdict.wait))
        touched = self._finish_killed()
        if done := self._reconcile(held):
            context.sinks.notice(done.sentence)
        self._carry_out(touched)
        if past and context.clock_waits and not context.cancellation:  # a killed run does not count as the run to wait for
            self._keep_clocks(past)

    def _reconcile(self, held: ExitStack) -> ReconcileResult | None:
        """Reconciles the catalogue with the pool. If it cannot be written, `held` gets an empty one in memory instead, which is
        filled from the pool: nothing is deleted because of rows that may be old.
        """
        context, since = self.context, format_time(self.context.now)
        if not context.rows.problem:
            try:
                done = reconcile(context.pool, context.catalogue, since)
                # The error may be about the catalogue, not about the host.
                if not done.problems or context.rows.write(lambda catalogue: catalogue.set_pool_id(context.pool.id)):
                    return done
            except (CatalogueBusy, CatalogueUnusable) as error:
                context.rows.give_up(error)
        held.callback(setattr, context, "catalogue", context.catalogue)
        context.catalogue = held.enter_context(stand_in(context.pool.id))
        return reconcile(context.pool, context.catalogue, since)

    def _keep_clocks(self, past: ClockPast) -> None:
        self.context.rows.write(lambda catalogue: keep_clocks(catalogue, past))

    def _finish_killed(self) -> list[str]:
        """Removes rows of a killed run's deletions, once the deletions are durable. The rest of its work is planned again."""
        empty_gone(self.context.pool)
        for row in self.context.catalogue.unfinished_expiries():
            if row.id != self.row and start_time(row.pid) != row.pid_started:
                self._update_row(row.id, finished=row.updated, outcome="killed", paused=None)
        left = [(row.host, row.name) for row in self.context.catalogue.states() if row.state == DELETING and row.name]
        gone = [(host, name) for host, name in left if not is_there(self.context.pool.host(host) / name)]
        if gone:
            self.queue.commit()
            self.context.rows.write(lambda catalogue: catalogue.drop_backups(gone))
            self.context.sinks.notice(f"{counted(len(gone), 'deletion')} of a killed expiry had completed")
        return sorted({host for host, _ in gone})

    def _carry_out(self, touched: Sequence[str]) -> None:
        context, summary = self.context, self.context.summary
        plan = _plan(context, self.forced, self.scope)
        summary.skipped_hosts, summary.stop = dict(plan.skipped_hosts), plan.stop
        summary.waiting_for_grace = plan.count("wait")
        summary.planned = plan.count("delete") if self.limit is None else min(self.limit, plan.count("delete"))
        context.sinks(plan)
        if not plan.stop:
            at_once = [host for host in plan.hosts if host.goes_at_once]  # without a grace, but still marked first
            self._as_room_allows(lambda: mark(context, at_once))
            without_grace = summary.marked
            self._delete(plan)
            stale = sorted({*touched, *plan.stale, *(self.deleter.hosts if self.deleter else ())})
            self._as_room_allows(lambda: mark(context, plan.hosts), lambda: drop_stale_notes(context, stale))
            summary.waiting_for_grace += summary.marked - without_grace
            remove_hosts(context, self.queue, [host.host for host in plan.hosts if host.forgotten])
            self._remove_groups()
        summary.still_waiting = self.queue.count_waiting()
        summary.most_waiting = self.queue.most_waiting

    def _remove_groups(self) -> None:
        """Removes unused quota groups. A failure is ignored, because an empty group does no harm."""
        try:
            qgroups.remove_unused(self.context.pool)
        except OSError as error:
            self.context.problem(f"empty groups of simple quotas could not be removed: {error.strerror}")

    def _as_room_allows(self, *steps: Callable[[], None]) -> None:
        """Leaves notes that do not fit, even with the reserve, to the next run: they must not prevent the deletions."""
        try:
            for step in steps:
                step()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.context.problem(
                "the pool is too full to record the expired backups; the next expiry does that, once there is free space"
            )

    def _delete(self, plan: Plan) -> None:
        self.deleter = Deleter(self.context, self.queue, plan, self.limit)
        self.context.summary.rest = self.deleter.left
        if self.deleter.is_done():
            return
        with self._alone(), governor(self.context.config.expiry.pace, self.context.pool.path / MARKER, self.queue.most) as pace:
            self._switch()
            try:
                while not self.deleter.is_done() and not self.context.cancellation:
                    self._yield_to_backups(self.deleter)
                    self._one_batch(self.deleter, pace)
                    if self.queue.stuck:
                        self.context.problem(stuck_words(self.queue.waiting))
                        break
            finally:
                self.deleter.reader.close()
                self.deleter.settle()
        self.context.summary.rest = self.deleter.left + self.deleter.busy
        if self.wait or self.option.switched:
            patience = None if self.wait else _LAST_DROPS
            held = self.queue.wait_until_dropped(self.deleter.deleted, self.context.cancellation, self._tick, patience)
            if held:
                (self.context.problem if self.wait else self.context.sinks.notice)(held_words(self.deleter.deleted, held))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps btrfs-balancer from starting a block group. Waits for the end of a running block group: btrfs-balancer sees this
        lock and cancels it.

        It does not wait for a balance of another program, which may take days.
        """
        lock = None
        while not lock and not self.context.cancellation:
            try:
                lock = take_lock(self.context.pool.locks / BALANCE_LOCK, "backupd expire", format_time(self.context.now))
            except LockHeld:
                self._pause(Pause.BALANCE, _LOOK_FOR_BALANCE)
        try:
            yield
        finally:
            if lock:
                lock.release()

    def _one_batch(self, deleter: Deleter, pace: Governor) -> None:
        if pace.paced:
            self._pause(Pause.PACE, pace.rest)
        deleter.read_ahead(self.queue.most)  # while the cleaner drops the queued ones
        room = self.queue.wait_for_room(self.context.cancellation, self._tick)
        begun, is_asleep = time.monotonic(), not self.queue.moving()
        pace.begin()
        deleter.batch(min(room, pace.width))
        if pace.paced or is_asleep:  # the cleaner sleeps until a commit
            deleter.settle()
        if pace.paced:
            self.queue.wait_until_dropped(deleter.deleted, self.context.cancellation, self._tick, _DRAINED)
            pace.judge(time.monotonic() - begun)
        self._tick()
        self.context.sinks(self._progress(batch=True))

    def _pause(self, why: Pause, seconds: float) -> None:
        self.paused, end = why, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.context.cancellation:
            self._tick()
            self.context.cancellation.sleep(min(left, _EVENT_INTERVAL))
        self.paused = None

    def _switch(self) -> None:
        self.option.switch()
        if self.option.switched:
            self.context.summary.mount_option = self.option.wanted

    def _yield_to_backups(self, deleter: Deleter) -> None:
        if (
            self.scope.asked
            or not self.context.config.expiry.yield_to_backups
            or time.monotonic() - self._looked_for_backups < _LOOK_FOR_BACKUPS
        ):
            return
        self._looked_for_backups = begun = time.monotonic()
        if not self._is_to_yield():
            return
        deleter.settle()
        self.context.sinks.notice(f"paused: {PAUSES[Pause.BACKUPS]}")
        self.option.put_back()
        before = self._yielded
        while self._is_to_yield() and not self.context.cancellation:
            self._pause(Pause.BACKUPS, _LOOK_FOR_BACKUPS)
            self._yielded = before + time.monotonic() - begun
        deleter.reader.forget()
        if not self.context.cancellation:
            self._switch()

    def _is_to_yield(self) -> bool:
        """Returns True while a backup runs, unless the expiry has waited long enough, or the pool needs the space."""
        if self._yielded >= LONGEST_YIELD or self.context.rows.problem or not backups_run(self.context.catalogue):
            return False
        return not lacks_room(read_room(self.context.pool.path), self.context.config.pool.min_free)

    # --- notices

    def _progress(self, *, batch: bool = False) -> ExpiryProgress:
        summary, rate = self.context.summary, self.queue.rate()
        deleted = summary.deleted + (self.deleter.unsettled if self.deleter else 0)
        ahead = self.queue.waiting + max(0, summary.planned - deleted)
        left = ahead / rate if rate else None
        return ExpiryProgress(deleted, summary.planned, self.queue.waiting, self.queue.most, rate, left, self.paused, batch)

    def _tick(self) -> None:
        """Updates sinks and catalogue a few times a second, and settles deletions every few seconds."""
        now = time.monotonic()
        if self.deleter:
            self.deleter.settle_if_due()
        if now - self._last_event >= _EVENT_INTERVAL:
            self._last_event = now
            self.context.sinks(self._progress())
        if now - self._last_row >= _ROW_INTERVAL:
            self._last_row = now
            self._update_row(self.row, **self._fields())

    def _begin_row(self) -> None:
        context, pid = self.context, os.getpid()
        self.written_before = written_bytes(context.pool.path)
        hosts = None if self.scope.hosts is None else len(self.scope.hosts)

        def start(catalogue: Catalogue) -> None:
            self.row = catalogue.start_expiry(context.now, pid, start_time(pid), hosts=hosts)

        context.rows.write(start)

    def _update_row(self, row_id: int, *, is_last: bool = False, **fields: Any) -> None:
        if row_id != _NO_ROW:
            self.context.rows.write(lambda catalogue: catalogue.update_expiry(row_id, **fields), is_last=is_last)

    def _fields(self) -> dict[str, Any]:
        summary, progress = self.context.summary, self._progress()
        return {
            "planned": summary.planned,
            "marked": summary.marked,
            "revived": summary.revived,
            "deleted": summary.deleted,
            "left_out": len(summary.skipped_hosts),
            "waiting": progress.waiting,
            "most_waiting": self.queue.most_waiting,
            "rate": progress.rate,
            "eta": progress.left,
            "written_bytes": written_bytes(self.context.pool.path) - self.written_before,
            "mount_option": summary.mount_option,
            "paused": PAUSES[self.paused] if self.paused else None,
            "updated": self._moment(),
        }

    def _end_row(self, error: str | None) -> None:
        """Records the end of the expiry. `error`: the reason why it ended early, None if it did not."""
        summary = self.context.summary
        summary.seconds, summary.ended_by = elapsed() - summary.begun, self.context.cancellation.signal
        summary.error = None if summary.stop else error
        fields = self._fields()
        summary.written_bytes = fields["written_bytes"]
        ended = {"finished": self._moment(), "outcome": summary.outcome, "error": error, "eta": None, "paused": None}
        fields.update(ended)
        self._update_row(self.row, is_last=True, **fields)

    def _moment(self) -> datetime:
        """Returns the current time, by the clock that this run started with."""
        return self.context.now + timedelta(seconds=elapsed() - self.context.summary.begun)


def backups_run(catalogue: Catalogue) -> bool:
    """Returns whether a backup is running: a run without an end, of a live process."""
    return any(start_time(run.pid) == run.pid_started for run in catalogue.unfinished_runs())
