"""The work on one host that runs beside the fetching of the next one, and the progress of a host."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from btrkeep.process.threads import NoThread, start

_TOGETHER, _LONGEST, _MOST = 8, 0.5, 32  # hosts, seconds, hosts


@dataclass(slots=True)
class HostProgress:
    """The progress of a host, in bytes. One thread receives and another renames; each field is written by one thread at a time."""

    came: int = 0
    """Bytes of the finished streams."""
    coming: int = 0
    """Bytes of the present stream."""
    named: int = 0
    """Bytes of backups that have their final names."""
    announced: int | None = None
    """Bytes of the current stream, as the other server announced; None: not announced."""
    is_received: bool = False
    """True if all streams have been received."""
    is_named: bool = True
    """True if all received backups have their final names."""

    @property
    def is_over(self) -> bool:
        return self.is_received and self.is_named

    @property
    def unnamed(self) -> int:
        """Returns the bytes that were received but have no final name yet."""
        return max(0, self.came + self.coming - self.named)

    @property
    def left(self) -> int:
        """Returns the missing bytes of the current stream, as announced by the other server."""
        return max(0, (self.announced or 0) - self.coming)

    def expect(self, size: int | None) -> None:
        """Begins a further stream."""
        self.came, self.coming, self.announced = self.came + self.coming, 0, size


class Finisher:
    """Finishes hosts while the next ones are being received, some hosts at once. A context, which waits for all work at its end,
    and raises NoThread at its start. `guarded` runs the work of a host, keeps its error, and returns whether it succeeded.

    If several hosts are finished at the same moment, their syncs and snapshots become one or two commits, instead of one for each
    host.
    """

    def __init__(self, guarded: Callable[[str, Callable[[], None]], bool]) -> None:
        self._guarded = guarded
        self._changed = threading.Condition()
        self._waiting = list[tuple[str, Callable[[], None]]]()
        self._since = 0.0
        self._working = Counter[str]()
        self._failed = set[str]()
        self._hurries = self._ends = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Finisher":
        start(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def begin(self, host: str, work: Callable[[], None]) -> None:
        """Schedules the work of a host, together with that of others that arrive within a moment."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _TOGETHER and self._working.total() < _MOST)
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append((host, work))
            self._changed.notify_all()

    def hurry(self) -> None:
        """Starts all scheduled work now; it waits for no more hosts."""
        with self._changed:
            self._hurry()

    def wait(self) -> None:
        """Waits for the end of all started work."""
        self._wait_until(lambda: not self._waiting and not self._working.total())

    def is_well(self, host: str) -> bool:
        """Returns False if work of that host has failed; waits for its end."""
        self._wait_until(lambda: not self._working[host] and all(host != other_host for other_host, _ in self._waiting))
        return host not in self._failed

    def _hurry(self) -> None:
        if self._waiting and not self._hurries:  # waiting threads do not wake each other needlessly
            self._hurries = True
            self._changed.notify_all()

    def _wait_until(self, true: Callable[[], bool]) -> None:
        with self._changed:
            while not true():
                self._hurry()
                self._changed.wait()

    def _run(self) -> None:
        """Starts the scheduled work. It does not wait for the end: a host that hangs would delay the others."""
        while tasks := self._next():
            for thread, task in [(threading.Thread(target=self._finish_backup, args=pending), pending) for pending in tasks]:
                try:
                    start(thread)
                except NoThread:
                    self._finish_backup(*task)
        self.wait()

    def _next(self) -> list[tuple[str, Callable[[], None]]]:
        """Returns the work to be started together; nothing at the end."""
        with self._changed:
            while not self._is_time():
                if self._ends and not self._waiting:
                    return []
                self._changed.wait(max(0.0, self._since + _LONGEST - time.monotonic()) if self._waiting else None)
            tasks, self._waiting, self._hurries = self._waiting, [], False
            self._working.update(host for host, _ in tasks)
            self._changed.notify_all()
            return tasks

    def _is_time(self) -> bool:
        is_long = time.monotonic() - self._since >= _LONGEST
        return bool(self._waiting) and (self._hurries or self._ends or is_long or len(self._waiting) >= _TOGETHER)

    def _finish_backup(self, host: str, work: Callable[[], None]) -> None:
        is_well = self._guarded(host, work)
        with self._changed:
            if not is_well:
                self._failed.add(host)
            self._working[host] -= 1
            self._changed.notify_all()
