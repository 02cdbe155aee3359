"""The hard link guard: before rsync runs, every name of a linked file gets its own inode.

rsync into a snapshot changes a file through the inode of its name. If the source has broken a hard link since the base, the names
are still one inode here, and what rsync writes for one name changes the other too: the content with --inplace, and owner, mode, ACL
and xattrs in any case. rsync exits with 0, and every following night another one of the names is wrong. After the split the result
is correct: rsync sees independent files, and -H restores the links that still exist.

Data is not copied, because the copies are reflinks; the cost is metadata: 90 microseconds a name on an idle machine, three times
that if every name is in another folder. The tree is hostile, so folders are opened as described in btrkeep.fs.openat, and the copy
gets a name beside `data`, where no name of the host can be. A kill leaves at most that one copy; the next split removes it first
and continues.
"""

import errno
import os
import time
from collections import OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import OperatorError, PoolUnusable, is_damage
from btrkeep.fs.openat import FOLDER, open_folder
from btrkeep.fs.reflink import copy_inode
from btrkeep.process.progress import Cancellation
from btrkeep.treescan import FolderPaths, LinkedInode, linked_inodes
from btrkeep.units import printable

DATA = b"data"
STAGING = b".split"

_FOLDERS_OPEN = 64
POOL_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""The errors that mean that the pool cannot be written. EIO is not one of them: it is about the subvolume that was read."""
UNREADABLE_HINT = "run `backupd verify HOST`: the next run fetches damaged files again"


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of a split: inodes with several names, names that got their own inode, and the seconds it took."""

    inodes: int
    names: int
    seconds: float


@Checkpoint("hard links split")
def split_hard_links(subvolume: Path, under: str = "/", *, since: int = 0, cancelled: Cancellation | None = None) -> SplitResult:
    """Leaves no file with more than one link in `subvolume`/data; each name keeps its content and attributes. With `under`, only
    names below that source path are split: what rsync has just linked for another path remains linked. `since`, a generation: no
    file had more than one link then, so only what was written later is examined. At most one name of a file is older, so splitting
    the names that are found is enough.

    Regular files become reflink copies; symlinks, fifos, sockets and device nodes are made again. Folders keep their times. The
    subvolume is writable, no other process writes in it, and earlier changes in it are committed (those of a new snapshot are; a
    continued one needs the SYNC ioctl). Can be repeated, also after a kill.

    `cancelled` is examined before every name; if it is true, this returns what was done so far: some files still have several
    links, so no rsync may be started. Raises PoolUnusable if the pool is full or cannot be written, OperatorError if a name cannot
    be copied for another reason.
    """
    started = time.monotonic()
    root = os.open(subvolume, FOLDER)
    try:
        _remove_staging(root)
        inodes, names = _split_all(root, (DATA, *(part for part in os.fsencode(under).split(b"/") if part)), since, cancelled)
    except OSError as error:
        raise _operator_error(error, os.fsencode(subvolume)) from error
    finally:
        with suppress(OSError):
            _remove_staging(root)
        os.close(root)
    return SplitResult(inodes, names, time.monotonic() - started)


def _split_all(root: int, top: tuple[bytes, ...], since: int, cancelled: Cancellation | None) -> tuple[int, int]:
    inodes = names = 0
    with _Folders(root, top) as folders:
        for inode in linked_inodes(root, since=since):
            done = 0
            for folder, name in inode.names:
                if cancelled:
                    return inodes + bool(done), names + done
                done += _split_name(root, folders, inode, folder, name)
            inodes, names = inodes + bool(done), names + done
    return inodes, names


def _remove_staging(root: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(STAGING, dir_fd=root)


@dataclass(slots=True)
class _Folder:
    fd: int
    """The open folder."""
    times: tuple[int, int]
    """Times of the last access and change, in nanoseconds."""
    changed: bool = False
    """True if a name in it was replaced, so that its times must be restored."""

    def close(self) -> None:
        try:
            if self.changed:
                os.utime(self.fd, ns=self.times)
        finally:
            os.close(self.fd)


class _Folders:
    """Folders below `top`, a limited number of them open. The times of each are restored when it is closed."""

    def __init__(self, root: int, top: tuple[bytes, ...]) -> None:
        self._root = root
        self._top = top
        self._paths = FolderPaths(root)
        self._open: OrderedDict[int, _Folder | None] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with ExitStack() as stack:  # closes all of them, even if the times of one cannot be set
            for folder in self._open.values():
                stack.callback(_close, folder)

    def get(self, ino: int) -> _Folder | None:
        """Returns the folder with this inode number, or None if it is outside of `top`."""
        if ino in self._open:
            self._open.move_to_end(ino)
            return self._open[ino]
        if len(self._open) >= _FOLDERS_OPEN:
            _close(self._open.popitem(last=False)[1])
        path = self._paths.of(ino)
        self._open[ino] = self._opened(ino, path) if path[: len(self._top)] == self._top else None
        return self._open[ino]

    def _opened(self, ino: int, path: tuple[bytes, ...]) -> _Folder:
        fd = open_folder(self._root, path)
        status = os.fstat(fd)
        if status.st_ino != ino:
            os.close(fd)
            raise OperatorError(f"{printable(b'/'.join(path))} was replaced: another process writes in this backup")
        return _Folder(fd, (status.st_atime_ns, status.st_mtime_ns))


def _close(folder: _Folder | None) -> None:
    if folder:
        folder.close()


def _split_name(root: int, folders: _Folders, inode: LinkedInode, folder_ino: int, name: bytes) -> bool:
    """Returns True if the name got its own inode. The last of the names keeps the old one."""
    try:
        folder = folders.get(folder_ino)
        if folder is None or not _is_linked(folder.fd, name, inode.ino):
            return False
    except FileNotFoundError:
        return False  # removed since the commit
    try:
        folder.changed = True
        copy_inode(folder.fd, name, root, STAGING)
        os.rename(STAGING, name, src_dir_fd=root, dst_dir_fd=folder.fd)
    except OSError as error:
        raise _operator_error(error, name) from error
    return True


def _is_linked(folder: int, name: bytes, ino: int) -> bool:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return status.st_ino == ino and status.st_nlink > 1


def _operator_error(error: OSError, name: bytes) -> OperatorError:
    message = f"splitting hard links failed at {printable(name)}: {error.strerror}"
    if error.errno in POOL_FAULTS:
        return PoolUnusable(message, "check the pool's free space, its mount options and the kernel's log")
    return OperatorError(message, UNREADABLE_HINT if is_damage(error) else "")
