"""The current time: the machine's clock, a clock of a rehearsal pool, and the clock by which the kernel dates changes of files.

That of the kernel goes on in steps, of 1 to 10 ms by its configuration. Two changes within one step have the same ctime. A file
that changed in a backup, and again within the same step in the backup made of it, would have one inode, size and ctime in both, and
code that identifies files by these three (backupd/repo/checksums.py) would take two contents for one file.

Since Linux 6.13 a file whose time was asked for gets a finer one at its next change, and no later change of any file, on whatever
filesystem, is dated before that (ktime_get_coarse_real_ts64_mg in fs/inode.c). So a change of any file of ours makes a step. Before
6.13, a step has to be waited for. It may come late, on a virtual machine by milliseconds, and then begins before a finer time that
was given already: it counts only if it is later than the finer clock was.
"""

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


def elapsed() -> float:
    """Returns seconds of a clock that cannot be set and that counts while the machine sleeps (CLOCK_BOOTTIME).

    Time limits of work use time.monotonic() instead, which stops while the machine sleeps.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock, which can begin at another time for rehearsals."""

    start: datetime | None = None
    """The time at which it begins; None: it shows the real time."""
    _begun: float = field(default_factory=elapsed)

    def tells_nights(self, *, rehearsal: bool) -> bool:
        """Returns True for the real clock. Nights of a rehearsal do not follow it."""
        return self.start is not None or not rehearsal

    def now(self) -> datetime:
        """Aware UTC."""
        if self.start is None:
            return datetime.now(UTC)
        return self.start + timedelta(seconds=elapsed() - self._begun)


_MONOTONIC_COARSE = 6  # CLOCK_MONOTONIC_COARSE of linux/time.h: the steps of that clock, which cannot be set
_LOOK = 0.0005  # seconds


def moment() -> int:
    """The time in nanoseconds, of the finer clock: nothing that has changed so far is dated later."""
    return time.monotonic_ns()


def wait_for_tick(since: int) -> None:
    """Returns when what changes is dated later than what had changed at `since`, which `moment` returned."""
    while time.clock_gettime_ns(_MONOTONIC_COARSE) <= since and not _make_step():
        time.sleep(_LOOK)


def _make_step() -> bool:
    """Changes a file that has no name; returns True if the finer clock dated it, so that nothing is dated before it from now on."""
    try:
        file = os.memfd_create("ticks")
    except OSError:  # refused by vm.memfd_noexec, say
        return False
    try:
        before = time.time_ns()
        os.fstat(file)
        os.fchmod(file, 0o600)
        return os.fstat(file).st_ctime_ns > before
    finally:
        os.close(file)
