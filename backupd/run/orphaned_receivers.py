"""Processes left from a killed run: an orphaned receiver goes on writing into `.working`, so it is ended first.

It holds the host's lock (it inherited the descriptor), and the lock's text names its group; a run that was killed in the moment
between the two left a group that no text names, but an rsync in it has the lock too. Only a process that is in such a group,
has that very lock, and belongs to a group whose starter is gone, is ended.
"""

import asyncio
import logging
import os
import signal
from pathlib import Path

from backupd.repo.reconcile import RECONCILING
from btrkeep.errors import LockHeld
from btrkeep.pool.locks import Lock, read_holder, take_lock
from btrkeep.process.proc import groups_of, has_locked, members

log = logging.getLogger(__name__)

_LOOKS = 50
_PAUSE = 0.1
_NAMELESS = 10  # looks at a holder that no text names: a text comes in a moment, or there is no room for one
_PATIENCE = 600  # looks at a living holder whose work is short: expiry locks some hosts for as long as two commits take


async def take_host_lock(path: Path, what: str, since: str, *, sealed: bool = False) -> Lock:
    """Takes the host's lock, after ending the processes of a killed run; `sealed` as in take_lock.

    Raises LockHeld if a living run holds it.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            return take_lock(path, what, since, sealed=sealed)
        except LockHeld:
            if not await _soon_free(path) and not _end_orphans(path, signal_number):
                raise
        for _ in range(_LOOKS):
            left = orphans(path)
            await asyncio.sleep(_PAUSE)  # after the last of them too: the kernel frees the lock a moment after the process
            if not left:
                break
    return take_lock(path, what, since, sealed=sealed)


async def _soon_free(path: Path) -> bool:
    """Returns True if the lock has a living holder that takes no time, and that has finished meanwhile."""
    for look in range(_PATIENCE):
        holder = read_holder(path)
        if holder is None:
            return not orphans(path)
        if not holder.is_alive or not (holder.what == RECONCILING or (holder.unnamed and look < _NAMELESS)):
            return False
        await asyncio.sleep(_PAUSE)
    return False


def orphans(path: Path) -> list[int]:
    """Returns the processes of a dead holder's transfer that still hold the lock at `path`."""
    holder = read_holder(path)
    if holder and holder.is_alive:
        return []
    file = path.stat()
    groups = {holder.group if holder else 0, *groups_of("rsync", file)} - {0}  # on a full pool no text names the group
    return [pid for group in groups for pid in _left_behind(group, file)]


def _left_behind(group: int, file: os.stat_result) -> list[int]:
    """Returns the members of a group that have the file locked; none if one still has a parent outside that has it too."""
    holding = [member for member in members(group) if has_locked(member.pid, file)]
    inside = {member.pid for member in holding}
    started_by = {member.parent for member in holding} - inside
    return [] if any(has_locked(pid, file) for pid in started_by) else sorted(inside)


def _end_orphans(path: Path, signal_number: signal.Signals) -> bool:
    found = orphans(path)
    for pid in found:
        log.warning("%s: ending process %d, left from a run that was killed", path.name, pid)
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue
    return bool(found)
