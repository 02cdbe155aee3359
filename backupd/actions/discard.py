"""Finds the unfinished backups of a pool, and deletes one to free space for other hosts.

A host that needs more space than the pool has is stopped, and its `.working` would use that space for ever: no later run could
start. It is not a backup, so it is deleted before other hosts start. A `.working` that was stopped for another reason is kept.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from backupd.repo import backup_json as records
from backupd.repo import final_backups
from btrkeep.backup_states import PARTIAL
from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError, StateConflict
from btrkeep.pool.locks import left_behind, read_holder
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.orphans import wait_for
from btrkeep.pool.subvolume import Subvolume, commit, opened
from btrkeep.process.progress import Cancellation
from btrkeep.treescan import written_bytes
from btrkeep.units import format_size

log = logging.getLogger(__name__)

_LONGEST = 600.0  # seconds for the kernel's cleaner
_CHECK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class UnfinishedBackup:
    """A `.working` that btrkeep made."""

    host: str
    """The host's name."""
    path: Path
    """The subvolume's folder."""
    subvolume: Subvolume
    """The subvolume."""
    size: int
    """Bytes that were written to it."""
    for_room: bool
    """True if it was stopped because free space was short."""
    began: datetime | None = None
    """When its last run started; None if its record does not have it."""


def all_unfinished(pool: Pool) -> list[UnfinishedBackup]:
    """Returns the unfinished backups that no run is using, including those of hosts that are no longer configured, the largest
    first.

    Unreadable ones are skipped.
    """
    return sorted(_each(pool), key=lambda unfinished: (-unfinished.size, unfinished.host))


def _each(pool: Pool) -> Iterator[UnfinishedBackup]:
    for path in sorted(pool.hosts.glob(f"*/{WORKING}")):
        try:
            if not is_busy(pool, path.parent.name) and (unfinished := unfinished_backup(pool, path.parent.name)):
                yield unfinished
        except (OSError, OperatorError) as error:
            log.warning("%s is skipped: %s", path, error)


def is_busy(pool: Pool, host: str) -> bool:
    """Returns True if another job, or the rest of a killed run's transfer, is using the host."""
    path = pool.host_lock(host)
    holder = read_holder(path)
    return holder is not None and (holder.is_alive or bool(left_behind(path, holder)))


def unfinished_backup(pool: Pool, host: str) -> UnfinishedBackup | None:
    """Returns the host's unfinished backup; None if there is none, or if it only has to be renamed. Raises OSError and
    OperatorError.
    """
    path = pool.working(host)
    subvolume = final_backups.unfinished(path, host)
    if subvolume is None or subvolume.read_only:
        return None
    with opened(path) as fd:  # a snapshot of a backup shares everything older than itself
        size = written_bytes(fd, subvolume.created - 1)
    record = _record(path, subvolume)
    return UnfinishedBackup(host, path, subvolume, size, _is_for_room(record), record.started if record else None)


def _record(path: Path, subvolume: Subvolume) -> records.Record | None:
    """Returns the record in it; None if there is none, or if a power cut has damaged it."""
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        return None
    return record if record and record.uuid == subvolume.uuid else None


def _is_for_room(record: records.Record | None) -> bool:
    return record is not None and (record.state, record.stopped_for) == (PARTIAL, records.ROOM)


def room_hint(unfinished: Sequence[UnfinishedBackup], hint: str) -> str:
    """Returns the hint for a pool with too little free space. `unfinished`: the unfinished backups, the largest first."""
    if not unfinished:
        return hint
    host, size = unfinished[0].host, format_size(unfinished[0].size)
    return f"{hint}; the unfinished backup of {host} uses {size}: `backupd discard {host}` deletes it"


def _is_still(unfinished: UnfinishedBackup) -> bool:
    """Returns True if exactly this subvolume still exists and no run has continued it. Changes that waited for a commit when it was
    first read do not count. Raises OSError, OperatorError.
    """
    subvolume = final_backups.unfinished(unfinished.path, unfinished.host)
    if (
        subvolume is None
        or subvolume.read_only
        or (subvolume.id, subvolume.uuid) != (unfinished.subvolume.id, unfinished.subvolume.uuid)
    ):
        return False
    record = _record(unfinished.path, subvolume)
    return (record.started if record else None) == unfinished.began


def discard(pool: Pool, catalogue: Catalogue, unfinished: UnfinishedBackup) -> None:
    """Deletes it for good, then its row. Callers hold the host's lock.

    Raises StateConflict if it has changed, ForeignData if it contains data that btrkeep did not make, OSError.
    """
    if not _is_still(unfinished):
        raise StateConflict(
            f"the unfinished backup of {unfinished.host} has just changed",
            f"check it with `backupd discard {unfinished.host} --dry-run`",
        )
    try:
        final_backups.discard(unfinished.path, unfinished.subvolume.uuid)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise final_backups.ForeignData(
            f"{unfinished.path} holds a subvolume that does not belong to btrkeep", "move it away"
        ) from error
    commit(pool.path)  # this wakes the cleaner too
    catalogue.drop_backup(unfinished.host, None)


def discard_for_room(unfinished: UnfinishedBackup) -> bool:
    """Deletes it if it has not changed and was stopped for lack of free space. Callers hold the host's lock."""
    try:
        if not _is_still(unfinished) or not _is_for_room(_record(unfinished.path, unfinished.subvolume)):
            return False
        final_backups.discard(unfinished.path, unfinished.subvolume.uuid)
    except (OSError, OperatorError) as error:  # such as a foreign subvolume in it
        log.warning("%s cannot be discarded: %s", unfinished.path, error)
        return False
    return True


async def wait_for_room(pool: Pool, unfinished: UnfinishedBackup, enough: Callable[[], bool], cancelled: Cancellation) -> bool:
    """Waits until `enough` space is free, or the kernel has dropped the deleted subvolume. Returns False if `cancelled`, or after a
    long time.
    """
    await asyncio.to_thread(commit, pool.path)  # this wakes the cleaner
    gone, end = False, asyncio.get_running_loop().time() + _LONGEST
    while not gone and not enough():
        if cancelled or asyncio.get_running_loop().time() > end:
            return False
        gone = await asyncio.to_thread(wait_for, pool.path, unfinished.subvolume.id, _CHECK_EVERY)
        await asyncio.to_thread(commit, pool.path)  # the freed space can be used only after a commit
    return True
