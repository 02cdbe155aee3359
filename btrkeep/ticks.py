"""The clock by which the kernel dates changes of files. It goes on in steps, of 1 to 10 ms by the kernel's configuration.

Two changes within one step have the same ctime. A file that changed in a backup, and again within the same step in the backup made
of it, would have one inode, size and ctime in both, and whoever knows files by these three (backupd/repo/checksums.py) would take
two contents for one file.

Since Linux 6.13 a file whose time is asked for gets a finer one at its next change, and no later change of any file is dated
before that: a step may come late, on a virtual machine by milliseconds, and then begins before a time that was given already. So a
step counts only if it is later than the finer clock was.
"""

import time

_MONOTONIC_COARSE = 6  # CLOCK_MONOTONIC_COARSE of linux/time.h: the steps of that clock, which nobody sets
_LOOK = 0.0005  # seconds


def moment() -> int:
    """The time in nanoseconds, of the finer clock: nothing that has changed so far is dated later."""
    return time.monotonic_ns()


def wait_for_tick(since: int) -> None:
    """Waits for a step after `since`, which `moment` returned: what changes from then on is dated later than what had changed."""
    while time.clock_gettime_ns(_MONOTONIC_COARSE) <= since:
        time.sleep(_LOOK)
