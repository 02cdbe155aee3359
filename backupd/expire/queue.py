"""The cleaner's queue: deleted subvolumes of any program that the kernel has not dropped yet, its free slots, and the pace.

A deletion returns at once; one kernel thread drops the tree later. Thousands of deletions cannot be stopped any longer once they
are made. So only a limited number may wait at any time, and a cancelled expiry leaves at most that many.

The cleaner drops subvolumes as fast as it can; the only way to slow it down is to give it fewer. So with a pace, the queue is
filled with a few subvolumes, drained, and left empty for a while. Their number and the length of the pause follow from
measurements: the longest time of a small write with fsync, or the share of time in which processes waited for I/O (PSI). Above the
configured value: half as many and longer pauses; well below: some more, and shorter pauses. (Additive increase, multiplicative
decrease, as in TCP.)
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from backupd.expire.report import DeletedBackup
from btrkeep.config import Pace
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.orphans import Drop, dead_roots, orphan_items
from btrkeep.pool.subvolume import commit
from btrkeep.process.proc import FolderUser, folder_users
from btrkeep.process.progress import Cancellation
from btrkeep.process.threads import NoThread, start
from btrkeep.procfs import IoPressure

_REFILL = 0.5  # share of the limit below which the queue is refilled
_PAUSE = 0.03  # between two readings, which take 0.2 ms each; in a pause the cleaner drops about 30 unchanged snapshots
_ASLEEP = 0.2  # seconds without a drop until the cleaner is woken: it may have found its list empty a moment too early
_STUCK = 5.0  # seconds without a drop until the queue is refilled, however little fits
_LONGEST_STANDSTILL = 30.0
_HOLDERS = 3.0  # seconds without a drop until processes that hold subvolumes are searched, and between two searches
PATIENCE = 300.0  # seconds
_RATE_WINDOW = 60.0


class CleanerQueue:
    """Watches the queue of the filesystem of `path`; `most` subvolumes may wait.

    After `patience` seconds without a drop, or any progress of one, the cleaner has nothing that it can drop.
    """

    def __init__(self, path: Path, most: int, patience: float = PATIENCE) -> None:
        self.path = path
        self.most = most
        self.patience = patience
        self.stuck = False
        self._drops: frozenset[Drop] = frozenset()
        self._looked_for_holders = 0.0
        self.most_waiting = 0
        self.dropped = 0
        self._ids: set[int] = set()
        self._looks = 0
        self._first_seen: dict[int, int] = {}  # number of the reading
        self._dropped_up_to = 0  # first reading of the newest dropped subvolume
        self._seen: deque[tuple[float, int]] = deque()
        self._changed = time.monotonic()
        self._wake_after = _ASLEEP

    @property
    def waiting(self) -> int:
        """Returns how many subvolumes waited at the last reading."""
        return len(self._ids)

    def count_waiting(self) -> int:
        """Returns how many subvolumes wait now. Raises PoolUnusable."""
        try:
            ids = set(orphan_items(self.path))
        except OSError as error:
            raise PoolUnusable(f"{self.path}: {error.strerror}", "check the kernel's messages (dmesg)") from error
        now = time.monotonic()
        gone = len(self._ids - ids)
        self._keep_order(ids)
        if ids != self._ids:
            self._changed, self._wake_after = now, _ASLEEP
        self.dropped += gone
        self._ids = ids
        self.most_waiting = max(self.most_waiting, len(ids))
        if not self._seen or now - self._seen[-1][0] >= 0.25:
            self._seen.append((now, self.dropped))
        while now - self._seen[0][0] > _RATE_WINDOW:  # the last one is never that old
            self._seen.popleft()
        return len(ids)

    def _keep_order(self, ids: set[int]) -> None:
        self._looks += 1
        self._dropped_up_to = max([self._dropped_up_to, *(self._first_seen[subvolid] for subvolid in self._ids - ids)])
        self._first_seen = {subvolid: self._first_seen.get(subvolid, self._looks) for subvolid in ids}

    def moving(self) -> int:
        """Returns how many subvolumes the cleaner can drop. It drops them in order: those that wait longer than a dropped one are
        held open by a process.
        """
        return sum(first >= self._dropped_up_to for first in self._first_seen.values())

    def full(self) -> bool:
        """Returns whether the queue is full now. Called before every single deletion, because other programs delete too."""
        return self.count_waiting() >= self.most

    def rate(self) -> float | None:
        """Returns drops per second over the last minute, None if nothing was dropped."""
        if not self._seen:
            return None
        since, before = self._seen[0]
        spent = time.monotonic() - since
        return (self.dropped - before) / spent if spent > 1 and self.dropped > before else None

    def wait_for_room(self, cancellation: Cancellation, tick: Callable[[], None]) -> int:
        """Waits until at most half of the limit are waiting, and returns how many may be deleted.

        Subvolumes that a process holds by an open file use slots, but are not waited for. Returns 0 if cancelled, or if such
        subvolumes use all slots for longer than the patience: then `stuck` is set.
        """
        while not cancellation:
            room = self.most - self.count_waiting()
            if room > 0 and (self.moving() <= int(self.most * _REFILL) or self._standing() > _STUCK):
                return room
            if self._gives_nothing():
                self.stuck = True
                break
            self._wake_if_asleep()
            tick()
            cancellation.sleep(_PAUSE)
        return 0

    def wait_until_dropped(
        self, deleted: Mapping[int, DeletedBackup], cancellation: Cancellation, tick: Callable[[], None], patience: float | None
    ) -> dict[int, FolderUser | None]:
        """Waits until all of these are dropped, or it is cancelled, or nothing was dropped for `patience` seconds; or until only
        subvolumes are left that are held by an open file or a working directory.

        Returns the held subvolumes by id, each with the process; None if no process is found (a mount also holds a subvolume).
        """
        while not cancellation:
            self.count_waiting()
            left = {subvolid: deleted[subvolid] for subvolid in deleted.keys() & self._ids}
            if not left or (patience is not None and self._standing() > patience):
                break
            if held := self._held(left):
                return held
            self._wake_if_asleep()
            tick()
            cancellation.sleep(_PAUSE)
        return {}

    def _held(self, left: Mapping[int, DeletedBackup]) -> dict[int, FolderUser | None]:
        """Returns the processes that hold the remaining subvolumes, if all are held; nothing while the cleaner may be able to drop
        one.
        """
        now = time.monotonic()
        if self._standing() < _HOLDERS or now - self._looked_for_holders < _HOLDERS:
            return {}
        self._looked_for_holders = now
        holders = folder_users({deleted.path for deleted in left.values()})
        users_by_id = {subvolid: holders.get(deleted.path) for subvolid, deleted in left.items()}
        return users_by_id if all(users_by_id.values()) or self._gives_nothing() else {}

    def _gives_nothing(self) -> bool:
        """Returns True if nothing has changed for so long that the cleaner cannot be dropping anything: a large drop records its
        progress.
        """
        if self._standing() < self.patience:
            return False
        drops = frozenset(dead.drop for dead in dead_roots(self.path) if dead.drop)
        if drops == self._drops:
            return True
        self._drops, self._changed = drops, time.monotonic()
        return False

    def commit(self) -> None:
        """Makes the deletions so far durable, and wakes the cleaner. Raises PoolUnusable."""
        try:
            commit(self.path)
        except OSError as error:
            raise PoolUnusable(f"{self.path}: {error.strerror}", "check the kernel's messages (dmesg)") from error

    def _standing(self) -> float:
        return time.monotonic() - self._changed

    def _wake_if_asleep(self) -> None:
        """Wakes the cleaner, which sleeps after a deletion. The intervals grow: one large subvolume may take an hour."""
        if self._standing() > self._wake_after:
            self._wake_after = min(_LONGEST_STANDSTILL, 2 * self._standing())
            self.commit()


PROBE = "pace-probe"
_FIRST_WIDTH = 4
_EVERY = 0.05  # seconds between two probes: twenty small writes a second are negligible
_LONGEST_REST = 10.0
_SHORTEST_REST = 0.05
_WELL_BELOW = 0.6  # share of the configured limit


class Probe(Protocol):
    """A measurement. `take` returns the worst value since the last call, None if nothing was measured."""

    def take(self) -> float | None: ...
    def close(self) -> None: ...


class Governor:
    """Adapts the load of an expiry to the pace. `width`: how many subvolumes may wait for the cleaner at a time. Without a pace
    there is no such limit, and there are no pauses.
    """

    def __init__(self, most: int, limit: float | None, probe: Probe | None) -> None:
        self.most = most
        self.limit = limit
        self.probe = probe
        self.width = most if limit is None else min(_FIRST_WIDTH, most)
        self.rest = 0.0 if limit is None else _SHORTEST_REST

    @property
    def paced(self) -> bool:
        """Returns True if a pace is configured."""
        return self.limit is not None

    def begin(self) -> None:
        """Starts a batch: earlier measurements do not count."""
        if self.probe:
            self.probe.take()

    def judge(self, busy: float) -> None:
        """Adapts width and pause after a batch that was deleted and dropped in `busy` seconds."""
        worst = self.probe.take() if self.probe else None
        if worst is None or self.limit is None:
            return
        if worst > self.limit:
            self.width = max(1, self.width // 2)
            self.rest = min(_LONGEST_REST, max(2 * self.rest, busy * min(worst / self.limit - 1, 4)))
        elif worst < _WELL_BELOW * self.limit:
            self.width = min(self.most, self.width + max(1, self.width // 4))
            self.rest = max(_SHORTEST_REST, self.rest / 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.probe:
            self.probe.close()


def governor(pace: Pace | None, folder: Path, most: int) -> Governor:
    """Returns the configured governor; its probe writes in `folder`. Raises OperatorError if the kernel lacks what it needs."""
    if pace is None:
        return Governor(most, None, None)
    if pace.latency is not None:
        return Governor(most, pace.latency, FsyncProbe(folder / PROBE))
    return Governor(most, pace.pressure, PressureProbe())


class FsyncProbe:
    """Repeatedly measures a small write with fsync, in a separate thread, so that it also measures while the batch waits for its
    commit.

    Raises NoThread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._worst: float | None = None
        self._begun: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="pace", daemon=True)
        try:
            start(self._thread)
        except NoThread:
            os.close(self._fd)
            path.unlink()
            raise

    def _go_on(self) -> None:
        while not self._ended.wait(_EVERY):
            with self._lock:
                self._begun = time.monotonic()
            try:
                os.pwrite(self._fd, os.urandom(512), 0)
                os.fsync(self._fd)
            except OSError:  # a failed pool is reported elsewhere
                return
            with self._lock:
                spent = time.monotonic() - self._begun
                self._worst, self._begun = max(self._worst or 0.0, spent), None

    def take(self) -> float | None:
        """Returns seconds; a write that has not returned yet counts with its time so far."""
        with self._lock:
            running = time.monotonic() - self._begun if self._begun else 0.0
            worst = max(self._worst, running) if self._worst is not None else running or None
            self._worst = None
        return worst

    def close(self) -> None:
        """Ends the thread and removes the file."""
        self._ended.set()
        self._thread.join(timeout=30)
        if not self._thread.is_alive():
            os.close(self._fd)
        with suppress(OSError):
            self._path.unlink()


class PressureProbe(IoPressure):
    """The share of time in which any process of the machine waited for I/O."""

    def __init__(self) -> None:
        super().__init__()
        self._require()

    def _require(self) -> None:
        try:
            self.total()
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"this kernel has no I/O pressure information: {error}",
                "boot with psi=1, or give `pace` as a latency, such as 50ms",
            ) from None

    def take(self) -> float | None:
        """Returns the share since the last call, None if that was a moment ago. Raises OperatorError if the kernel no longer
        reports it.
        """
        self._require()
        share = self.share()
        if share is not None:
            self.restart()
        return share

    def close(self) -> None: ...
