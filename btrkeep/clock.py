"""The current time: the machine's clock, a clock of a rehearsal pool, and the clock from which the kernel takes the times of files.

The kernel's clock advances in steps of 1 to 10 ms, depending on its configuration. Two changes within one step have the same ctime.
A file that changed in a backup, and again within the same step in the next backup made from it, would have the same inode, size and
ctime in both, and code that identifies files by these three (backupd/repo/checksums.py) would regard two contents as one file.

Since Linux 6.13 a file whose time was read gets a finer time at its next change, and no later change of any file, on any
filesystem, has an earlier time than that (ktime_get_coarse_real_ts64_mg in fs/inode.c). So changing a file of btrkeep makes a new
step. Before 6.13, the next step has to be waited for. On a virtual machine it may be some milliseconds late, and then starts before
a finer time that was already given: it counts only if it is later than the finer clock was.
"""

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


def elapsed() -> float:
    """Returns seconds of a clock that cannot be set and that counts while the machine sleeps (CLOCK_BOOTTIME). Time limits of work
    use time.monotonic() instead, which stops while the machine sleeps.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock, which can start at another time for rehearsals."""

    start: datetime | None = None
    """The time at which it starts; None: it shows the real time."""
    _begun: float = field(default_factory=elapsed)

    def is_pool_time(self, *, rehearsal: bool) -> bool:
        """Returns True if this clock shows the pool's time: always, except for the real clock in a rehearsal pool."""
        return self.start is not None or not rehearsal

    def now(self) -> datetime:
        """Aware UTC."""
        if self.start is None:
            return datetime.now(UTC)
        return self.start + timedelta(seconds=elapsed() - self._begun)


_MONOTONIC_COARSE = 6  # CLOCK_MONOTONIC_COARSE of linux/time.h: has the ticks of the kernel's clock, and cannot be set
_LOOK = 0.0005  # seconds


def moment() -> int:
    """Returns the time of the finer clock in nanoseconds: no change so far has a later time."""
    return time.monotonic_ns()


def wait_for_tick(since: int) -> None:
    """Waits until later changes get later times than those before `since`, which `moment` returned."""
    while time.clock_gettime_ns(_MONOTONIC_COARSE) <= since and not _make_step():
        time.sleep(_LOOK)


def _make_step() -> bool:
    """Changes a file without a name; returns True if it got a time of the finer clock, so that no later change has an
    earlier time.
    """
    try:
        file = os.memfd_create("ticks")
    except OSError:  # for example refused by vm.memfd_noexec
        return False
    try:
        before = time.time_ns()
        os.fstat(file)
        os.fchmod(file, 0o600)
        return os.fstat(file).st_ctime_ns > before
    finally:
        os.close(file)
