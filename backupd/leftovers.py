"""Processes left from a killed run: an orphaned receiver goes on writing into `.working`, so it is ended first.

It holds the host's lock (it inherited the descriptor), and the lock's text names its group. Only a process that is in that
group and has that very lock file open is ended.
"""

import asyncio
import logging
import os
import signal
from pathlib import Path

from btrkeep.errors import LockHeld
from btrkeep.pool import Lock, take_lock
from btrkeep.pool.locks import read_holder
from btrkeep.process import has_open, members

log = logging.getLogger(__name__)


async def take_host_lock(path: Path, what: str, since: str) -> Lock:
    """The host's lock, after ending what a killed run left. Raises LockHeld when a living run holds it."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            return take_lock(path, what, since)
        except LockHeld:
            if not _end_orphans(path, signal_number):
                raise
        for _ in range(50):
            await asyncio.sleep(0.1)
            if not orphans(path):
                break
    return take_lock(path, what, since)


def orphans(path: Path) -> list[int]:
    """The processes of a dead holder's transfer that still hold the lock at `path`."""
    holder = read_holder(path)
    if holder is None or holder.alive or not holder.group:
        return []
    file = path.stat()
    return [member.pid for member in members(holder.group) if has_open(member.pid, file)]


def _end_orphans(path: Path, signal_number: signal.Signals) -> bool:
    found = orphans(path)
    for pid in found:
        log.warning("%s: ending process %d, left from a run that was killed", path.name, pid)
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue
    return bool(found)
