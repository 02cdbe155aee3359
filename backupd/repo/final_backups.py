"""The final backups of a host in the pool: which ones btrkeep made, which is the newest complete one, and `latest`, which points to
it.
"""

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import NamedTuple

from backupd.repo import backup_json as records
from backupd.repo.backup_json import DATA, Record
from backupd.repo.checksums import SUMS
from backupd.repo.leftovers import drop_empty_mark
from backupd.repo.notes_json import Notes, effective_state, read_notes
from backupd.repo.seals import is_altered, read_seals, seal_backup
from btrkeep.backup_states import COMPLETE, FAILED, FINAL
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.due import latest
from btrkeep.errors import OperatorError, PoolUnusable, is_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.atomic import link_atomically
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import Subvolume, commit, delete, describe, opened
from btrkeep.units import backup_name, parse_backup_name, parse_time

log = logging.getLogger(__name__)

LATEST = "latest"
"""The name of the symlink to the newest complete backup of a host, in its folder and in commands."""
_CALENDAR = re.compile(r"\d{4}-\d\d(-\d\d)?", re.ASCII)


def name_meant(text: str) -> str:
    """Returns the name of the backup that started at a time with an offset, as in the output of `list`; other text unchanged."""
    if ":" not in text:
        return text
    try:
        return backup_name(parse_time(text))
    except ValueError:
        return text


def is_meant(name: str, beginning: str, zone: tzinfo) -> bool:
    """Returns True if a backup's name starts with that. A day or a month is read in the time zone, although names are in UTC."""
    started = parse_backup_name(name) if _CALENDAR.fullmatch(beginning) else None
    return (str(started.astimezone(zone).date()) if started else name).startswith(beginning)


_STUB = 2  # BTRFS_EMPTY_SUBVOL_DIR_OBJECTID: inode of the empty folder that a snapshot has instead of a nested subvolume


class FinalBackup(NamedTuple):
    """A final backup that btrkeep made."""

    path: Path
    subvolume: Subvolume
    record: Record


class SnapshotOfPool(PoolUnusable):
    """The pool's folder was included in a snapshot of the subvolume that contains it. A snapshot contains no subvolumes, so it has
    no backups.
    """


class ForeignData(OperatorError):
    """A foreign entry has the name of a backup; it is not touched."""


def read_if_ours(path: Path, host: str) -> tuple[Subvolume, Record] | None:
    """Returns the subvolume and record of a backup that btrkeep made, else None: its name, and the record's host, name and UUID,
    must agree. A snapshot of a backup that a user made also contains backup.json; its UUID is different. A copy from another pool
    has the UUID of the original subvolume as its source.

    A backup that was made writable and changed is also accepted, *altered* (seals.py): its seal names the subvolume, because `btrfs
    property set` may have removed the UUID of its source. A backup made under an earlier name of the host counts, and the returned
    record has today's name. Raises UnreadableRecord, SnapshotOfPool.
    """
    subvolume = describe(path)
    if subvolume is None:
        _require_no_stub(path)
    record = records.read(path) if subvolume else None
    if subvolume is None or record is None or not is_named(record.host, host, path.parent):
        return None
    if record.uuid not in (subvolume.uuid, subvolume.received_uuid) and not _is_sealed(path, subvolume):
        return None
    if path.name != WORKING and record.name != path.name:
        return None
    return subvolume, record if record.host == host else replace(record, host=host)


def _is_sealed(path: Path, subvolume: Subvolume) -> bool:
    """Returns True if this subvolume has a seal with that name."""
    seal = read_seals(path.parent).get(path.name) if path.name != WORKING else None
    return seal is not None and seal.subvolume == subvolume.id


def _require_no_stub(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        if path.lstat().st_ino == _STUB:
            raise SnapshotOfPool(
                f"{path} is only the empty placeholder of a subvolume: this pool is itself a snapshot",
                "the filesystem may have been rolled back: mount the subvolume with the backups (`btrfs subvolume list`); if "
                "they are lost, remove such folders (rmdir)",
            )


def read_final_if_ours(path: Path, host: str) -> tuple[Subvolume, Record] | None:
    """Returns the same for a final backup; None if btrkeep did not make it. An altered one may be writable. Raises
    UnreadableRecord.
    """
    final_backup = read_if_ours(path, host)
    if not final_backup or final_backup[1].state not in FINAL:
        return None
    return (
        final_backup
        if final_backup[0].read_only or (path.name != WORKING and read_notes(path.parent).is_altered(path.name))
        else None
    )


def sealed_without_record(path: Path, host: str) -> FinalBackup | None:
    """Returns a final backup whose record is damaged; None if it is not damaged, or if more than the record cannot be read.

    Its path and its seal prove that btrkeep made it: numbers of subvolumes are never used again. It has a substitute record with
    the state `failed`, so it counts as no backup and protects no other backup.
    """
    started = parse_backup_name(path.name)
    with suppress(OSError):
        subvolume = describe(path)
        if started is None or subvolume is None or not _is_sealed(path, subvolume):
            return None
        try:
            records.read(path)
        except records.UnreadableRecord as error:
            if is_damage(error.__cause__):
                return FinalBackup(path, subvolume, Record(host, subvolume.uuid, FAILED, started, path.name))
    return None


def is_lost(path: Path) -> bool:
    """Returns True if the disk can read nothing of a final backup, so that only its name and its seal identify it."""
    try:
        describe(path)
    except OSError as error:
        return is_damage(error) and parse_backup_name(path.name) is not None and path.name in read_seals(path.parent)
    return False


def is_named(name: str, host: str, folder: Path) -> bool:
    """Returns True if the host with that folder has or had that name (`backupd rename`). Raises UnreadableRecord."""
    return name == host or name in read_notes(folder).was


class HostIsReplica(OperatorError):
    """The host is a copy: it is fetched from another pool and not backed up here."""


def require_not_replica(pool: Pool, host: str) -> None:
    """Raises HostIsReplica for a host that is fetched from another pool, because a backup made here would start a separate history.
    A host of which nothing has arrived, because the replication was killed, is no longer a copy. The caller holds the host's lock.
    """
    drop_empty_mark(pool, host)
    if fetched := read_notes(pool.host(host)).replica:
        raise HostIsReplica(
            f"its backups are copies, fetched from another pool (replica {fetched.get('name')})",
            f"run `backupd promote {host}` if that pool is lost",
        )


def final_backups(pool: Pool, host: str, unread: list[str] | None = None, *, may_be_newer: bool = True) -> Iterator[FinalBackup]:
    """Yields the host's final backups, newest name first.

    Skips subvolumes that btrkeep did not make, and those with an unreadable record. Skips backups of a newer btrkeep, or raises
    NewerRecord unless one `may_be_newer`. Adds backups that the disk cannot read to `unread`; without `unread`, raises OSError for
    them, because they exist, and skips those of which only the record is lost.
    """
    try:
        names = sorted((entry.name for entry in os.scandir(pool.host(host)) if parse_backup_name(entry.name)), reverse=True)
    except FileNotFoundError:
        return
    for name in names:
        path = pool.host(host) / name
        try:
            final_backup = read_final_if_ours(path, host)
        except records.UnreadableRecord as error:
            if not may_be_newer and isinstance(error, records.NewerRecord):
                raise
            if unread is not None and is_damage(error.__cause__):
                unread.append(name)
            continue
        except OSError as error:
            if unread is None or not is_damage(error):
                raise
            unread.append(name)
            continue
        if final_backup:
            yield FinalBackup(path, *final_backup)


def records_newest_first(pool: Pool, host: str, now: datetime, unread: list[str]) -> list[Record]:
    """Returns the records of the final backups, newest first; those with a time in the future come last. `unread` as above."""
    return sorted((backup.record for backup in final_backups(pool, host, unread)), key=lambda record: record.started > latest(now))


def find_base(pool: Pool, host: str, now: datetime | None) -> FinalBackup | None:
    """Returns the newest complete backup, read from the pool. One with a time in the future is the base only if there is no other.

    Without `now`, in a rehearsal, no time is in the future. Raises UnreadableRecord if the notes cannot be read.
    """
    return newest_base(pool, host, now, read_notes(pool.host(host)))


def newest_base(pool: Pool, host: str, now: datetime | None, notes: Notes) -> FinalBackup | None:
    """Returns the same as `find_base`, for notes that were read already."""
    return next(bases(pool, host, now, notes), None)


def bases(pool: Pool, host: str, now: datetime | None, notes: Notes, unread: list[str] | None = None) -> Iterator[FinalBackup]:
    """Yields the host's complete backups, the best base first, without altered ones. Adds those that the disk cannot read to
    `unread`.

    Raises NewerRecord: only a newer btrkeep knows whether that backup is complete.
    """
    future = []
    for backup in final_backups(pool, host, [] if unread is None else unread, may_be_newer=False):
        if effective_state(backup.record, notes) != COMPLETE:
            continue
        try:
            if is_altered(backup.path, backup.subvolume, notes, backup.path.name):
                continue
        except OSError as error:
            if not is_damage(error):
                raise
            if unread is not None:
                unread.append(backup.path.name)
            continue
        if now is None or backup.record.started <= latest(now):
            yield backup
        else:
            future.append(backup)
    yield from future


def is_unreadable(subvolume: Path) -> bool:
    """Returns True if the disk cannot read some of the metadata of a subvolume. Raises OSError for an error that is not damage."""
    from btrkeep.treescan import has_readable_tree  # commands that only read start faster without it

    try:
        with opened(subvolume) as fd:
            return not has_readable_tree(fd)
    except OSError as error:
        if is_damage(error):
            return True
        raise


def recover(pool: Pool, host: str) -> Record | None:
    """Finishes a `.working` that is final except for its name. Returns the record of the backup, None if there was no such
    subvolume.

    A read-only `.working` was synced with its record before it became read-only, so its record is correct. The record of a writable
    one is not read: after a power cut it may be empty.
    """
    path = pool.working(host)
    subvolume = describe(path)
    final_backup = read_if_ours(path, host) if subvolume and subvolume.read_only else None
    if not final_backup:
        return None
    record = final_backup[1]
    if record.state not in FINAL or not record.name:
        return None
    rename_to_final(pool, path, record.name)
    return record


def rename_to_final(pool: Pool, path: Path, name: str) -> Path:
    final = path.with_name(name)
    if is_there(final):
        raise ForeignData(f"{final} exists already, so {path} cannot be renamed to it", "check both, and move one of them away")
    seal_backup(path, name)
    with Checkpoint("backup named"):
        path.rename(final)
    point_latest(pool, path.parent.name)
    return final


def sync_names(pool: Pool) -> None:
    """Writes the names of the newest backups to the disk before they are reported.

    A power cut before that loses only the name, and the next run of the host gives it again; so an error is only logged.
    """
    try:
        commit(pool.path)
    except OSError as error:
        log.warning("%s: the last names of backups may not be on the disk yet: %s", pool.path, error.strerror)


def newest_complete(pool: Pool, host: str) -> str | None:
    """Returns the backup to which `latest` points and on which the next one is based, None if none is complete. Raises
    UnreadableRecord.
    """
    final_backup = find_base(pool, host, None if pool.rehearsal else datetime.now(UTC))
    return final_backup.path.name if final_backup else None


def point_latest(pool: Pool, host: str) -> None:
    """Makes the symlink `latest` point to the newest complete backup; removes it if there is none.

    Called after every change to complete backups, under the host's lock. The link is a convenience for people; btrkeep never relies
    on it, so an error is ignored.
    """
    link = pool.host(host) / LATEST
    try:
        link_atomically(link, newest_complete(pool, host))
    except (OperatorError, OSError) as error:  # the notes cannot be read: it is unknown which backups are complete
        log.info("%s: %s", link, error)


def unfinished(path: Path, host: str) -> Subvolume | None:
    """Returns the `.working` at `path` if btrkeep made it, in any state that a run or a power cut may have left; else None.

    Raises UnreadableRecord for a read-only one whose record cannot be read: it was finished, and is damaged.
    """
    subvolume = describe(path)
    if subvolume is None:
        return None
    if subvolume.read_only:
        return subvolume if read_if_ours(path, host) else None
    return subvolume if is_unfinished_run(path, subvolume, host) else None


def is_unfinished_run(path: Path, subvolume: Subvolume, host: str) -> bool:
    """Returns True for a `.working` that btrkeep made: it is empty, or its record names it or is damaged (by a power cut)."""
    from backupd.repo.hardlinks import STAGING  # as above

    names = {entry.name for entry in os.scandir(path)}
    if not names <= {records.RECORD, records.RECORD + ".new", SUMS, DATA, os.fsdecode(STAGING)}:
        return False
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        return True
    if record is None:
        return not (path / DATA).exists() or not any(os.scandir(path / DATA))
    return record.uuid == subvolume.uuid and is_named(record.host, host, path.parent)


def discard(path: Path, uuid: str) -> None:
    """Deletes the `.working` of this run, if it is still the same subvolume. Raises OSError, as `delete_working` does."""
    subvolume = describe(path)
    if subvolume and subvolume.uuid == uuid and not subvolume.read_only:
        delete_working(path, subvolume)


def delete_working(path: Path, subvolume: Subvolume) -> None:
    """Deletes a `.working`. Raises OSError: EIO if metadata of its own is damaged, as the kernel would make the pool read-only."""
    from btrkeep.treescan import has_readable_tree  # as above

    with opened(path) as fd:
        if not has_readable_tree(fd, subvolume.created if _has_base(path.parent, subvolume) else 0):
            raise OSError(errno.EIO, "its metadata is damaged, so the kernel would make the pool read-only", str(path))
    delete(path.parent, subvolume.id)


def _has_base(folder: Path, subvolume: Subvolume) -> bool:
    """Returns True if the backup of which it is a snapshot exists and is unchanged: then all older metadata belongs to that backup
    too.
    """
    for entry in os.scandir(folder):
        with suppress(OSError):
            base = describe(Path(entry)) if parse_backup_name(entry.name) else None
            if base and base.uuid == subvolume.parent_uuid:
                return base.written <= subvolume.created
    return False
