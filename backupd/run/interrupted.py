"""Handles the leftovers of an interrupted run: processes, which are ended, and `.working`, which is continued if it fits this run
and discarded otherwise.

An orphaned receiver continues to write into `.working`, so it is ended first. It holds the host's lock (it inherited the
descriptor), and the text of the lock names its group. A run that was killed between taking the lock and writing that text left a
group that no text names, but its rsync holds the lock too. A process of such a group is ended only if it holds the lock, and if the
process that started the group has ended.
"""

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from backupd.repo import backup_json as records
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import FinalBackup, ForeignData, delete_working, discard, is_named, is_unfinished_run
from backupd.repo.reconcile import RECONCILING
from backupd.repo.synced import is_synced
from backupd.run.limits import still_exceeds
from btrkeep.config import HostConfig
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.fs.openat import is_there
from btrkeep.pool.locks import Lock, read_holder, take_lock
from btrkeep.pool.orphans import wait_for
from btrkeep.pool.subvolume import Subvolume, commit, describe
from btrkeep.process.proc import groups_of, has_locked, members

log = logging.getLogger(__name__)

_LOOKS = 50
_PAUSE = 0.1
_NAMELESS = 10  # attempts while the lock has no text about its holder: it appears in a moment, or the pool is full
_PATIENCE = 600  # attempts while the holder's work is short: expiry locks some hosts during two commits


async def take_host_lock(path: Path, purpose: str, since: str, *, sealed: bool = False) -> Lock:
    """Takes the host's lock, after ending the processes of a killed run. `sealed`: as in take_lock.

    Raises LockHeld if a running run holds it.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            return take_lock(path, purpose, since, sealed=sealed)
        except LockHeld:
            if not await _soon_free(path) and not _end_orphans(path, signal_number):
                raise
        for _ in range(_LOOKS):
            left = orphans(path)
            await asyncio.sleep(_PAUSE)  # after the last one too: the kernel releases the lock a moment after the process ends
            if not left:
                break
    return take_lock(path, purpose, since, sealed=sealed)


async def _soon_free(path: Path) -> bool:
    """Waits for a process that holds the lock only for a moment. Returns True if it then finished, or was killed."""
    for look in range(_PATIENCE):
        holder = read_holder(path)
        if holder is None or not holder.is_alive:
            return not orphans(path)
        if not (holder.what == RECONCILING or (holder.unnamed and look < _NAMELESS)):
            return False
        await asyncio.sleep(_PAUSE)
    return False


def orphans(path: Path) -> list[int]:
    """Returns the processes of an ended holder's transfer that still hold the lock at `path`."""
    holder = read_holder(path)
    if holder and holder.is_alive:
        return []
    file = path.stat()
    groups = {holder.group if holder else 0, *groups_of("rsync", file)} - {0}  # on a full pool the text with the group is missing
    return [pid for group in groups for pid in _left_behind(group, file)]


def _left_behind(group: int, file: os.stat_result) -> list[int]:
    """Returns the group's members that hold the lock; none of them while a process outside the group that started one of them holds
    it too.
    """
    holding = [member for member in members(group) if has_locked(member.pid, file)]
    inside = {member.pid for member in holding}
    started_by = {member.parent for member in holding} - inside
    return [] if any(has_locked(pid, file) for pid in started_by) else sorted(inside)


def _end_orphans(path: Path, signal_number: signal.Signals) -> bool:
    pids = orphans(path)
    for pid in pids:
        log.warning("%s: ending process %d, left from a run that was killed", path.name, pid)
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue
    return bool(pids)


_UNTIL_DROPPED = 30.0  # seconds; the next night drops the rest
_WAKE_CLEANER_EVERY = 5.0  # seconds


def settings_of(host: HostConfig) -> dict[str, Any]:
    """Returns the settings that must be the same for a run to be continued."""
    return {
        "paths": list(host.paths),
        "exclude": [*host.self_excluded, *host.exclude],
        "inplace": host.inplace,
        "one_file_system": host.one_file_system,
        **({"engine": host.engine} if host.engine != "rsync" else {}),
    }


class LeftWork(NamedTuple):
    """A writable `.working` of an earlier run that fits this one."""

    subvolume: Subvolume
    record: Record
    synced: bool


def left_by_earlier_run(path: Path, host: HostConfig, base: FinalBackup | None) -> LeftWork | None:
    """Returns the existing `.working` if it should be continued; else discards it. Raises ForeignData for a `.working` that btrkeep
    did not make.

    Without the mark it is unknown which of its files are on the disk. A `.working` with a base is then made again, because that
    takes little time.
    """
    if not is_there(path):
        return None
    subvolume = describe(path)
    if subvolume is None or subvolume.read_only:
        raise ForeignData(f"{path} does not belong to btrkeep", "move it to another folder (mv)")
    record = _fitting(path, subvolume, host, base)
    synced = record is not None and is_synced(path, record)
    if record and (synced or base is None):
        return LeftWork(subvolume, record, synced)
    if not record and not is_unfinished_run(path, subvolume, host.name):
        raise ForeignData(f"{path} does not belong to btrkeep", "move it to another folder (mv)")
    try:
        delete_working(path, subvolume)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise ForeignData(
            f"{path} contains a subvolume of another program, so it cannot be discarded",
            "move that subvolume to another folder (mv)",
        ) from error
    if host.quota is not None:  # its data is counted until it is dropped
        _wait_until_dropped(path.parent, subvolume.id)
    return None


def drop_damaged_working(path: Path, unread: tuple[str, ...]) -> None:
    """Deletes a `.working` of an earlier run. If it is damaged, the damage must be that of its base: the kernel makes the pool
    read-only when it deletes a subvolume with unreadable metadata of its own.
    """
    subvolume = describe(path)
    if not unread or subvolume is None:
        raise OperatorError(
            f"some metadata of {path} cannot be read from the disk, and the kernel makes the pool read-only when it is deleted",
            "move it out of the hosts' folder (mv); the next run starts from the newest backup",
        )
    discard(path, subvolume.uuid)


def discardable(path: Path, host: str, is_own: Callable[[Record], bool]) -> Subvolume | None:
    """Returns the `.working` of a killed command, if another command may discard it and start again; `is_own` recognises it by its
    record.

    A `.working` whose record was emptied or removed by a power cut may be discarded: a night would discard it too.
    """
    subvolume = describe(path)
    if subvolume is None or subvolume.read_only:
        return None
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        record = None
    if record:
        return subvolume if record.uuid == subvolume.uuid and is_own(record) else None
    return subvolume if is_unfinished_run(path, subvolume, host) else None


def _fitting(path: Path, subvolume: Subvolume, host: HostConfig, base: FinalBackup | None) -> Record | None:
    """Returns the record of a `.working` that this host with its present configuration can continue from that base.

    The `.working` of an import does not fit: it contains an old tree, whose files may have the sizes and times of the host's files
    with other content.
    """
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        return None
    base_uuid = base.record.uuid if base else None
    fits = (
        record is not None
        and host.engine != "send"  # a part of a stream cannot be continued
        and (record.uuid, record.base_uuid) == (subvolume.uuid, base_uuid)
        and is_named(record.host, host.name, path.parent)
        and record.settings == settings_of(host)
        and record.imported is None
        and not still_exceeds(record.cause, host)
    )
    return record if fits else None


def _wait_until_dropped(folder: Path, subvolume_id: int) -> None:
    """Waits for the kernel, `_UNTIL_DROPPED` at most. Raises OSError.

    Wakes the kernel's cleaner again and again: a subvolume with an open file is only queued when the file is closed, and the
    cleaner would then sleep until the next commit, up to 30 s.
    """
    until = time.monotonic() + _UNTIL_DROPPED
    while time.monotonic() < until:
        commit(folder)
        if wait_for(folder, subvolume_id, _WAKE_CLEANER_EVERY):
            return
