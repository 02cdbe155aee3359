"""Environments of tests: their own filesystems, ssh servers and programs, and independent checks of results.

`work` runs a program; `manifest`, `differences`, `exclusive_bytes` look at trees and sharing without btrkeep's code; `backupd`
starts our command. The fixtures that need an end (filesystems, sshd, processes) are in tests/conftest.py.
"""

from tests.beds.cli import TOP, backupd, backupd_start
from tests.beds.look import Shares, exclusive_bytes, shares
from tests.beds.manifest import Entry, differences, manifest
from tests.beds.work import work

__all__ = [
    "TOP",
    "Entry",
    "Shares",
    "backupd",
    "backupd_start",
    "differences",
    "exclusive_bytes",
    "manifest",
    "shares",
    "work",
]
