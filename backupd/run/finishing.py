"""The end of a run's `.working`: left for the next run, or made final.

As in work_subvolume, every function is one small step that may be killed anywhere. Blocking; meant to be called in a thread.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from backupd.repo import backup_json as records
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import discard, take_name
from backupd.repo.notes_json import ACCEPTED, read_notes, write_notes
from backupd.repo.recorded_rows import forget_recorded
from backupd.repo.synced import mark_synced
from backupd.run.fresh_sums import NO_SUMS, SumLimits, sum_fetched
from backupd.run.share_with import SharedData, ShareWith, share_written
from backupd.run.unsynced import drop_unsynced
from btrkeep.backup_states import ALTERED, EXPIRED, FAILED, PARTIAL
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.pool.subvolume import describe, set_read_only
from btrkeep.pool.syncfs import Syncfs
from btrkeep.units import backup_name, counted

log = logging.getLogger(__name__)


class DataLost(OSError):
    """The disk did not take data of this run, so nothing of it is to be believed. It has one argument, a sentence."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A `.working` ready for rsync. `base` is the record it grew from; `fresh`: made by this run, so nothing in it is new.

    `id` and `uuid` are the subvolume's, which it keeps when it is renamed. `dropped`: so many damaged files of the base were
    removed from it. `doubted`: some of its files are (unsynced.py).
    `unread_bases` and `ancestors` are the Record's.
    """

    path: Path
    base: Record | None
    fresh: bool
    id: int
    uuid: str
    doubted: bool = False
    unread_bases: tuple[str, ...] = ()
    ancestors: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0


def leave(prepared: Prepared, record: Record, disk: Syncfs) -> None:
    """Leaves `.working` to the next run, which may go on with it. rsync's group is gone. Raises DataLost, OSError.

    It is marked only when all is on the disk: a run that is killed before, or loses data, leaves it without.
    """
    try:
        records.write(prepared.path, record)
    except OSError as error:  # a full pool; a writable `.working` is partial whatever its record says
        log.warning("%s: %s", prepared.path, error.strerror)
    _sync_or_discard(prepared, disk)
    mark_synced(prepared.path, record)


def leave_after_error(prepared: Prepared, record: Record, disk: Syncfs) -> None:
    """Does the same after an error that does not affect what arrived; the caller reports the error.

    A backup that is final except for its name stays unchanged. If the disk loses data, it is treated as with DataLost.
    """
    try:
        there = describe(prepared.path)
        if there and there.uuid == prepared.uuid and not there.read_only:
            leave(prepared, replace(record, state=PARTIAL), disk)
    except OSError as error:
        log.warning("%s: %s", prepared.path, error)


def finalise(
    pool: Pool,
    prepared: Prepared,
    record: Record,
    disk: Syncfs,
    limits: SumLimits | None = NO_SUMS,
    share_with: ShareWith | None = None,
    *,
    split: bool = True,
    judge: Callable[[Record], Record] | None = None,
) -> tuple[Path, Record]:
    """Makes `.working` final under the name of its start; each line is safe to be killed after. Raises DataLost, OSError.

    The record is written before the sync, so a read-only `.working` always has a true one; the name comes last. On a full pool the
    record takes the reserve: all the rest is there by now.

    `limits` None: the sums of the base still hold. `split`: `links_split` of the record. `judge` sees it once the pool knows what
    was written, and may change its state.
    """
    name = _free_name(pool, record)
    _forget_former_notes(pool.host(record.host), name)
    if record.repaired is None:  # whose damage is recorded by now
        forget_recorded(pool, record.host, name)  # of one that had the name before, and was deleted
    named = replace(_without_doubt(prepared, record), name=name, links_split=split)
    with_reserve(pool.path, lambda: records.write(prepared.path, named))
    _sync_or_discard(prepared, disk)
    if judge and (judged := judge(named)) != named:
        named = judged
        with_reserve(pool.path, lambda: records.write(prepared.path, judged, durable=True))
    if limits:
        sum_fetched(prepared.path, limits)
    if share_with:  # after the sums: what is shared does not count as written by this run any more
        named = _with_shared(prepared.path, named, share_written(pool, prepared.path, share_with, record.started))
    set_read_only(prepared.path)
    assert named.name is not None
    return take_name(pool, prepared.path, named.name), named


def _forget_former_notes(folder: Path, name: str) -> None:
    """Forgets that a backup of that name had expired, was accepted or altered. It was deleted by hand, or by an expiry that was
    killed; the new one, of an import that was repeated, would be deleted for it. A hold stays, which does no harm. Raises
    UnreadableRecord.
    """
    notes = read_notes(folder)
    left = notes.without(name, EXPIRED).without(name, ACCEPTED).without(name, ALTERED)
    if left != notes:
        write_notes(folder, left)


def _with_shared(path: Path, record: Record, shared: SharedData) -> Record:
    """Writes what was shared into the record. On a full pool that stays as it was: it is true as well."""
    if shared.other is None:
        return record
    told = replace(record, shared_with=shared.other, shared_bytes=shared.bytes)
    try:
        records.write(path, told, durable=True)  # all else is on the disk by now
    except OSError as error:
        log.warning("%s: %s", path, error.strerror)
        (path / f"{records.RECORD}.new").unlink(missing_ok=True)
        return record
    return told


def _without_doubt(prepared: Prepared, record: Record) -> Record:
    """Returns the record of a backup without files in doubt. A failed one keeps them, to be restored: it is never a base."""
    if not record.doubted or record.state == FAILED:
        return record
    dropped = drop_unsynced(prepared.path)
    said = (f"{counted(dropped, 'file')} of a run that broke off could not be fetched again and left out",) if dropped else ()
    return replace(record, doubted=False, warnings=(*record.warnings, *said))


def _sync_or_discard(prepared: Prepared, disk: Syncfs) -> None:
    """Syncs everything that this run wrote. On failure, discards a subvolume with a base; a first copy is marked as doubtful
    later.
    """
    try:
        sync(disk)
    except DataLost:
        if prepared.base:
            with contextlib.suppress(OSError):  # then it stays, without a mark
                discard(prepared.path, prepared.uuid)
        raise


def sync(disk: Syncfs) -> None:
    """Waits until the disk has all that this run wrote. Raises DataLost."""
    try:
        disk.sync()
    except OSError as error:
        raise DataLost(
            f"the disk did not take what was written ({error.strerror}): look at the kernel's messages (dmesg) and "
            "`btrfs device stats`"
        ) from error


def _free_name(pool: Pool, record: Record) -> str:
    """Returns the name of the start; seconds later if another backup has it (a clock that was set back)."""
    moment = record.started
    while is_there(pool.host(record.host) / backup_name(moment)):
        moment += timedelta(seconds=1)
    return backup_name(moment)
