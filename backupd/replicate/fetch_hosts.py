"""One replication: fetches the planned backups, some hosts at a time.

Each worker has its own connection and takes one host after the other. A failing host does not affect the others.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from datetime import datetime

from backupd.replicate.fetch_plan import lacking_room
from backupd.replicate.finisher import Finisher, HostProgress
from backupd.replicate.host_copies import HostCopies
from backupd.replicate.outcome import (
    FetchedBackup,
    HostFailed,
    ReplicationContext,
    ReplicationEvent,
    ReplicationPlan,
    ReplicationProgress,
    ReplicationSummary,
    UnreadableCopy,
)
from backupd.replicate.remote_pool import RemotePool
from backupd.replicate.wire import RemoteHost
from backupd.repo.common_backups import common_with, copied_to, write_common, write_copied
from backupd.repo.leftovers import discard_received, has_received
from backupd.repo.verification_files import enter_damages
from btrkeep.catalogue import WHOLE, Backup, Damage
from btrkeep.clock import elapsed
from btrkeep.decisions.replication import (
    HostFetches,
    obstacle_words,
)
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.locks import at_work, take_lock
from btrkeep.process.progress import Waiting
from btrkeep.process.threads import NoThread, start
from btrkeep.units import format_time

log = logging.getLogger(__name__)

_PAUSE = 1.0
_LOOK_AROUND = 0.5  # seconds
_TELL, _TELL_WAIT = 0.5, 60.0  # seconds
_EASE = 20  # at most a twentieth of the time is spent on recording common backups


def replicate(
    context: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, RemoteHost], far: RemotePool
) -> ReplicationSummary:
    """Fetches the planned backups, and makes both pools keep the common backups. Raises PoolUnusable."""
    summary = ReplicationSummary(context.replica.name, plan.count)
    summary.failed += [HostFailed(host_fetches.host, obstacle_words(host_fetches)) for host_fetches in plan.unwanted]
    context.observer(plan)
    for left in _discard_left(context, listed):
        summary.failed.append(left)
        context.observer(left)
    blocked = {name for obstacle in plan.obstacles for name in (obstacle.host, obstacle.former_name) if name}
    common_before = common_with(context.pool, context.replica.name)
    if not common_before and plan.count and (words := lacking_room(context.config, far)):
        context.observer.notice(f"this is the first fetch, and {words}: it may not fit completely")
    others = {host: name for host, name in common_before.items() if plan.is_of_some or host in blocked or host in plan.gone}
    work = _FetchPool(context, plan, listed, summary, {**others, **plan.common}, far)
    work.run()
    common, copied = work.note_common(), _copied(context, plan, listed, summary)
    renamed = {obstacle.host: old for obstacle in plan.obstacles if (old := obstacle.former_name) and old in common_before}
    common |= {new: common_before[old] for new, old in renamed.items()}
    copied |= {new: copied[old] for new, old in renamed.items() if old in copied}
    if work.is_far_well or not context.cancellation:  # a cancelled replication opens no further connection
        fetched = context.now if _is_fetch(plan, summary) else None
        _note_common_there(context, far if work.is_far_well else None, common, copied, fetched)
    summary.cancelled = bool(context.cancellation)
    return summary


def _is_fetch(plan: ReplicationPlan, summary: ReplicationSummary) -> bool:
    """Returns True if a backup was fetched, or if all were here already: the other pool raises an alarm about a copy that has not
    fetched for long.
    """
    return bool(summary.fetched) or not (plan.count or plan.is_of_some or summary.failed)


def _note_common_there(
    context: ReplicationContext,
    far: RemotePool | None,
    common: dict[str, str],
    copied: dict[str, list[str]],
    fetched: datetime | None,
) -> None:
    """Sends the common backups to the other pool, over the connection `far` or another one."""
    try:
        with nullcontext(far) if far else context.connect(lambda: None) as far_pool:
            far_pool.note_common(context.replica.name, common, copied, fetched)
    except OperatorError as error:  # all backups were fetched; at worst the next replication fetches more than differences
        if not context.cancellation:  # the signal has reached the ssh process too
            context.observer.notice(f"the other pool could not record the common backups: {error.message}")


def _copied(
    context: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, RemoteHost], summary: ReplicationSummary
) -> dict[str, list[str]]:
    """Records the names of all common backups, by host, and returns them. For hosts that were not checked, or that the other pool
    no longer lists, the record stays.
    """
    names_by_host = {host: set(names) for host, names in plan.present.items()}
    for fetched in summary.fetched:
        names_by_host.setdefault(fetched.host, set()).add(fetched.name)
    blocked = {obstacle.host for obstacle in plan.obstacles}
    before = copied_to(context.pool, context.replica.name)
    copied = {host: names for host, names in before.items() if host not in listed or host in blocked}
    copied |= {host: sorted(names) for host, names in names_by_host.items()}
    try:
        write_copied(context.pool, context.replica.name, copied)
    except (OSError, OperatorError) as error:  # only the dashboard uses it
        why = error.strerror if isinstance(error, OSError) else error.message
        context.observer.notice(f"could not record here which backups both pools have: {why}")
    return copied


def _discard_left(context: ReplicationContext, hosts: Iterable[str]) -> Iterator[HostFailed]:
    """Deletes leftovers of all hosts, including those with nothing to fetch: after a power cut, recently deleted ones return.

    Yields the hosts for which that fails: the others are fetched anyway.
    """
    for host in hosts:
        try:
            if has_received(context.pool, host):
                with (
                    suppress(LockHeld),
                    take_lock(context.pool.host_lock(host), f"replication of {host}", format_time(context.now)),
                ):
                    discard_received(context.pool, host)
        except (OSError, OperatorError) as error:
            yield HostFailed(host, _error_words(error))


def _error_words(error: OperatorError | OSError) -> str:
    """Formats an error and its remedy in one line."""
    if isinstance(error, OperatorError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error.strerror or str(error)


class _FetchPool:
    """The workers, and the thread that started them, which alone uses the catalogue and reports events."""

    def __init__(
        self,
        context: ReplicationContext,
        plan: ReplicationPlan,
        listed: Mapping[str, RemoteHost],
        summary: ReplicationSummary,
        common: Mapping[str, str],
        far: RemotePool,
    ) -> None:
        """The first worker uses the connection `far`, the others open their own."""
        self._far, self.is_far_well = far, True
        """Returns whether the given connection is still usable afterwards."""
        self.context, self.plan, self.listed, self.summary = context, plan, listed, summary
        self._common = dict(common)
        self._noted, self._took, self._last_report = 0.0, 0.0, time.monotonic()
        self._waiting: queue.SimpleQueue[HostFetches] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[ReplicationEvent | UnreadableCopy | None, Backup | None]] = queue.SimpleQueue()
        self._progress: dict[str, HostProgress] = {}
        self._looked, self._who = -_LOOK_AROUND, ""
        self._unusable: PoolUnusable | None = None
        self._ends = False
        self._end = elapsed() + context.seconds_left if context.seconds_left is not None else None

    def run(self) -> None:
        """Fetches everything. Raises PoolUnusable if nothing more can be fetched, OperatorError of the catalogue, and NoThread."""
        failed = {host_failed.host for host_failed in self.summary.failed}
        for host in self.plan.hosts:
            if host.host not in failed:
                self._waiting.put(host)
        with Finisher(self._is_well) as finisher:
            self._run(finisher)
        if self._unusable:
            raise self._unusable

    def _run(self, finisher: Finisher) -> None:
        threads = list[threading.Thread]()
        wanted = min(self.context.replica.concurrency, len(self.plan.hosts))
        try:
            while len(threads) < wanted:
                thread = threading.Thread(target=self._work, args=(finisher, None if threads else self._far))
                try:
                    start(thread)
                except NoThread as error:
                    if not threads:
                        raise
                    self.context.observer.notice(f"only {len(threads)} of {wanted} hosts at a time: {error.message}")
                    break
                threads.append(thread)
            self._follow(len(threads))
        finally:
            self._ends = True
            for thread in threads:
                thread.join()

    def _follow(self, working: int) -> None:
        """Processes the events that concern all hosts, until the last worker has ended."""
        while working:
            try:
                event, row = self._events.get(timeout=_TELL)
            except queue.Empty:
                self._tell()
                continue
            if event is None:
                working -= 1
                continue
            if row:
                self.context.catalogue.put_backup(row)
            if isinstance(event, UnreadableCopy):
                self._note_unreadable(event)
                continue
            if isinstance(event, FetchedBackup):
                if event.again:
                    self.context.catalogue.delete_verification(event.host, event.name)
                self.context.catalogue.put_damages(event.damages)
                self.summary.fetched.append(event)
                self._common[event.host] = max(event.name, self._common.get(event.host, ""))
                if time.monotonic() - self._noted > _EASE * self._took:
                    self.note_common()
            if isinstance(event, HostFailed):
                self.summary.failed.append(event)
            self.context.observer(event)
            self._tell()

    def _note_unreadable(self, copy: UnreadableCopy) -> None:
        """Records a copy as damaged completely, so that no later difference is based on it."""
        context = self.context
        enter_damages(
            context.pool, context.catalogue, [copy.host], [Damage(copy.host, copy.name, WHOLE, 0, 0, "verify", context.now)]
        )
        context.observer.notice(
            f"{copy.host}@{copy.name}: some of its metadata cannot be read here, so the transfer is based on another copy"
        )

    def note_common(self) -> dict[str, str]:
        """Makes this pool keep the present common backups, whatever happens to this process; returns them.

        On a full pool the previous file stays, so an earlier backup is kept instead.
        """
        begun = time.monotonic()
        try:
            write_common(self.context.pool, self.context.replica.name, self._common)
        except OSError as error:
            self.context.observer.notice(f"could not record the common backups here: {error.strerror}")
        self._noted = time.monotonic()
        self._took = self._noted - begun
        return self._common

    def _tell(self) -> None:
        """Updates the progress from time to time."""
        if time.monotonic() - self._last_report < _TELL:
            return
        self._last_report, at = (
            time.monotonic(),
            {host: host_progress for host, host_progress in list(self._progress.items()) if not host_progress.is_over},
        )
        size = self.summary.bytes + sum(host_progress.unnamed for host_progress in at.values())
        done, planned = len(self.summary.fetched), self.summary.planned
        self.context.observer(
            ReplicationProgress(done, planned, size, tuple(at), size + sum(host_progress.left for host_progress in at.values()))
        )

    def _work(self, finisher: Finisher, lent: RemotePool | None) -> None:
        """Fetches one host after the other. After a failure the connection is closed, because its position in an answer is unknown.

        `lent`: a connection to start with.
        """
        try:
            with ExitStack() as held:
                if far := lent:
                    held.callback(setattr, far, "poll", far.poll)
                    far.poll = self._require_not_stopped
                while not self.deadline_passed and (planned := self._next() or self._next_after(finisher)):

                    def fetch(planned: HostFetches = planned) -> None:
                        nonlocal far
                        far = far or held.enter_context(self.context.connect(self._require_not_stopped))
                        self._host(far, planned, finisher)

                    if not self._is_well(planned.host, fetch):
                        self.is_far_well = self.is_far_well and far is not self._far
                        held.close()
                        far = None
        finally:
            finisher.wait()
            self._events.put((None, None))

    def _is_well(self, host: str, work: Callable[[], None]) -> bool:
        """Returns whether the work raised nothing; an exception is reported."""
        try:
            work()
        except PoolUnusable as error:
            self._unusable = self._unusable or error
        except (OperatorError, OSError) as error:
            self._events.put((HostFailed(host, _error_words(error)), None))
        except Exception as error:
            log.exception("%s", host)
            self._events.put((HostFailed(host, repr(error)), None))
        else:
            return True
        return False

    @property
    def deadline_passed(self) -> bool:
        """Returns True if everything has to end now."""
        return self._ends or bool(self.context.cancellation) or self._unusable is not None

    @property
    def _is_stopped(self) -> bool:
        """Returns whether to start another backup: after the end of the window only started backups continue."""
        if self._end is not None and elapsed() > self._end:
            self.summary.out_of_time = True
        return self.deadline_passed or self.summary.out_of_time

    def _require_not_stopped(self) -> None:
        if self.deadline_passed:
            raise OperatorError("stopped")

    def _next(self) -> HostFetches | None:
        if self._waiting.empty() or self._is_stopped:
            return None
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _next_after(self, finisher: Finisher) -> HostFetches | None:
        """Returns fetches to be repeated, which are known only after all transfers have ended; None if there are none."""
        finisher.wait()
        return self._next()

    def _others(self) -> str:
        """Returns the job that makes, expires or balances backups here, as of at most half a second ago: a check takes a
        millisecond or more.
        """
        if time.monotonic() - self._looked > _LOOK_AROUND:
            self._who, self._looked = at_work(self.context.pool.locks), time.monotonic()
        return self._who

    def _wait(self, far: RemotePool, finisher: Finisher) -> None:
        """Waits for a night, an expiry and a balance."""
        next_told = 0.0
        while not self.deadline_passed and (who := self._others()):
            finisher.hurry()  # to release the locks of hosts
            self._events.put((Waiting(who), None))
            if (now := time.monotonic()) >= next_told:
                far.tell_wait(who)
                next_told = now + _TELL_WAIT
            self.context.cancellation.sleep(_PAUSE)

    def _host(self, far: RemotePool, planned: HostFetches, finisher: Finisher) -> None:
        far.waits = lambda why: self._events.put((Waiting(f"{why}, on the other server"), None))
        host = _HostObserver(self, far, planned.host, finisher)
        self._progress[planned.host] = host.progress
        try:
            HostCopies(self.context, far, planned.host, host).fetch(planned)
        finally:
            host.progress.is_received = True

    def can_continue(self) -> bool:
        """Returns whether to start another backup, and no other job uses the pool."""
        return not self._is_stopped and not self._others()

    def can_start(self, far: RemotePool, finisher: Finisher) -> bool:
        """Waits until other jobs in the pool have ended; returns whether to start another backup."""
        if not self._is_stopped:
            self._wait(far, finisher)
        return not self._is_stopped

    def tell(self, event: FetchedBackup | HostFailed | UnreadableCopy, row: Backup | None = None) -> None:
        """Sends the result to the thread that started the workers."""
        self._events.put((event, row))

    def fetch_again(self, planned: HostFetches) -> None:
        """Puts a host back, if some of its fetches have another parent now."""
        self._waiting.put(planned)


class _HostObserver:
    """The callbacks of the fetching of one host."""

    def __init__(self, work: _FetchPool, far: RemotePool, host: str, finisher: Finisher) -> None:
        self._work, self._far, self._host, self._finisher = work, far, host, finisher
        self.progress = HostProgress()
        self.can_continue = work.can_continue
        self.expect = self.progress.expect

    def wait(self) -> bool:
        return self._finisher.is_well(self._host) and self._work.can_start(self._far, self._finisher)

    def follow(self, size: int) -> None:
        self.progress.coming = size

    @property
    def is_stopped(self) -> bool:
        return self._work.deadline_passed

    def tell(self, done: FetchedBackup, row: Backup) -> None:
        self.progress.named += done.bytes
        self._work.tell(done, row)

    def tell_failed(self, why: str) -> None:
        self._work.tell(HostFailed(self._host, why))

    def tell_unreadable(self, name: str) -> None:
        self._work.tell(UnreadableCopy(self._host, name))

    def fetch_again(self, planned: HostFetches) -> None:
        self._work.fetch_again(planned)

    def finish(self, work: Callable[[], None]) -> None:
        def name() -> None:
            try:
                work()
            finally:
                self.progress.is_named = True

        self.progress.is_named = False
        self._finisher.begin(self._host, name)
