"""The slots for transfers in a pool, and how many hosts this process can run at the same time. There are `concurrency` slots, and
separate ones for a group, for all programs that start transfers. A slot is a lock, so the slot of a killed run becomes free. rsync
does not inherit it: the next run of the host ends the processes that a killed run left, and until then they must not keep a slot.
Waiting runs queue by one more lock, so that a night, whose next host is always ready, does not get every slot.

Each host needs open files and processes, and both have limits (ulimit -n, TasksMax=). If a run reached such a limit, hosts would
fail that only had to wait.
"""

import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.process import RunCancellation
from btrkeep.config import Config, HostConfig
from btrkeep.errors import LockHeld
from btrkeep.pool.locks import Lock, take_lock
from btrkeep.process.threads import NoThread, start

_LOOK = 0.5  # seconds
_PATIENCE = 120  # attempts; then it continues without the lock that orders waiting runs: its holder may be stopped (Ctrl-Z)


@dataclass(frozen=True, slots=True)
class Slots:
    """A number of slots."""

    name: str
    """The start of the names of their locks."""
    count: int
    """How many there are."""
    whose: str
    """The owner of the slots, in words."""

    def take(self, locks: Path, purpose: str, since: str) -> Lock | None:
        """Takes a free slot; returns None if there is none. Raises PoolUnusable."""
        for number in range(self.count):
            if lock := _tried(locks / f"{self.name}-{number}", purpose, since):
                return lock
        return None


def slots_of(config: Config, host: HostConfig) -> tuple[Slots, ...]:
    """Returns the slots that a transfer of the host needs, in the order in which all runs take them, which avoids deadlocks."""
    group = config.groups.get(host.group or "")
    own = (Slots(f"slot-of-{host.group}", group.concurrency, f" of {host.group}"),) if group and group.concurrency else ()
    return (*own, Slots("slot", config.backup.concurrency, ""))


class HeldSlots:
    """One slot of each kind, for a host's run. `release`, or the end of the context, frees them."""

    def __init__(self, locks: Path, purpose: str, since: str) -> None:
        self._locks, self._what, self._since = locks, purpose, since
        self._held: list[Lock] = []

    def take(self, wanted: Sequence[Slots]) -> Slots | None:
        """Takes free slots; returns the first kind without a free slot; None if it has a slot of each kind. Raises PoolUnusable."""
        missing = [slots for slots in wanted if not self._take(slots)]
        return missing[0] if missing else None

    def take_after_others(self, wanted: Sequence[Slots]) -> Slots | None:
        """Does the same, but takes no slot for which another run waits. Raises PoolUnusable."""
        for slots in wanted:
            queue_lock = self._queue_lock(slots)
            if queue_lock is None:
                return slots
            try:
                if not self._take(slots):
                    return slots
            finally:
                queue_lock.release()
        return None

    async def wait(
        self, wanted: Sequence[Slots], cancellation: RunCancellation, given_up: Callable[[], bool], say: Callable[[Slots], None]
    ) -> bool:
        """Waits until it has a slot of each kind; returns False if stopped or given up. Calls `say` once with the reason for
        waiting.

        Raises PoolUnusable.
        """
        for slots in wanted:
            queue_lock, tries = self._queue_lock(slots), 0
            try:
                while (queue_lock is None and tries < _PATIENCE) or not self._take(slots):
                    if not tries:
                        say(slots)
                    tries += 1
                    await cancellation.wait(_LOOK)
                    if cancellation.reason or given_up():
                        return False
                    queue_lock = queue_lock or self._queue_lock(slots)
            finally:
                if queue_lock is not None:
                    queue_lock.release()
        return True

    def _queue_lock(self, slots: Slots) -> Lock | None:
        return _tried(self._locks / f"{slots.name}-turn", self._what, self._since)

    def _take(self, slots: Slots) -> bool:
        if lock := slots.take(self._locks, self._what, self._since):
            self._held.append(lock)
        return lock is not None

    def release(self) -> None:
        """Releases all slots."""
        while self._held:
            self._held.pop().release()

    def __enter__(self) -> "HeldSlots":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _tried(path: Path, purpose: str, since: str) -> Lock | None:
    try:
        return take_lock(path, purpose, since)
    except LockHeld:
        return None


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a running host."""

    files: int
    """Number of open files."""
    tasks: int
    """Number of processes and threads."""


OPEN = Needs(files=16, tasks=6)
"""Locks, pipes, the descriptor for syncing, and the open folders of a thread that walks through a tree: 7 to 12 files. A thread;
rsync's generator and receiver, the relay, the remote shell, and a program that runs for a moment.
"""
CONFINED = Needs(files=24, tasks=9)
"""In addition: a second descriptor of the lock, the cell's filter and socket, and those for watching its remote shell and passing
on its output. The two processes of the cell itself, and the one that rsync has instead of its remote shell.
"""
_FILES_BESIDE = 24  # the catalogue's files, and files open for a moment


def possible_at_once(wanted: int, each: Needs) -> int:
    """Returns how many hosts may run at the same time, at most `wanted`; 0 if no thread can be started.

    Raises the limit of open files as needed and allowed; if the limit is too low, the result is still one host.
    """
    return min(_by_files(wanted, each.files), _by_tasks(wanted, each.tasks))


def has_files_for(hosts: int, each: Needs) -> bool:
    """Returns True if that many hosts, at least two, can run in addition to the files already open. Raises the limit for them if
    allowed.
    """
    return _by_files(hosts, each.files) >= hosts


def _by_files(wanted: int, each: int) -> int:
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = opened + _FILES_BESIDE + wanted * each
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return wanted
    with suppress(OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(hard, needed), hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(wanted, (limit - opened - _FILES_BESIDE) // each))


def _by_tasks(wanted: int, each: int) -> int:
    """Returns how many hosts can run. Starts as many threads for a moment (300 in 10 ms): they count like processes, wherever the
    limit is set.
    """
    gate, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(wanted * each):
            thread = threading.Thread(target=gate.wait)
            start(thread)
            started.append(thread)
    except NoThread:
        pass
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return max(1, len(started) // each) if started else 0
