"""A governor for expiry: so few deletions at a time, and such pauses, that other work on the pool goes on as configured.

The cleaner drops what it is given as fast as it can; the only way to slow it down is to give it less. So with a pace the queue is
filled with a few subvolumes, drained, and left empty for a while. How many and how long follows from what is measured
meanwhile: how long a small write with fsync took at worst, or how much of the time processes waited for I/O (PSI). More than
configured: half as many and longer pauses; well below: some more, and shorter pauses. (Additive increase, multiplicative
decrease, as TCP does.)
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from btrkeep.config import Pace
from btrkeep.errors import OperatorError
from btrkeep.process.threads import NoThread, start
from btrkeep.procfs import IoPressure

PROBE = "pace-probe"
_FIRST_WIDTH = 4
_EVERY = 0.05  # seconds between two probes: twenty small writes a second are no load
_LONGEST_REST = 10.0
_SHORTEST_REST = 0.05
_WELL_BELOW = 0.6  # of what is configured


class Probe(Protocol):
    """A measurement. `take` returns the worst value since the last call, None if nothing was measured."""

    def take(self) -> float | None: ...
    def close(self) -> None: ...


class Governor:
    """`width`: how many may wait for the cleaner at a time. Without a pace there is no such limit, and there are no pauses."""

    def __init__(self, most: int, limit: float | None, probe: Probe | None) -> None:
        self.most = most
        self.limit = limit
        self.probe = probe
        self.width = most if limit is None else min(_FIRST_WIDTH, most)
        self.rest = 0.0 if limit is None else _SHORTEST_REST

    @property
    def paced(self) -> bool:
        """Returns True if there is a pace at all."""
        return self.limit is not None

    def begin(self) -> None:
        """Begins a batch: earlier measurements do not count."""
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
    """Measures a small write with fsync, again and again, in a thread of its own: also while the batch waits for its commit.

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
            except OSError:  # a pool that broke says so where it matters
                return
            with self._lock:
                spent = time.monotonic() - self._begun
                self._worst, self._begun = max(self._worst or 0.0, spent), None

    def take(self) -> float | None:
        """Returns seconds; one that has not returned yet counts with the time that it has taken so far."""
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
    """The share of time in which some process waited for I/O, machine-wide."""

    def __init__(self) -> None:
        super().__init__()
        self._require()

    def _require(self) -> None:
        try:
            self.total()
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"this kernel does not tell the pressure on I/O: {error}",
                "boot with psi=1, or give `pace` as a latency, such as 50ms",
            ) from None

    def take(self) -> float | None:
        """Returns the share since the last call, None if that was a moment ago. Raises OperatorError if the kernel no longer
        reports it.
        """
        self._require()
        found = self.share()
        if found is not None:
            self.restart()
        return found

    def close(self) -> None: ...
