"""The subvolume of a run, `.working`: made from the newest complete backup that the disk can read, or continued.

`interrupted` handles the `.working` of an earlier run, and `finalisation` the end of a run. Every function here is one small step
that may be killed at any moment: it leaves either the previous state, or a state that `recover` and `prepare` of the next run can
handle. Blocking; to be called in a thread.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.files.tree import Tree, components, joined, read_entry
from backupd.repo import backup_json as records
from backupd.repo.backup_json import DATA, Record
from backupd.repo.final_backups import (
    FinalBackup,
    ForeignData,
    bases,
    recover,
)
from backupd.repo.hardlinks import split_hard_links
from backupd.repo.leftovers import remove_tree
from backupd.repo.notes_json import Notes, read_notes
from backupd.repo.synced import remove_mark
from backupd.run.finalisation import DataLost, WorkSubvolume, leave_after_error, mark_unsynced, sync
from backupd.run.interrupted import LeftWork, drop_damaged_working, left_by_earlier_run, settings_of
from backupd.run.limits import join_quota, lift_left_quota
from btrkeep.backup_states import RUNNING
from btrkeep.catalogue import WHOLE, Damage
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig
from btrkeep.errors import DAMAGED, OperatorError, is_caused_by_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import create, delete, describe, opened, snapshot
from btrkeep.pool.syncfs import Syncfs
from btrkeep.process.progress import Cancellation, Cancelled
from btrkeep.treescan import has_readable_tree

log = logging.getLogger(__name__)


class HostForgotten(OperatorError):
    """The host was forgotten; it is not backed up until `forget --undo`."""


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """The `.working` that a run needs."""

    pool: Pool
    """The pool."""
    host: HostConfig
    """The host."""
    now: datetime
    """The start of the run."""
    disk: Syncfs
    """Commits the filesystem."""
    cancelled: Cancellation | None = None
    """Ends the work early; None: it cannot be ended early."""
    damages: tuple[Damage, ...] = ()
    """The known damages of the base: these files are removed, unless a continued run has fetched them since."""
    imported: str | None = None
    """As in the Record; an unfinished import is not continued."""
    checked: bool = False
    """True if each base is read first and the newest readable one, or none, is used: a backup whose base has unreadable metadata
    never becomes complete.
    """

    @property
    def path(self) -> Path:
        return self.pool.working(self.host.name)


def recover_and_prepare(wanted: WorkRequest) -> tuple[Record | None, WorkSubvolume]:
    """Gives the backup of a killed run its name if only the name is missing, then prepares `.working`; both in one call of a
    thread.
    """
    host = wanted.host.name
    lift_left_quota(wanted.pool, host)
    recovered = recover(wanted.pool, host)
    try:
        return recovered, prepare(wanted)
    except (OSError, OperatorError) as error:
        if wanted.checked or not is_caused_by_damage(error):
            raise
        log.warning("%s: the base of the new backup cannot be read (%s); searching for another base", host, error)
    return recovered, prepare(replace(wanted, checked=True))


def prepare(wanted: WorkRequest) -> WorkSubvolume:
    """Prepares a writable `.working`: a continued one, a snapshot of the newest complete backup, or an empty subvolume.

    A continued `.working` was marked as synced, or is a first copy, whose files are then all in doubt.

    After `cancelled` no rsync may run in it: files that share an inode may not all be split. Raises Cancelled.

    Raises HostForgotten, ForeignData for a `.working` that btrkeep did not make, and OSError of the filesystem.
    """
    pool, host, path = wanted.pool, wanted.host, wanted.path
    folder = pool.host(host.name)
    _ensure_folder(folder)
    notes = read_notes(folder)
    require_not_forgotten(host.name, notes)
    base, unread = choose_base(pool, host.name, wanted.now, notes, wanted.checked, wanted.damages)
    if wanted.checked and is_there(path) and is_damaged(path):
        drop_damaged_working(path, unread)
    left = left_by_earlier_run(path, host, base)
    prepared = (
        _continue(wanted, left, base, unread)
        if left
        else make_work_subvolume(pool, host, base, wanted.now, wanted.imported, unread)
    )
    try:
        prepared = replace(prepared, dropped=_make_ready(wanted, prepared, base))
    except DataLost:
        raise
    except Exception:
        if not prepared.fresh:  # data of earlier runs must not be lost with the mark
            leave_after_error(prepared, first_record(prepared, host, wanted.now), wanted.disk)
        raise
    return prepared


def require_not_forgotten(host: str, notes: Notes) -> None:
    """Raises HostForgotten. The caller has the host's lock."""
    if notes.forgotten:
        raise HostForgotten(
            f"{host} is forgotten: all its backups are due for deletion, also new backups: `backupd forget {host} --undo` undoes "
            "that"
        )


def _make_ready(wanted: WorkRequest, prepared: WorkSubvolume, base: FinalBackup | None) -> int:
    """Removes what rsync must not find in it: other source paths, damaged files, shared inodes. Returns the number of damaged
    files.
    """
    host, path = wanted.host, prepared.path
    join_quota(wanted.pool, host.name, prepared.id)
    if (path / DATA).is_symlink():
        raise ForeignData(
            f"{path / DATA} is a symlink that leads out of the pool",
            "delete the backup whose folder `data` is this symlink",
        )
    _ensure_folder(path / DATA, mode=0o777)
    drop_other_paths(path / DATA, host.paths)
    dropped = drop_damaged(path, base.path, damaged_paths(base, wanted.damages)) if base else 0
    if not prepared.fresh or dropped:
        sync(wanted.disk)  # the deletion of the mark is on disk before rsync writes; and a tree search sees only committed inodes
    if (base or not prepared.fresh) and host.engine != "send":  # a stream expects the hard links of its parent
        split_hard_links(path, since=linked_since(base), cancelled=wanted.cancelled)
    return dropped


def _ensure_folder(folder: Path, mode: int = 0o700) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=mode, exist_ok=True)


def make_work_subvolume(
    pool: Pool,
    host: HostConfig,
    base: FinalBackup | None,
    now: datetime,
    imported: str | None = None,
    unread_bases: tuple[str, ...] = (),
) -> WorkSubvolume:
    """Makes a new `.working`. It gets that name after it has its record, so a `.working` without a record was not made by
    btrkeep.
    """
    staged, path = pool.staged(host.name), pool.working(host.name)
    if not staged.parent.is_dir():
        staged.parent.parent.mkdir(mode=0o700, exist_ok=True)  # runs of other hosts create it too
        staged.parent.mkdir(mode=0o700)
    if left := describe(staged):  # left behind by a run that was killed at this point
        delete(staged.parent, left.id)
    if base:
        snapshot(base.path, staged)
    else:
        create(staged)
    subvolume = describe(staged)
    assert subvolume is not None
    record, ancestors = base.record if base else None, ancestors_of(base, subvolume.created)
    prepared = WorkSubvolume(path, record, True, subvolume.id, subvolume.uuid, unread_bases=unread_bases, ancestors=ancestors)
    records.write(staged, first_record(prepared, host, now, imported))
    with Checkpoint("working subvolume named"):
        staged.rename(path)
    return prepared


def _continue(wanted: WorkRequest, left: LeftWork, base: FinalBackup | None, unread: tuple[str, ...]) -> WorkSubvolume:
    """Makes an existing `.working` safe for rsync, which compares times and sizes: files that cannot be trusted get
    another time.
    """
    path, record = wanted.path, base.record if base else None
    is_unsynced, ancestors = left.record.doubted or not left.synced, left.record.ancestors
    prepared = WorkSubvolume(path, record, False, left.subvolume.id, left.subvolume.uuid, is_unsynced, unread, ancestors)
    first = first_record(prepared, wanted.host, wanted.now)
    records.write(path, first, durable=True)  # before the mark is deleted, because it may fail on a full pool
    remove_mark(path)
    if not left.synced and not mark_unsynced(path, wanted.cancelled):
        raise Cancelled  # without the mark, the next run starts again to mark all files
    return prepared


def first_record(prepared: WorkSubvolume, host: HostConfig, now: datetime, imported: str | None = None) -> Record:
    """Returns the record of a run that starts."""
    base = prepared.base
    return Record(
        host=host.name,
        uuid=prepared.uuid,
        state=RUNNING,
        started=now,
        base=base.name if base else None,
        base_uuid=base.uuid if base else None,
        settings=settings_of(host),
        address=host.address,
        doubted=prepared.has_unsynced_files,
        imported=imported,
        unread_bases=prepared.unread_bases,
        ancestors=prepared.ancestors,
    )


def choose_base(
    pool: Pool, host: str, now: datetime, notes: Notes, checked: bool, damages: Iterable[Damage] = ()
) -> tuple[FinalBackup | None, tuple[str, ...]]:
    """Returns the base, and the names of the newer backups that the disk cannot read.

    Backups that the continued run has skipped are read again, because a disk may have been missing; so are backups recorded as
    damaged completely. A backup with damaged files whose names are unknown cannot be the base, because a run could not fetch them
    again.
    """
    paths: dict[str, set[str]] = {}
    for row in damages:
        if row.fate is None:
            paths.setdefault(row.name, set()).add(row.path)
    unread_before, unread = _known_unread(pool.working(host)), list[str]()
    for base in bases(pool, host, now, notes, unread):
        name = base.path.name
        damaged = paths.get(name, set())
        is_lost = WHOLE in damaged and len(damaged) > 1
        if not is_lost and (not (checked or name in unread_before or damaged == {WHOLE}) or _is_whole(base.path)):
            return base, tuple(sorted(unread))
        unread.append(name)
    return None, tuple(sorted(unread))


def _known_unread(working: Path) -> tuple[str, ...]:
    with contextlib.suppress(records.UnreadableRecord, OSError):
        record = records.read(working)
        return record.unread_bases if record else ()
    return ()


def _is_whole(subvolume: Path) -> bool:
    with opened(subvolume) as fd:
        return has_readable_tree(fd)


def is_damaged(subvolume: Path) -> bool:
    """Returns True if the disk cannot read some of the metadata of a subvolume that was readable a moment ago."""
    try:
        return not _is_whole(subvolume)
    except OSError as error:
        log.warning("%s: %s", subvolume, error)
        return False


def damaged_paths(base: FinalBackup, damages: Iterable[Damage]) -> list[bytes]:
    return sorted({os.fsencode(damage.path) for damage in damages if damage.name == base.record.name and damage.fate is None})


def linked_since(base: FinalBackup | None) -> int:
    """Returns the generation before which no file in a snapshot of `base` can have been linked: this leaves a hundredth of the tree
    to search.

    Every run splits before its rsync, so the links in a backup were made after the snapshot with which it started. A base without
    this record (made by hand) is searched completely. So is a subvolume without a base, and a copy from another pool, which was
    made here after all of its links.
    """
    is_known = base is not None and base.record.links_split and not base.subvolume.received_uuid
    return base.subvolume.created if base and is_known else 0


def ancestors_of(base: FinalBackup | None, created: int) -> dict[str, int]:
    """Returns `ancestors` for the Record of a new snapshot of `base`. `created`: the generation in which the snapshot was made."""
    if base is None:
        return {}
    older = {} if base.subvolume.received_uuid else base.record.ancestors  # otherwise they are generations of another pool
    names = {path.name for path in base.path.parent.iterdir()} if older else set()
    return {name: generation for name, generation in older.items() if name in names} | {base.path.name: created}


@Checkpoint("other paths removed")
def drop_other_paths(data: Path, paths: tuple[str, ...]) -> None:
    """Removes from the new backup all paths outside of the source paths, and any entry that is not a folder above them.

    An older rsync would follow a symlink there. A host could have planted one while a path above was a separate source, or in an
    earlier attempt of this run.
    """
    wanted: dict[str, Any] = {}
    for path in paths:
        level = wanted
        for part in path.strip("/").split("/") if path != "/" else ():
            level = level.setdefault(part, {})
        if path == "/":
            return
    _prune(data, wanted)


def _prune(folder: Path, wanted: Mapping[str, Any]) -> None:
    for entry in list(os.scandir(folder)):
        below = wanted.get(entry.name)
        is_folder = entry.is_dir(follow_symlinks=False)
        is_file_source = below == {} and entry.is_file(follow_symlinks=False)
        if below is None or not (is_folder or is_file_source):
            if is_folder and describe(Path(entry.path)):
                raise ForeignData(f"{entry.path} is a subvolume that does not belong to btrkeep", "move it to another folder (mv)")
            if is_folder:
                try:
                    remove_tree(entry.path)
                except OSError as error:
                    raise ForeignData(f"{entry.path}: {error.strerror}", "move the files of other programs out of it") from None
            else:
                Path(entry.path).unlink()
        elif below:
            _prune(Path(entry.path), below)


@Checkpoint("damaged files removed")
def drop_damaged(subvolume: Path, base: Path, paths: Iterable[bytes]) -> int:
    """Removes the damaged regular files at these paths from a writable snapshot of `base`; returns the number of names. Folders
    keep their times.

    The files are then fetched again. rsync compares times and sizes, which damage does not change: it would keep the unreadable
    extent in every later backup. The base itself is read-only and not changed.

    A file with another inode than in `base` is kept, because an earlier run of this backup has fetched it since. A file that cannot
    be removed also remains, and is logged. Can be repeated, also after a kill. Raises OSError if one of the two has no files, or if
    its metadata is damaged.
    """
    dropped = 0
    with Tree(subvolume) as new, Tree(base) as old:
        for path in paths:
            try:
                dropped += _drop(new, old, path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in DAMAGED:  # damaged metadata: it cannot be the base of a new backup
                    raise
                log.warning("%s: %r is damaged, but could not be removed to fetch it again: %s", subvolume, path, error)
    return dropped


def _drop(new: Tree, old: Tree, path: bytes) -> bool:
    names = components(path)
    if not names:
        return False
    with new.folder(joined(names[:-1])) as folder:
        entry = read_entry(folder, names[-1], path)
        if entry.kind != "file" or entry.inode != old.stat(path).inode:
            return False
        before = os.fstat(folder)
        os.unlink(names[-1], dir_fd=folder)
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    return True
