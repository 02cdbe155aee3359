"""The facts about the machine: its rsync, its clock, its processor."""

import re
from pathlib import Path

from backupd.doctor.facts import Machine
from backupd.expire.clocks import clock_synchronised
from backupd.rsync.version import rsync_version
from btrkeep.process.programs import ProgramFailed


def read_machine() -> Machine:
    """Of this machine."""
    try:
        numbers: tuple[int, ...] | None = rsync_version().numbers or None  # a version that says no number
    except ProgramFailed:
        numbers = ()
    return Machine(numbers, clock_synchronised(), processor_flags())


def processor_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """x86 calls them flags, arm Features."""
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(match[1].split()) if match else frozenset()
