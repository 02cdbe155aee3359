"""The clock by which the kernel dates changes of files. It goes on in steps, of 1 to 10 ms by the kernel's configuration.

Two changes within one step have the same ctime. A file that changed in a backup, and again within the same step in the backup made
of it, would have one inode, size and ctime in both, and whoever knows files by these three (backupd/repo/checksums.py) would take
two contents for one file.
"""

import time

_MONOTONIC_COARSE = 6  # CLOCK_MONOTONIC_COARSE of linux/time.h: the steps of that clock, which nobody sets
_LOOK = 0.0005  # seconds


def ticks() -> int:
    """The time of the last step, in nanoseconds."""
    return time.clock_gettime_ns(_MONOTONIC_COARSE)


def wait_for_tick(since: int) -> None:
    """Waits for the step after `since`, which `ticks` returned: what changes from then on is dated later than what had changed."""
    while ticks() == since:
        time.sleep(_LOOK)
