"""Changes names in the backup that an import makes, without ever leaving it.

The names were found in the old tree before it was copied. Somebody who owns a folder there may have put a symlink in its place
meanwhile, which the copy has then. So each folder above a name is opened by its name in the folder before, never through a symlink.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

from backupd.repo.remove_tree import remove_tree
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, open_folder


def link_names(target: Path, groups: Iterable[Sequence[bytes]]) -> None:
    """Makes hard links of the names of each group, some of which were not copied. Raises OSError."""
    with ClosingFd(os.open(target, FOLDER)) as root:
        for names in groups:
            with _above(root, names[0]) as (folder, name):
                inode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
                for other in names[1:]:
                    with _above(root, other) as (its_folder, its_name):
                        _link(folder, name, inode, its_folder, its_name)


def _link(folder: int, name: bytes, inode: int, its_folder: int, its_name: bytes) -> None:
    """The folder keeps its time."""
    try:
        if os.stat(its_name, dir_fd=its_folder, follow_symlinks=False).st_ino == inode:
            return
        is_there = True
    except FileNotFoundError:
        is_there = False
    before = os.fstat(its_folder)
    if is_there:
        os.unlink(its_name, dir_fd=its_folder)
    os.link(name, its_name, src_dir_fd=folder, dst_dir_fd=its_folder, follow_symlinks=False)
    os.utime(its_folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove_names(target: Path, names: Iterable[bytes]) -> None:
    """Removes them, folders with all in them. Raises OSError.

    Folders go into one that is made for it, which is then removed: a process for each folder would take a hundred times as long.
    """
    with ClosingFd(os.open(target, FOLDER)) as root, ExitStack() as at_last:
        grave = None
        for number, path in enumerate(names):
            with _above(root, path) as (folder, name):
                try:
                    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(mode):
                    os.unlink(name, dir_fd=folder)
                    continue
                grave = grave or at_last.enter_context(_removed_at_last(root))
                os.rename(name, b"%d" % number, src_dir_fd=folder, dst_dir_fd=grave)


@contextmanager
def _removed_at_last(root: int) -> Iterator[int]:
    """Yields a new open folder in the one that `root` is open on, which keeps its time; it is removed with all in it."""
    before = os.fstat(root)
    path = mkdtemp(prefix=".btrkeep-gone-", dir=f"/proc/{os.getpid()}/fd/{root}")
    try:
        with ClosingFd(os.open(path, FOLDER)) as fd:
            yield fd
    finally:
        remove_tree(path)
        os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def _above(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the open folder that has the name, and the name. Raises OSError with the path, ENOTDIR also for a symlink above it."""
    above, _, name = path.rpartition(b"/")
    try:
        folder = open_folder(root, above.split(b"/") if above else ())
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
    with ClosingFd(folder):
        yield folder, name
