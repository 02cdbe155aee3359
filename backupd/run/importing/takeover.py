"""Makes a snapshot of btrbk or snapper on the pool's own filesystem a backup without copying: by a snapshot of it, which is then
changed as needed.

Everything is done in the staged subvolume, which the next run deletes if this one is killed; the original is only read. Its hard
links are older than the new subvolume, so the record does not say `links_split`, and the next night searches the whole backup for
them.

The next nights start with a snapshot of it, so flags that chattr has set are removed: rsync could not change immutable files, and
new files in a folder with nodatacow would have no checksums.
"""

import asyncio
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from backupd.files.tree import Entry, Tree
from backupd.files.walking import WalkEntry, walk
from backupd.repo import backup_json as records
from backupd.repo.backup_json import DATA
from backupd.repo.final_backups import discard
from backupd.repo.notes_json import read_notes
from backupd.run import finalisation
from backupd.run import work_subvolume as working
from backupd.run.finalisation import WorkSubvolume
from backupd.run.fresh_sums import NO_SUMS
from backupd.run.importing.formats import OldTree
from backupd.run.importing.import_context import ImportContext, config_of, locked_for_import, require_going
from backupd.run.importing.import_tree import ImportedBackup, import_record, origin_of
from backupd.run.limits import join_quota
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FILE, FOLDER
from btrkeep.fs.reflink import APPEND, IMMUTABLE, NOCOW, clear_inode_flags
from btrkeep.pool.marker import is_on
from btrkeep.pool.subvolume import delete, describe, snapshot
from btrkeep.pool.syncfs import syncing
from btrkeep.process.progress import Cancelled
from btrkeep.treescan import changed
from btrkeep.units import bounded

_ASIDE = ".btrkeep-takeover"
_EMPTY = 2  # inode of the empty folder that a snapshot has instead of a nested subvolume


@dataclass(slots=True)
class TakenTree:
    """The content of a snapshot."""

    files: int = 0
    """Number of regular files."""
    bytes: int = 0
    """Their size."""
    nested: int = 0
    """Number of folders that represented subvolumes in it, which were removed."""


async def take_over(context: ImportContext, tree: OldTree) -> ImportedBackup:
    """Makes the backup. An incomplete backup is deleted, if necessary by the next run. Raises Cancelled, OperatorError, OSError."""
    with locked_for_import(context, tree) as (host, _), ExitStack() as held:
        working.require_not_forgotten(tree.host, read_notes(context.pool.host(tree.host)))
        if not is_on(tree.folder, context.pool.filesystem):
            hint = "to copy a folder of dated snapshots: `backupd import tree FOLDER --host NAME`"
            raise OperatorError(f"{tree.folder} is on another filesystem than the pool, so it must be copied", hint)
        disk = held.enter_context(syncing(context.pool.path))
        if left := describe(context.pool.working(tree.host)):  # left behind by a killed import: see locked_for_import
            discard(context.pool.working(tree.host), left.uuid)
        staged = context.pool.staged(tree.host)
        try:
            taken_tree = await asyncio.to_thread(_arranged, context, tree, staged)
            require_going(context)  # here, because the handler of a pending signal has run by now
            prepared = await asyncio.to_thread(_make_working, context, staged, tree)
        except BaseException:
            if left := describe(staged):
                with suppress(OSError):
                    delete(staged.parent, left.id)
            raise
        try:
            require_going(context)
            numbers = {"files": taken_tree.files, "regular": taken_tree.files, "bytes": bounded(taken_tree.bytes), "literal": 0}
            record = import_record(context, tree, working.first_record(prepared, host, tree.started, origin_of(tree)), numbers)
            _, final = await asyncio.to_thread(
                lambda: finalisation.finalise(context.pool, prepared, record, disk, NO_SUMS, split=False)
            )
        except BaseException:
            with suppress(OSError):
                discard(prepared.path, prepared.uuid)
            raise
        return ImportedBackup(final, prepared.id, 0, taken_tree.nested)


def _arranged(context: ImportContext, tree: OldTree, staged: Path) -> TakenTree:
    """Makes the staged subvolume, with the snapshot's content below data/PATH. Raises Cancelled, OperatorError, OSError."""
    for folder in (context.pool.host(tree.host), staged.parent.parent, staged.parent):
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
    if left := describe(staged):  # left behind by a run that was killed at this point
        delete(staged.parent, left.id)
    before = describe(tree.folder)
    snapshot(tree.folder, staged)
    made = describe(staged)
    if before is None or made is None or made.parent_uuid != before.uuid:
        raise OperatorError(f"{tree.folder} was replaced during the import", "run the import again")
    taken_tree = _cleaned(context, staged)
    with Checkpoint("snapshot arranged"):
        _move(staged, tree.path)
    return taken_tree


def _move(staged: Path, path: str) -> None:
    """Moves everything in the subvolume below data/PATH; that folder gets the attributes of the subvolume's root."""
    was, aside = staged.stat(), staged / _ASIDE
    names = [path.name for path in staged.iterdir()]
    if _ASIDE in names:
        raise OperatorError(f"it contains {_ASIDE}, a name that the import needs: rename that file or folder")
    attributes = {name: os.getxattr(staged, name) for name in os.listxattr(staged)}
    for attribute in attributes:  # first, because new entries inherit a default ACL
        os.removexattr(staged, attribute)
    aside.mkdir(mode=0o700)
    for name in names:
        (staged / name).rename(aside / name)
    os.chown(aside, was.st_uid, was.st_gid)
    aside.chmod(stat.S_IMODE(was.st_mode))
    for attribute, value in attributes.items():
        os.setxattr(aside, attribute, value)
    os.chown(staged, 0, 0)
    staged.chmod(0o755)
    target = staged / DATA / path.strip("/")
    if path.strip("/"):
        target.parent.mkdir(parents=True)
    aside.rename(target)
    os.utime(target, ns=(was.st_atime_ns, was.st_mtime_ns))


def _cleaned(context: ImportContext, top: Path) -> TakenTree:
    """Counts the content, removes flags, and removes the empty folders that represent subvolumes; the folders above these keep
    their times.
    """
    taken_tree, flagged = TakenTree(), _flagged(top)
    with Tree.of_folder(top) as tree:
        for walk_entry in walk(tree, b"/", skip=_stands_for_subvolume):  # folders may be nested deeper than the longest path
            if not context.goes_on:
                raise Cancelled
            entry = walk_entry.entry
            if walk_entry.left:
                continue
            if entry.inode in flagged and entry.kind in ("folder", "file"):  # before anything changes in that folder
                _clear_flags(walk_entry)
            if _stands_for_subvolume(entry):
                was = os.fstat(walk_entry.folder)
                os.rmdir(walk_entry.name, dir_fd=walk_entry.folder)
                os.utime(walk_entry.folder, ns=(was.st_atime_ns, was.st_mtime_ns))
                taken_tree.nested += 1
            elif entry.kind != "folder":
                taken_tree.files += entry.kind == "file"
                taken_tree.bytes += entry.size if entry.kind in ("file", "symlink") else 0
    return taken_tree


def _flagged(top: Path) -> set[int]:
    with ClosingFd(os.open(top, FOLDER)) as fd:
        return set(changed.flagged_inodes(fd, changed.IMMUTABLE | changed.APPEND | changed.NODATACOW))


def _clear_flags(walk_entry: WalkEntry) -> None:
    """Removes the flags of an entry. Files that were written without checksums remain so: nodatacow cannot be removed from a
    file.
    """
    is_folder = walk_entry.entry.kind == "folder"
    with ClosingFd(os.open(walk_entry.name, FOLDER if is_folder else os.O_RDONLY | FILE, dir_fd=walk_entry.folder)) as fd:
        clear_inode_flags(fd, IMMUTABLE | APPEND | (NOCOW if is_folder else 0))


def _stands_for_subvolume(entry: Entry) -> bool:
    return entry.kind == "folder" and entry.inode == _EMPTY


def skipped_subvolumes(tree: Path, copy: Path) -> list[bytes]:
    """Returns the names of the subvolumes in a snapshot, and of the empty folders that represent subvolumes; both are missing in
    its copy.
    """
    root, skipped, waiting = os.fsencode(tree), list[bytes](), [b""]
    device = tree.stat().st_dev
    while waiting:
        above = waiting.pop()
        with os.scandir(root + b"/" + above) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                status, name = entry.stat(follow_symlinks=False), above + entry.name
                if status.st_ino != _EMPTY and status.st_dev == device:
                    waiting.append(name + b"/")
                elif not os.path.lexists(os.fsencode(copy) + b"/" + name):
                    skipped.append(name)
    return skipped


def _make_working(context: ImportContext, staged: Path, tree: OldTree) -> WorkSubvolume:
    """Makes `.working`, with its first record."""
    subvolume = describe(staged)
    assert subvolume is not None
    prepared = WorkSubvolume(context.pool.working(tree.host), None, True, subvolume.id, subvolume.uuid)
    join_quota(context.pool, tree.host, subvolume.id)
    records.write(staged, working.first_record(prepared, config_of(context.config, tree), tree.started, origin_of(tree)))
    with Checkpoint("working subvolume named"):
        staged.rename(prepared.path)
    return prepared
