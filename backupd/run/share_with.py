"""Shares the data that a run wrote with the newest backup of a similar host (`share_with`), where both are equal.

The files are first written into a subvolume without any data of the other host; then the kernel compares them. If the run began
with a snapshot of the other's backup, it would keep everything that the host's rsync does not mention.
"""

import logging
import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from backupd.files.tree import Tree, joined, open_plain
from backupd.repo.backup_json import DATA
from backupd.repo.final_backups import find_base
from backupd.repo.read_lock import lock_for_reading
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.dedupe import OF_ONE_FILE, shared_pieces
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.process.cancellation import Cancellation
from btrkeep.treescan import FolderPaths, written_files
from btrkeep.units import counted, format_size

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShareWith:
    """The host to share with, and a condition that ends the sharing early: files shared by then stay shared."""

    host: str
    cancelled: Cancellation


@dataclass(frozen=True, slots=True)
class SharedData:
    """Files that share data with the other host's now, and the bytes that they share. `other`: the backup with that data,
    HOST@NAME; None if there was none.
    """

    files: int = 0
    bytes: int = 0
    other: str | None = None


def share_written(pool: Pool, subvolume: Path, share_with: ShareWith, now: datetime) -> SharedData:
    """Shares the data written since `subvolume` was made, and committed, with the other host's newest complete backup.

    An error here never fails the backup: files that are not shared take their own space, and the log has the reason.
    """
    try:
        base = find_base(pool, share_with.host, None if pool.rehearsal else now)
        if base is None:
            _log.info("%s: %s has no complete backup yet to share data with", subvolume, share_with.host)
            return SharedData()
        with lock_for_reading(base.path):
            done = replace(_share_all(subvolume, base.path, share_with.cancelled), other=f"{share_with.host}@{base.record.name}")
    except (OSError, OperatorError) as error:
        _log.warning("%s: its data is not shared with that of %s: %s", subvolume, share_with.host, error)
        return SharedData()
    said = f"{format_size(done.bytes)} of {counted(done.files, 'file')}"
    _log.info("%s: %s shared with %s", subvolume, said, base.path)
    return done


@Checkpoint("data shared with another host")
def _share_all(subvolume: Path, other: Path, cancelled: Cancellation) -> SharedData:
    """Goes by the files of `subvolume` that were written: a path means the same file on both hosts. Raises OSError."""
    there = describe(subvolume)
    assert there is not None
    files = total = 0
    with ClosingFd(os.open(subvolume, FOLDER)) as root:
        paths = FolderPaths(root)
        with Tree(subvolume) as new, Tree(other) as old:
            for ino in written_files(root, there.created - 1, 1, compressed=True):
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
                # the kernel compares what is in memory, and what is on the disk may be damaged since
                os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
                for shared in shared_pieces(source, destination, size):
                    total += shared
                    if cancelled:
                        break
    return total
