"""The facts about the machine: its rsync, its clock, its processor."""

import ctypes
import re
from pathlib import Path

from backupd.doctor.facts import Machine
from backupd.rsync.version import rsync_version
from btrkeep.process.programs import ProgramFailed

_MOST_ERROR = 16_000_000  # microseconds; what systemd's timedated calls synchronised (ntp_synced in basic/time-util.c)


class _Timex(ctypes.Structure):
    """struct timex, as far as it is read here (linux/timex.h)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_long * 64),
    )


def read_machine() -> Machine:
    """Of this machine."""
    try:
        numbers: tuple[int, ...] | None = rsync_version().numbers or None  # a version that says no number
    except ProgramFailed:
        numbers = ()
    return Machine(numbers, clock_synchronised(), processor_flags())


def clock_synchronised() -> bool | None:
    """Whether the kernel knows how wrong its clock is at the most: somebody (chrony, timesyncd, ntpd) keeps telling it."""
    state = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)) < 0:
        return None
    return bool(state.maxerror < _MOST_ERROR)


def processor_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """x86 calls them flags, arm Features."""
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(match[1].split()) if match else frozenset()
