"""Sparse files of a backup that rsync copies from pool to pool: the receiver gives them their length before rsync gets to them.

rsync sends a hole as zeros, unless the receiver has zeros in the same place: then it sends checksums (docs/decisions/0074). The
pool that sends knows its sparse files, so it announces those that were changed. Whatever it announces, rsync corrects lengths and
content, and deletes what the backup does not have.
"""

import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backupd.repo.hardlinks import DATA
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FILE, FOLDER, open_folder
from btrkeep.pool.subvolume import opened
from btrkeep.process.cancellation import Cancellation
from btrkeep.treescan import FolderPaths, changed_inodes
from btrkeep.units import printable

log = logging.getLogger(__name__)

_WORTH = 16 << 20  # bytes of holes in a file
_LONGEST = 256 << 30  # bytes; until the zeros of a longer file are compared, rsync would be taken for one that stands still
_MOST, _LONGEST_PATH = 200, 4096
_MOST_FOLDERS = 100  # above a file


@dataclass(frozen=True, slots=True)
class SparseFile:
    """A file with holes. `path`: its components below the backup's data."""

    path: tuple[bytes, ...]
    size: int


def changed_sparse_files(backup: Path, since: int) -> list[SparseFile]:
    """Returns the files with large holes of a read-only backup that were changed after generation `since`. Raises OSError."""
    files = list[SparseFile]()
    with opened(backup) as root:
        paths = FolderPaths(root)
        for inode in changed_inodes(root, since):
            if not stat.S_ISREG(inode.mode) or not _WORTH <= inode.size <= _LONGEST:
                continue
            with suppress(FileNotFoundError):
                top, *path = paths.of(inode.ino)
                if top != DATA or not path:
                    continue
                with ClosingFd(open_folder(root, [DATA, *path[:-1]])) as folder:
                    status = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
                if status.st_size - status.st_blocks * 512 >= _WORTH:
                    files.append(SparseFile(tuple(path), status.st_size))
            if len(files) == _MOST:
                break
    return files


def as_json(files: Sequence[SparseFile]) -> list[list[Any]]:
    """Returns the files as an announcement has them."""
    return [[os.fsdecode(b"/".join(file.path)), file.size] for file in files]


def sparse_files_in(answer: object) -> tuple[SparseFile, ...]:
    """Parses what the other pool announces, and ignores what names no file. An earlier version announces none."""
    return tuple(file for entry in answer[:_MOST] if (file := _parsed(entry))) if isinstance(answer, list) else ()


def _parsed(entry: object) -> SparseFile | None:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str) or type(entry[1]) is not int:
        return None
    try:
        path = tuple(os.fsencode(entry[0]).split(b"/"))
    except UnicodeError:
        return None
    is_bad = any(name in (b"", b".", b"..") or b"\0" in name for name in path) or len(entry[0]) > _LONGEST_PATH
    return None if is_bad or len(path) > _MOST_FOLDERS or not 0 <= entry[1] <= _LONGEST else SparseFile(path, entry[1])


def lengthen(subvolume: Path, files: Sequence[SparseFile], cancelled: Cancellation) -> list[bytes]:
    """Gives the files in `subvolume`, which is being received, their length as one hole, and returns their paths below its data.

    Makes files and folders that are missing. Leaves alone what is longer, no regular file, or hard linked.
    """
    lengthened = list[bytes]()
    for file in files:
        if cancelled:
            break
        path = b"/".join(file.path)
        try:
            if _lengthen(subvolume, file):
                lengthened.append(path)
        except (OSError, ValueError) as error:  # then its zeros arrive
            log.info("%s: %s: %s", subvolume, printable(os.fsdecode(path)), error)
    return lengthened


def _lengthen(subvolume: Path, file: SparseFile) -> bool:
    folder = os.open(subvolume, FOLDER)
    for name in (DATA, *file.path[:-1]):
        with ClosingFd(folder):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
        folder = inner
    with ClosingFd(folder):
        with suppress(FileNotFoundError):  # opening a device can do harm: a watchdog starts, a tape is rewound
            if not stat.S_ISREG(os.stat(file.path[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                return False
        fd = os.open(file.path[-1], os.O_RDWR | os.O_CREAT | FILE, 0o600, dir_fd=folder)
    with ClosingFd(fd):
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size >= file.size:
            return False
        os.ftruncate(fd, file.size)
    return True
