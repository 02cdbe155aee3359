"""One replication: what was planned is fetched, some hosts at a time.

Each worker has a connection of its own and takes one host after the other. A host that fails costs the others nothing.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress

from backupd.replicate.far_pool import FarHost, FarPool
from backupd.replicate.first_fetch import lacking_room
from backupd.replicate.host_copies import HostCopies
from backupd.replicate.outcome import (
    Fetched,
    HostFailed,
    ReplicationContext,
    ReplicationEvent,
    ReplicationPlan,
    ReplicationProgress,
    ReplicationSummary,
)
from backupd.repo.common import common_with, copied_to, write_common, write_copied
from backupd.repo.received import discard_received, has_received
from backupd.repo.reconcile import row_of
from btrkeep.catalogue import Backup
from btrkeep.decisions.replication import (
    HostFetches,
    obstacle_words,
)
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.locks import at_work, take_lock
from btrkeep.process.progress import Waiting
from btrkeep.units import format_time

log = logging.getLogger(__name__)

_PAUSE = 1.0
_TELL = 0.5  # seconds
_EASE = 20  # what both have is noted in a twentieth of the time at most


def replicate(site: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, FarHost], far: FarPool) -> ReplicationSummary:
    """Fetches what is planned, and has both pools leave alone what they have in common. Raises PoolUnusable."""
    summary = ReplicationSummary(site.replica.name, plan.count)
    summary.failed += [HostFailed(one.host, obstacle_words(one)) for one in plan.unwanted]
    site.observer(plan)
    _discard_left(site, listed)
    blocked = {name for one in plan.obstacles for name in (one.host, one.former_name) if name}
    known = common_with(site.pool, site.replica.name)
    if not known and plan.count and (words := lacking_room(site.config, far)):
        site.observer.notice(f"this is the first fetch, and {words}: all of it may not fit")
    others = {host: name for host, name in known.items() if plan.is_of_some or host in blocked or host in plan.gone}
    work = _Work(site, plan, listed, summary, {**others, **plan.common})
    work.run()
    common, copied = work.note_common(), _copied(site, plan, listed, summary)
    try:
        renamed = {one.host: old for one in plan.obstacles if (old := one.former_name) and old in known}
        common |= {new: known[old] for new, old in renamed.items()}
        copied |= {new: copied[old] for new, old in renamed.items() if old in copied}
        far.note_common(site.replica.name, common, copied)
    except OperatorError as error:  # all is here; at the worst the next one fetches more than differences
        if not site.cancellation:  # the signal has reached the other end too
            site.observer.notice(f"the other pool does not note what both have in common: {error.message}")
    summary.cancelled = bool(site.cancellation)
    return summary


def _copied(
    site: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, FarHost], summary: ReplicationSummary
) -> dict[str, list[str]]:
    """Records the names of all backups that both pools have now, by host, and returns them. Hosts that were not looked at, or that
    the other pool does not list any more, keep what was recorded.
    """
    found = {host: set(names) for host, names in plan.present.items()}
    for one in summary.fetched:
        found.setdefault(one.host, set()).add(one.name)
    blocked = {one.host for one in plan.obstacles}
    before = copied_to(site.pool, site.replica.name)
    copied = {host: names for host, names in before.items() if host not in listed or host in blocked}
    copied |= {host: sorted(names) for host, names in found.items()}
    try:
        write_copied(site.pool, site.replica.name, copied)
    except OSError as error:
        site.observer.notice(f"which backups both pools have cannot be noted here: {error.strerror}")
    return copied


def _discard_left(site: ReplicationContext, hosts: Iterable[str]) -> None:
    """Of all hosts, also those of which nothing is to be fetched: a power cut brings back what was deleted a moment before."""
    for host in hosts:
        if has_received(site.pool, host):
            with suppress(LockHeld), take_lock(site.pool.locks / f"host-{host}", f"replication of {host}", format_time(site.now)):
                discard_received(site.pool, host)


class _Work:
    """The workers, and the thread that began them, which alone knows the catalogue and tells what happens."""

    def __init__(
        self,
        site: ReplicationContext,
        plan: ReplicationPlan,
        listed: Mapping[str, FarHost],
        summary: ReplicationSummary,
        common: Mapping[str, str],
    ) -> None:
        self.site, self.plan, self.listed, self.summary = site, plan, listed, summary
        self._common = dict(common)
        self._noted, self._took, self._told = 0.0, 0.0, time.monotonic()
        self._waiting: queue.SimpleQueue[HostFetches] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[ReplicationEvent | None, Backup | None]] = queue.SimpleQueue()
        self._at: dict[str, int] = {}
        self._expected: dict[str, int | None] = {}
        self._unusable: PoolUnusable | None = None
        self._ends = False
        self._end = time.monotonic() + site.seconds_left if site.seconds_left is not None else None

    def run(self) -> None:
        """Fetches all. Raises PoolUnusable when nothing more can be, and OperatorError of the catalogue."""
        for one in self.plan.hosts:
            self._waiting.put(one)
        threads = [threading.Thread(target=self._work) for _ in range(min(self.site.replica.concurrency, len(self.plan.hosts)))]
        for thread in threads:
            thread.start()
        try:
            self._follow(len(threads))
        finally:
            self._ends = True
            for thread in threads:
                thread.join()
        if self._unusable:
            raise self._unusable

    def _follow(self, working: int) -> None:
        """Does with each event what concerns all, until the last worker has ended."""
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
                self.site.catalogue.put_backup(row)
            if isinstance(event, Fetched):
                if event.again:
                    self.site.catalogue.forget_looks(event.host, event.name)
                self.summary.fetched.append(event)
                self._common[event.host] = max(event.name, self._common.get(event.host, ""))
                if time.monotonic() - self._noted > _EASE * self._took:
                    self.note_common()
            if isinstance(event, HostFailed):
                self.summary.failed.append(event)
            self.site.observer(event)
            self._tell()

    def note_common(self) -> dict[str, str]:
        """Has this pool keep what both have by now, whatever becomes of this process; returns it.

        On a full pool the file of before stays, so an earlier backup is kept instead.
        """
        begun = time.monotonic()
        try:
            write_common(self.site.pool, self.site.replica.name, self._common)
        except OSError as error:
            self.site.observer.notice(f"what both pools have in common cannot be noted here: {error.strerror}")
        self._noted = time.monotonic()
        self._took = self._noted - begun
        return self._common

    def _tell(self) -> None:
        """How far it is, now and then."""
        if time.monotonic() - self._told < _TELL:
            return
        self._told, at = time.monotonic(), dict(self._at)
        size, expected = self.summary.bytes + sum(at.values()), dict(self._expected)
        coming = sum(max(0, (expected.get(host) or 0) - come) for host, come in at.items())
        done, planned = len(self.summary.fetched), self.summary.planned
        self.site.observer(ReplicationProgress(done, planned, size, tuple(at), size + coming))

    def _work(self) -> None:
        """One host after the other. After a failure the connection is closed: nobody knows where in an answer it is."""
        try:
            far: FarPool | None = None
            with ExitStack() as held:
                while not self._is_over and (planned := self._next()):
                    try:
                        far = far or held.enter_context(self.site.connect(self._require_going))
                        self._host(far, planned)
                    except PoolUnusable as error:
                        self._unusable = self._unusable or error
                    except (OperatorError, OSError) as error:
                        self._events.put((HostFailed(planned.host, str(error)), None))
                        held.close()
                        far = None
                    except Exception as error:
                        log.exception("%s", planned.host)
                        self._events.put((HostFailed(planned.host, repr(error)), None))
                        held.close()
                        far = None
                    finally:
                        self._at.pop(planned.host, None)
                        self._expected.pop(planned.host, None)
        finally:
            self._events.put((None, None))

    @property
    def _is_over(self) -> bool:
        return self._ends or bool(self.site.cancellation) or self._unusable is not None

    @property
    def _begins_no_more(self) -> bool:
        """After the end of the window what has begun goes on."""
        if self._end is not None and time.monotonic() > self._end:
            self.summary.out_of_time = True
        return self._is_over or self.summary.out_of_time

    def _require_going(self) -> None:
        if self._is_over:
            raise OperatorError("stopped")

    def _next(self) -> HostFetches | None:
        if self._waiting.empty() or self._begins_no_more:
            return None
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _wait(self) -> None:
        """Gives way to a night, an expiry and a balance."""
        while not self._is_over and (who := at_work(self.site.pool.locks)):
            self._events.put((Waiting(who), None))
            self.site.cancellation.sleep(_PAUSE)

    def _host(self, far: FarPool, planned: HostFetches) -> None:
        host = planned.host

        def expect(size: int | None) -> None:
            self._expected[host], self._at[host] = size, 0

        def follow(size: int) -> None:
            self._at[host] = size

        def tell(done: Fetched) -> None:
            self._at[host], self._expected[host] = 0, None
            self._events.put((done, row_of(self.site.pool, host, done.name)))

        far.waits = lambda why: self._events.put((Waiting(f"{why}, on the other server"), None))
        HostCopies(self.site, far, host, lambda: self._begins_no_more, self._wait, expect, follow, tell).fetch(planned.fetches)
