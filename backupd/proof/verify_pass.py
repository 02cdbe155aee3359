"""One pass of reading: the files it reads, its limits, and its progress. All threads share it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from mmap import mmap
from threading import Lock

from backupd.files.file_digest import small_buffer
from backupd.repo.checksums import Key
from btrkeep.fs.file_data import PIECE
from btrkeep.process.progress import Cancellation
from btrkeep.procfs import IoPressure

STREAMS = 8  # more than processors: with small files, each mostly waits for the disk
_CHECK_EVERY = 1.0  # seconds between two readings of the pressure


@dataclass(frozen=True, slots=True)
class ReadScope:
    """Which files are read."""

    of_all: float = 1.0
    """Reads each file with this probability."""
    seconds: float | None = None
    """No file is started after this many seconds; None: no limit."""
    pressure: float | None = None
    """It pauses above this share of the time in which processes wait for I/O (PSI); None: no pauses."""
    forgets: bool = True
    """True if checksums that were not compared for years are deleted; not while the clock is in doubt."""
    crash: datetime | None = None
    """Only files written into a backup before this crash are read, even if they were read before it; None: no crash."""


@dataclass(slots=True)
class ReadCount:
    """The progress of a pass."""

    files: int = 0
    """Number of files that were read."""
    bytes: int = 0
    """Their bytes."""
    under_way: int = 0
    """Bytes read of large files that are not complete yet."""
    names: int = 0
    """Number of names that were checked, whether their file was read or not."""
    damaged: int = 0
    """Number of names of damaged files."""


class VerifyPass:
    """Reads until it is cancelled or the time is over."""

    def __init__(self, now: datetime, scope: ReadScope, cancellation: Cancellation, tell: Callable[[ReadCount], None]) -> None:
        """Calls `tell` after some files, and during a large one, from the thread that created this."""
        self.now, self.scope, self.cancellation, self.tell = now, scope, cancellation, tell
        self.count = ReadCount()
        self._buffers = [small_buffer() for _ in range(STREAMS)]  # the unused ones
        self._under_way: dict[bytes, int] = {}
        self.bad: dict[tuple[str, Key], int] = {}
        """The first damaged byte of each damaged file that was read, by host and file."""
        self._begun = time.monotonic()
        self._pace, self._pressure, self._checked_at = Lock(), IoPressure(), time.monotonic()

    @property
    def is_over(self) -> bool:
        """Returns True if no further file is read: cancelled, or the time is over."""
        return bool(self.cancellation) or self._is_late

    @property
    def _is_late(self) -> bool:
        return self.scope.seconds is not None and time.monotonic() - self._begun >= self.scope.seconds

    def report_progress(self) -> None:
        """Calls `tell` with the present counts."""
        self.count.under_way = sum(list(self._under_way.values()))
        self.tell(self.count)

    @contextmanager
    def buffer(self) -> Iterator[mmap]:
        """Lends a buffer for `read_small`. Each of the STREAMS threads may hold one."""
        lent = self._buffers.pop()
        try:
            yield lent
        finally:
            self._buffers.append(lent)

    @contextmanager
    def reading(self, path: bytes) -> Iterator[Callable[[], bool]]:
        """Counts the bytes read of a large file: yields `keep_pace`, to be called before each piece. Thread-safe."""
        self._under_way[path] = -PIECE

        def next_piece() -> bool:
            self._under_way[path] += PIECE
            return self.keep_pace()

        try:
            yield next_piece
        finally:
            del self._under_way[path]

    def keep_pace(self) -> bool:
        """Pauses while other jobs wait for the disks for more than the configured time; returns whether to continue.
        Thread-safe.

        A file that was started before the time was over is read to its end, with short pauses; otherwise a file that takes longer
        would never be read.
        """
        if self.scope.pressure is not None and time.monotonic() - self._checked_at >= _CHECK_EVERY:
            with self._pace:  # the others wait here while one of them pauses
                self._pause(self.scope.pressure)
        return not self.cancellation

    def _pause(self, most: float) -> None:
        if time.monotonic() - self._checked_at < _CHECK_EVERY:
            return
        while (self._pressure.share() or 0.0) > most and not self.cancellation:
            self._pressure.restart()
            self.cancellation.sleep(_CHECK_EVERY)
            if self._is_late:
                break
        self._pressure.restart()
        self._checked_at = time.monotonic()
