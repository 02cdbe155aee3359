"""The end of a run's `.working`: it is left for the next run, or made final, with data shared with another host's (`share_with`).
As in work_subvolume, every function is one small step that may be killed at any moment. Blocking; to be called in a thread.

After a kill or a power cut a first copy has files with the host's time and size whose data was lost. Nothing in the filesystem
distinguishes them. So each file gets a time that no host has: rsync then compares the content, block by block, and sends the
differences. A file that rsync has handled has its own time again. So a large first copy completes over several nights, which would
be impossible if every night had to read everything again (``--checksum``). If a file still has this time when the backup should
become final, the host did not send it again: it can no longer be read there.

Data is shared after it was written into a subvolume without any data of the other host; then the kernel compares both. If the run
started with a snapshot of the other host's backup, the new backup would keep all its files that rsync does not mention.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from backupd.files.tree import Tree, joined, open_plain
from backupd.files.walking import WalkEntry, walk
from backupd.repo import backup_json as records
from backupd.repo.backup_json import DATA, Record
from backupd.repo.final_backups import discard, find_base, rename_to_final
from backupd.repo.notes_json import ACCEPTED, read_notes, write_notes
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.synced import mark_synced
from backupd.repo.verification_files import forget_recorded
from backupd.run.fresh_sums import NO_SUMS, SumLimits, sum_fetched
from btrkeep.backup_states import ALTERED, EXPIRED, FAILED, PARTIAL
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FOLDER, is_there
from btrkeep.fs.reflink import OF_ONE_FILE, shared_pieces
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.pool.subvolume import describe, set_read_only
from btrkeep.pool.syncfs import Syncfs
from btrkeep.process.progress import Cancellation
from btrkeep.treescan import FolderPaths, written_files
from btrkeep.units import backup_name, counted, format_size

log = logging.getLogger(__name__)


class DataLost(OSError):
    """The disk did not store data of this run, so none of its data can be trusted. It has one argument, a sentence."""


@dataclass(frozen=True, slots=True)
class WorkSubvolume:
    """A `.working` that is ready for rsync."""

    path: Path
    """Its folder."""
    base: Record | None
    """The record of the backup on which it is based; None: a first copy."""
    fresh: bool
    """True if this run made it, so that it contains no new data yet."""
    id: int
    """The id of the subvolume, which remains the same when it is renamed."""
    uuid: str
    """The UUID of the subvolume, which remains the same when it is renamed."""
    has_unsynced_files: bool = False
    """True if some of its files have the time UNSYNCED_TIME."""
    unread_bases: tuple[str, ...] = ()
    """Names of newer backups that the disk cannot read, as in Record."""
    ancestors: Mapping[str, int] = field(default_factory=dict)
    """As in Record."""
    dropped: int = 0
    """Number of damaged files of the base that were removed from it."""


@dataclass(frozen=True, slots=True)
class ShareWith:
    """The host whose data is shared."""

    host: str
    """Its name."""
    cancelled: Cancellation
    """Ends the sharing early; files that are already shared remain shared."""


@dataclass(frozen=True, slots=True)
class SharedData:
    """The files that share data with the other host's backup."""

    files: int = 0
    """Number of files."""
    bytes: int = 0
    """Bytes that they share."""
    other: str | None = None
    """The backup of the other host, HOST@NAME; None: the other host has no backup to share with."""


def keep_partial(prepared: WorkSubvolume, record: Record, disk: Syncfs) -> None:
    """Leaves `.working` for the next run, which may continue it. rsync's group has ended. Raises DataLost, OSError.

    It is marked only after everything is on the disk: a run that is killed before that, or loses data, leaves it without the mark.
    """
    try:
        records.write(prepared.path, record)
    except OSError as error:  # a full pool; a writable `.working` is always partial, regardless of its record
        log.warning("%s: %s", prepared.path, error.strerror)
    _sync_or_discard(prepared, disk)
    mark_synced(prepared.path, record)


def leave_after_error(prepared: WorkSubvolume, record: Record, disk: Syncfs) -> None:
    """Leaves `.working` like `keep_partial` after an error that does not affect the received files; the caller reports the error.

    A backup that is final except for its name is not changed. If the disk loses data, the effect is the same as of DataLost.
    """
    try:
        subvolume = describe(prepared.path)
        if subvolume and subvolume.uuid == prepared.uuid and not subvolume.read_only:
            keep_partial(prepared, replace(record, state=PARTIAL), disk)
    except OSError as error:
        log.warning("%s: %s", prepared.path, error)


def finalise(
    pool: Pool,
    prepared: WorkSubvolume,
    record: Record,
    disk: Syncfs,
    limits: SumLimits | None = NO_SUMS,
    share_with: ShareWith | None = None,
    *,
    split: bool = True,
    judge: Callable[[Record], Record] | None = None,
) -> tuple[Path, Record]:
    """Makes `.working` final under the name of its start time; the run may be killed after any line. Raises DataLost, OSError.

    The record is written before the sync, so a read-only `.working` always has a correct one; the name comes last. On a full pool
    the record uses the reserve: everything else is already there.

    `limits` None: the sums of the base are still correct. `split`: `links_split` of the record. `judge` gets the record when
    the written data is known, and may change its state.
    """
    name = _free_name(pool, record)
    _forget_former_notes(pool.host(record.host), name)
    if record.repaired is None:  # its damage is recorded already
        forget_recorded(pool, record.host, name)  # recorded for an earlier, deleted backup of that name
    named = replace(_without_unsynced_files(prepared, record), name=name, links_split=split)
    with_reserve(pool.path, lambda: records.write(prepared.path, named))
    _sync_or_discard(prepared, disk)
    if judge and (judged := judge(named)) != named:
        named = judged
        with_reserve(pool.path, lambda: records.write(prepared.path, judged, durable=True))
    if limits:
        sum_fetched(prepared.path, limits)
    if share_with:  # after the sums, because shared data no longer counts as written by this run
        named = _with_shared(prepared.path, named, share_written(pool, prepared.path, share_with, record.started))
    set_read_only(prepared.path)
    assert named.name is not None
    return rename_to_final(pool, prepared.path, named.name), named


def _forget_former_notes(folder: Path, name: str) -> None:
    """Removes the notes that a backup of that name was expired, accepted or altered. That backup was deleted by hand, or by a
    killed expiry; because of these notes, the new backup of a repeated import would be deleted. A hold remains, which is harmless.
    Raises UnreadableRecord.
    """
    notes = read_notes(folder)
    left = notes.without(name, EXPIRED).without(name, ACCEPTED).without(name, ALTERED)
    if left != notes:
        write_notes(folder, left)


def _with_shared(path: Path, record: Record, shared: SharedData) -> Record:
    """Records how much was shared. On a full pool the record stays unchanged, which is also correct."""
    if shared.other is None:
        return record
    shared_record = replace(record, shared_with=shared.other, shared_bytes=shared.bytes)
    try:
        records.write(path, shared_record, durable=True)  # everything else is already on the disk
    except OSError as error:
        log.warning("%s: %s", path, error.strerror)
        (path / f"{records.RECORD}.new").unlink(missing_ok=True)
        return record
    return shared_record


def _without_unsynced_files(prepared: WorkSubvolume, record: Record) -> Record:
    """Returns the record of a backup without unsynced files. A failed backup keeps them, to be restored: it is never a base."""
    if not record.doubted or record.state == FAILED:
        return record
    dropped = drop_unsynced(prepared.path)
    warnings = (
        (f"{counted(dropped, 'file')} from an interrupted run could not be fetched again, and are missing in the backup",)
        if dropped
        else ()
    )
    return replace(record, doubted=False, warnings=(*record.warnings, *warnings))


def _sync_or_discard(prepared: WorkSubvolume, disk: Syncfs) -> None:
    """Syncs everything that this run wrote. If that fails, discards a subvolume with a base; a first copy is marked as doubtful
    later.
    """
    try:
        sync(disk)
    except DataLost:
        if prepared.base:
            with contextlib.suppress(OSError):  # it stays, without a mark
                discard(prepared.path, prepared.uuid)
        raise


LOST = "a write to the disk failed ({}): check the kernel's messages (dmesg) and `btrfs device stats`"


def sync(disk: Syncfs) -> None:
    """Waits until everything that this run wrote is on the disk. Raises DataLost."""
    try:
        disk.sync()
    except OSError as error:
        raise DataLost(LOST.format(error.strerror)) from error


def _free_name(pool: Pool, record: Record) -> str:
    """Returns the name for the start time, or the next free second if another backup has it, after the clock was set back."""
    moment = record.started
    while is_there(pool.host(record.host) / backup_name(moment)):
        moment += timedelta(seconds=1)
    return backup_name(moment)


UNSYNCED_TIME = -11_676_096_000 * 10**9 + 1
"""1600-01-01 and one nanosecond: earlier than any time of a filesystem, except those that store seconds in 64 bits. Nanoseconds."""


@Checkpoint("files marked unsynced")
def mark_unsynced(subvolume: Path, cancelled: Cancellation | None) -> bool:
    """Gives every file of a writable subvolume the time UNSYNCED_TIME. Returns False if it was `cancelled` before all files had it.

    Can be repeated, also after a kill. Raises OSError.
    """
    for entry in _files(subvolume):
        if cancelled:
            return False
        if entry.entry.mtime != UNSYNCED_TIME:
            os.utime(entry.name, ns=(UNSYNCED_TIME, UNSYNCED_TIME), dir_fd=entry.folder, follow_symlinks=False)
    return True


@Checkpoint("unsynced files removed")
def drop_unsynced(subvolume: Path) -> int:
    """Removes the files that still have the time UNSYNCED_TIME; returns the number of names. Folders keep their times. Raises
    OSError.
    """
    dropped = 0
    for entry in _files(subvolume):
        if entry.entry.mtime == UNSYNCED_TIME:
            before = os.fstat(entry.folder)
            os.unlink(entry.name, dir_fd=entry.folder)
            os.utime(entry.folder, ns=(before.st_atime_ns, before.st_mtime_ns))
            dropped += 1
    return dropped


def _files(subvolume: Path) -> Iterator[WalkEntry]:
    try:
        tree = Tree(subvolume)
    except FileNotFoundError:  # killed before `data` was created
        return
    with tree:
        yield from (entry for entry in walk(tree, b"/") if entry.entry.kind == "file")


def share_written(pool: Pool, subvolume: Path, share_with: ShareWith, now: datetime) -> SharedData:
    """Shares the data written since `subvolume` was made with the other host's newest complete backup, after a commit.

    An error here never fails the backup: files that are not shared take their own space, and the log has the reason.
    """
    try:
        base = find_base(pool, share_with.host, None if pool.rehearsal else now)
        if base is None:
            log.info("%s: %s has no complete backup yet to share data with", subvolume, share_with.host)
            return SharedData()
        with lock_for_reading(base.path):
            done = replace(_share_all(subvolume, base.path, share_with.cancelled), other=f"{share_with.host}@{base.record.name}")
    except (OSError, OperatorError) as error:
        log.warning("%s: its data is not shared with that of %s: %s", subvolume, share_with.host, error)
        return SharedData()
    amount = f"{format_size(done.bytes)} of {counted(done.files, 'file')}"
    log.info("%s: %s shared with %s", subvolume, amount, base.path)
    return done


@Checkpoint("data shared with another host")
def _share_all(subvolume: Path, other: Path, cancelled: Cancellation) -> SharedData:
    """Examines the files of `subvolume` that were written: an equal path is the same file on both hosts. Raises OSError."""
    described = describe(subvolume)
    assert described is not None
    files = total = 0
    with ClosingFd(os.open(subvolume, FOLDER)) as root:
        paths = FolderPaths(root)
        with Tree(subvolume) as new, Tree(other) as old:
            for ino in written_files(root, described.created - 1, 1, compressed=True):
                if cancelled:
                    break
                try:
                    top, *names = paths.of(ino)
                    shared = _share_file(old, new, names, cancelled) if top == os.fsencode(DATA) else 0
                except OSError as error:
                    if error.errno not in OF_ONE_FILE:
                        raise
                    continue
                files, total = files + bool(shared), total + shared
    return SharedData(files, total)


def _share_file(old: Tree, new: Tree, names: list[bytes], cancelled: Cancellation) -> int:
    """Returns the bytes that the two files of that path now share; none if their sizes differ."""
    total = 0
    with old.folder(joined(names[:-1])) as folder:
        source = open_plain(names[-1], folder)
    with ClosingFd(source):
        with new.folder(joined(names[:-1])) as folder:
            destination = open_plain(names[-1], folder)
        with ClosingFd(destination):
            size = os.fstat(destination).st_size
            if os.fstat(source).st_size == size:
                # the kernel compares cached data; the data on the disk may have been damaged since
                os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
                for shared in shared_pieces(source, destination, size):
                    total += shared
                    if cancelled:
                        break
    return total
