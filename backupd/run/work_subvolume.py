"""The subvolume of a run: its creation, and the treatment of one left by an earlier run. How it ends: finishing.

Every function here is one small step that may be killed anywhere: it leaves either the previous state, or a state that `recover`
and `prepare` of the next run understand. Blocking; meant to be called in a thread.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from backupd.repo import backup_json as records
from backupd.repo.backup_json import DATA, Record
from backupd.repo.final_backups import (
    FinalBackup,
    ForeignData,
    bases,
    delete_working,
    discard,
    is_named,
    is_unfinished_run,
    recover,
)
from backupd.repo.hardlinks import split
from backupd.repo.notes_json import Notes, read_notes
from backupd.repo.synced import is_synced, remove_mark
from backupd.run import quota
from backupd.run.damaged import drop_damaged
from backupd.run.doubt import doubt
from backupd.run.finishing import DataLost, Prepared, leave_after_error, sync
from backupd.run.limits import still_exceeds
from backupd.run.other_paths import drop_other_paths
from btrkeep.backup_states import RUNNING
from btrkeep.catalogue import Damage
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig
from btrkeep.errors import OperatorError, PoolUnusable, is_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.orphans import wait_for
from btrkeep.pool.subvolume import Subvolume, commit, create, delete, describe, opened, snapshot
from btrkeep.pool.syncfs import Syncfs
from btrkeep.process.cancellation import Cancellation, Cancelled
from btrkeep.treescan import has_readable_tree

log = logging.getLogger(__name__)

_UNTIL_DROPPED = 30.0  # seconds; what takes longer is dropped by the night after
_WAKE_CLEANER_EVERY = 5.0  # seconds


class Forgotten(OperatorError):
    """The host was given up; it is not backed up before that is taken back."""


def settings_of(host: HostConfig) -> dict[str, Any]:
    """Returns the settings that a run must share with the one it continues."""
    return {
        "paths": list(host.paths),
        "exclude": [*host.left_out, *host.exclude],
        "inplace": host.inplace,
        "one_file_system": host.one_file_system,
    }


def recover_and_prepare(
    pool: Pool,
    host: HostConfig,
    now: datetime,
    disk: Syncfs,
    cancelled: Cancellation | None = None,
    damages: Iterable[Damage] = (),
    imported: str | None = None,
    *,
    checked: bool = False,
) -> tuple[Record | None, Prepared]:
    """Does both at once, for a run: in one call of a thread."""
    quota.begin(pool, host.name)
    recovered, damages = recover(pool, host.name), tuple(damages)
    try:
        return recovered, prepare(pool, host, now, disk, cancelled, damages, imported, checked=checked)
    except (OSError, PoolUnusable) as error:
        if checked or imported is not None or not is_damage(error if isinstance(error, OSError) else error.__cause__):
            raise
        log.warning("%s: the base of the new backup cannot be read (%s); another one is looked for", host.name, error)
    return recovered, prepare(pool, host, now, disk, cancelled, damages, checked=True)


def prepare(
    pool: Pool,
    host: HostConfig,
    now: datetime,
    disk: Syncfs,
    cancelled: Cancellation | None = None,
    damages: Iterable[Damage] = (),
    imported: str | None = None,
    *,
    checked: bool = False,
) -> Prepared:
    """Prepares a writable `.working`: a continued one, a snapshot of the newest complete backup, or an empty subvolume.

    A continued one was marked as synced, or is a first copy, whose files are then all in doubt. `disk` is the run's.

    Files of `damages` in the base are removed, unless a continued run has fetched them since.

    `imported` is the Record's. What an import has left is not continued, whoever asks.

    What grows from a base of which the disk does not give back some metadata never becomes complete. `checked`: each base and what
    was left is read first, and the newest whole one is taken, or none.

    After `cancelled` no rsync may run in it: files that share an inode may not all be split. Raises Cancelled.

    Raises Forgotten, ForeignData for a `.working` that we did not make, OSError as the filesystem gives it.
    """
    folder = pool.host(host.name)
    _ensure_folder(folder)
    notes = read_notes(folder)
    if notes.forgotten:
        raise Forgotten(
            f"{host.name} is forgotten, so all its backups go, new ones too: `backupd forget {host.name} --undo` takes it back"
        )
    path = pool.working(host.name)
    base, unread = _choose(pool, host.name, now, notes, checked)
    if unread and imported is not None:  # an import knows what it copied into the newest
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(pool.host(host.name) / unread[0]))
    if checked and is_there(path) and is_damaged(path):
        _drop_damaged_working(path, unread)
    left = _left(path, host, base)
    prepared = _continue(path, left, base, unread, host, now, cancelled) if left else make(pool, host, base, now, imported, unread)
    try:
        quota.join(pool, host.name, prepared.id)
        if (path / DATA).is_symlink():
            raise ForeignData(
                f"{path / DATA} is a symlink, which would lead out of the pool", "delete the backup that it comes from"
            )
        _ensure_folder(path / DATA, mode=0o777)
        drop_other_paths(path / DATA, host.paths)
        dropped = drop_damaged(path, base.path, _damaged_paths(base, damages)) if base else 0
        if not prepared.fresh or dropped:
            sync(disk)  # the mark is gone for good before rsync writes anything; and a tree search sees committed inodes only
        if base or not prepared.fresh:
            split(path, since=_linked_since(base), cancelled=cancelled)
    except DataLost:
        raise
    except Exception:
        if not prepared.fresh:  # what earlier runs brought must not be lost with the mark
            leave_after_error(prepared, first_record(prepared, host, now), disk)
        raise
    return prepared


def _choose(pool: Pool, host: str, now: datetime, notes: Notes, checked: bool) -> tuple[FinalBackup | None, tuple[str, ...]]:
    """Returns the base, and the names of the newer backups that the disk does not give back.

    Those that a continued run has passed over are read again: a disk may have been away.
    """
    known, unread = _known_unread(pool.working(host)), list[str]()
    for base in bases(pool, host, now, notes, unread):
        if not (checked or base.path.name in known) or _is_whole(base.path):
            return base, tuple(sorted(unread))
        unread.append(base.path.name)
    return None, tuple(sorted(unread))


def _drop_damaged_working(path: Path, unread: tuple[str, ...]) -> None:
    """Deletes a `.working` that was left by an earlier run. Its damage must be that of the base that it grew from: the kernel
    makes the pool read-only when it drops a subvolume whose own metadata it cannot read.
    """
    there = describe(path)
    if not unread or there is None:
        raise OperatorError(
            f"the disk does not give back some metadata of {path}, and the kernel makes the pool read-only when that is deleted",
            "move it out of the hosts' folder (mv); the next run begins with the newest backup",
        )
    discard(path, there.uuid)


def _known_unread(working: Path) -> tuple[str, ...]:
    with contextlib.suppress(records.UnreadableRecord, OSError):
        found = records.read(working)
        return found.unread_bases if found else ()
    return ()


def _is_whole(subvolume: Path) -> bool:
    with opened(subvolume) as fd:
        return has_readable_tree(fd)


def is_damaged(subvolume: Path) -> bool:
    """Returns True if the disk does not give back some of the metadata of a subvolume that it gave a moment ago."""
    try:
        return not _is_whole(subvolume)
    except OSError as error:
        log.warning("%s: %s", subvolume, error)
        return False


def _damaged_paths(base: FinalBackup, damages: Iterable[Damage]) -> list[bytes]:
    return sorted({os.fsencode(one.path) for one in damages if one.name == base.record.name and one.fate is None})


def _ensure_folder(folder: Path, mode: int = 0o700) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=mode, exist_ok=True)


def _linked_since(base: FinalBackup | None) -> int:
    """Returns the generation before which no file in a snapshot of `base` can have been linked: a hundredth of the tree to search.

    Every run splits before its rsync, so the links in a backup were made after the snapshot that it started from. A base that does
    not record this (of an earlier version, or made by hand) is searched as a whole, and so is a subvolume without a base, and one
    that came from another pool: it was made here after all of its links.
    """
    is_known = base is not None and base.record.links_split and not base.subvolume.received_uuid
    return base.subvolume.created if base and is_known else 0


def make(
    pool: Pool,
    host: HostConfig,
    base: FinalBackup | None,
    now: datetime,
    imported: str | None = None,
    unread_bases: tuple[str, ...] = (),
) -> Prepared:
    """Makes a new `.working`. It gets that name after it has its record, so one without a record is not ours."""
    staged, path = pool.staged(host.name), pool.working(host.name)
    if not staged.parent.is_dir():
        staged.parent.parent.mkdir(mode=0o700, exist_ok=True)  # which other hosts' runs make too
        staged.parent.mkdir(mode=0o700)
    if left := describe(staged):  # by a run that was killed here
        delete(staged.parent, left.id)
    if base:
        snapshot(base.path, staged)
    else:
        create(staged)
    subvolume = describe(staged)
    assert subvolume is not None
    ancestors = _ancestors(base, subvolume.created)
    prepared = _prepared(path, subvolume, base, unread_bases, ancestors, fresh=True, doubted=False)
    records.write(staged, first_record(prepared, host, now, imported))
    with Checkpoint("working subvolume named"):
        staged.rename(path)
    return prepared


def _continue(
    path: Path,
    left: "_Left",
    base: FinalBackup | None,
    unread_bases: tuple[str, ...],
    host: HostConfig,
    now: datetime,
    cancelled: Cancellation | None,
) -> Prepared:
    """A `.working` that was left, for rsync to go by its files' times and sizes: those that cannot be relied on are made unlike."""
    doubted = left.record.doubted or not left.synced
    prepared = _prepared(path, left.subvolume, base, unread_bases, left.record.ancestors, fresh=False, doubted=doubted)
    records.write(path, first_record(prepared, host, now), durable=True)  # before the mark goes: it may fail on a full pool
    remove_mark(path)
    if not left.synced and not doubt(path, cancelled):
        raise Cancelled  # without the mark: the next run begins again to put all files in doubt
    return prepared


def _prepared(
    path: Path,
    subvolume: Subvolume,
    base: FinalBackup | None,
    unread_bases: tuple[str, ...],
    ancestors: Mapping[str, int],
    *,
    fresh: bool,
    doubted: bool,
) -> Prepared:
    return Prepared(path, base.record if base else None, fresh, subvolume.id, subvolume.uuid, doubted, unread_bases, ancestors)


def _ancestors(base: FinalBackup | None, created: int) -> dict[str, int]:
    """Returns the Record's of a snapshot of `base` that was made in that generation."""
    if base is None:
        return {}
    older = {} if base.subvolume.received_uuid else base.record.ancestors  # else they are another pool's generations
    there = {path.name for path in base.path.parent.iterdir()} if older else set()
    return {name: generation for name, generation in older.items() if name in there} | {base.path.name: created}


def first_record(prepared: Prepared, host: HostConfig, now: datetime, imported: str | None = None) -> Record:
    """Returns the record of a run that begins."""
    base = prepared.base
    return Record(
        host=host.name,
        uuid=prepared.uuid,
        state=RUNNING,
        started=now,
        base=base.name if base else None,
        base_uuid=base.uuid if base else None,
        settings=settings_of(host),
        doubted=prepared.doubted,
        imported=imported,
        unread_bases=prepared.unread_bases,
        ancestors=prepared.ancestors,
    )


class _Left(NamedTuple):
    """A writable `.working` of an earlier run that fits this one."""

    subvolume: Subvolume
    record: Record
    synced: bool


def _left(path: Path, host: HostConfig, base: FinalBackup | None) -> _Left | None:
    """Returns the existing `.working` if it is worth continuing; else discards it. Raises an error for a foreign one.

    Without the mark it is unknown which of its files are on the disk. One with a base is then made again, because that costs
    little.
    """
    if not is_there(path):
        return None
    subvolume = describe(path)
    if subvolume is None or subvolume.read_only:
        raise ForeignData(f"{path} is not ours", "move it away")
    record = _fitting(path, subvolume, host, base)
    synced = record is not None and is_synced(path, record)
    if record and (synced or base is None):
        return _Left(subvolume, record, synced)
    if not record and not is_unfinished_run(path, subvolume, host.name):
        raise ForeignData(f"{path} is not ours", "move it away")
    try:
        delete_working(path, subvolume)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise ForeignData(f"{path} holds a subvolume that is not ours, so it cannot be discarded", "move that away") from error
    if host.quota is not None:  # what it has is counted until it is dropped
        _wait_until_dropped(path.parent, subvolume.id)
    return None


def _wait_until_dropped(folder: Path, subvolume_id: int) -> None:
    """Waits for the kernel, `_UNTIL_DROPPED` at most. Raises OSError.

    It wakes the cleaner again and again: a subvolume in which a file is open is only queued when that is closed, and the cleaner
    would then sleep until the next commit, up to 30 s.
    """
    until = time.monotonic() + _UNTIL_DROPPED
    while time.monotonic() < until:
        commit(folder)
        if wait_for(folder, subvolume_id, _WAKE_CLEANER_EVERY):
            return


def _fitting(path: Path, subvolume: Subvolume, host: HostConfig, base: FinalBackup | None) -> Record | None:
    """Returns the record of a `.working` that this host, as it is configured, can continue from that base.

    Of an import it has an old tree, whose files may have the sizes and times of the host's and other content.
    """
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        return None
    base_uuid = base.record.uuid if base else None
    fits = (
        record is not None
        and (record.uuid, record.base_uuid) == (subvolume.uuid, base_uuid)
        and is_named(record.host, host.name, path.parent)
        and record.settings == settings_of(host)
        and record.imported is None
        and not still_exceeds(record.cause, host)
    )
    return record if fits else None


def discardable(path: Path, host: str, is_own: Callable[[Record], bool]) -> Subvolume | None:
    """Returns what a killed command left as `.working`, if another may discard it to begin again; `is_own` knows it by its record.

    One whose record a power cut left empty, or took away, is in nobody's way: a night would discard it as well.
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
