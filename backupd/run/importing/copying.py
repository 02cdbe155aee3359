"""Copies names of an old tree into a backup, with everything of them that `rsync --archive --acls --xattrs` keeps.

A tree differs from the one before it in few names. To start rsync for them takes longer than to copy them, and on a first tree it
has to compare every name with itself. All is done through descriptors of folders, never through a symlink.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from backupd.run.importing.tree_links import TreeLinks, walk_tree
from btrkeep.fs.openat import FILE, by_descriptor, open_folder
from btrkeep.fs.sparse import data_runs

_PIECE = 128 << 10  # bytes; as many zeros, from a multiple of it on, become a hole
_ZEROS = bytes(_PIECE)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_LABEL = "security.selinux"  # the kernel gives one to every file, and takes it from none


@dataclass(slots=True)
class CopiedNames:
    """How many names were made that are no folders, and how many bytes of data were read for them."""

    names: int = 0
    bytes: int = 0


class _Folder(NamedTuple):
    """A folder whose attributes are to be those of the source, and what is to be copied in it. All its folders exist."""

    path: bytes
    names: list[bytes]


def copy_tree(source: int, target: int, skip: Container[bytes], goes_on: Callable[[], bool]) -> CopiedNames:
    """Copies all below the open folder `source` into the empty folder `target`, but for the paths in `skip`. Raises OSError, whose
    filename is the path in the tree. If `goes_on` returns False, it ends early.
    """

    def folders() -> Iterator[_Folder]:
        with closing(walk_tree(source, goes_on)) as walked:
            for one in walked:
                with _opened(target, one.path) as made:
                    for name in one.folders:
                        os.mkdir(name, 0o700, dir_fd=made)
                begin = one.path + b"/" if one.path else b""
                yield _Folder(one.path, [entry.name for entry in one.others if begin + entry.name not in skip])

    return _copied(source, target, folders(), goes_on)


def copy_changed(source: int, target: int, links: TreeLinks, skip: Container[bytes], goes_on: Callable[[], bool]) -> CopiedNames:
    """Copies the changed names, but for those in `skip`, into a copy of the tree before. Raises as `copy_tree`."""
    names, inner = dict[bytes, list[bytes]](), dict[bytes, list[bytes]]()
    for path in links.changed:
        if path not in skip:
            above, _, name = path.rpartition(b"/")
            names.setdefault(above, []).append(name)
    for path in links.folders:
        above, _, name = path.rpartition(b"/")
        if path:
            inner.setdefault(above, []).append(name)

    def folders() -> Iterator[_Folder]:
        for path in links.folders:  # each one comes after the one above it
            with _opened(target, path) as made:
                for name in inner.get(path, ()):
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=made)
            yield _Folder(path, names.get(path, []))

    return _copied(source, target, folders(), goes_on)


def _copied(source: int, target: int, folders: Iterator[_Folder], goes_on: Callable[[], bool]) -> CopiedNames:
    """Two threads take folder after folder: this one, and another if there can be one. More would make a disk seek. What one of
    them raises ends the other.
    """
    found, lock, failed = CopiedNames(), threading.Lock(), threading.Event()

    def work() -> None:
        buffer = bytearray(_PIECE)
        try:
            while not failed.is_set() and goes_on():
                with lock:
                    if (one := next(folders, None)) is None:
                        return
                done = _copy_folder(source, target, one, buffer, lambda: not failed.is_set() and goes_on())
                with lock:
                    found.names, found.bytes = found.names + done.names, found.bytes + done.bytes
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(1, "import") as beside:
        other = None
        with suppress(RuntimeError):  # the limit of processes is reached
            other = beside.submit(work)
        work()
        if other:
            other.result()
    return found


@contextmanager
def _opened(root: int, path: bytes) -> Iterator[int]:
    fd = open_folder(root, path.split(b"/") if path else ())
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_folder(source: int, target: int, folder: _Folder, buffer: bytearray, goes_on: Callable[[], bool]) -> CopiedNames:
    found, path = CopiedNames(), folder.path
    try:
        with _opened(source, folder.path) as there, _opened(target, folder.path) as here:
            inherits = bool(folder.names and os.listxattr(here))
            for name in folder.names:
                path = folder.path + b"/" + name
                if not goes_on():
                    break
                found.bytes += _copy(there, here, name, buffer, inherits)
                found.names += 1
            path = folder.path
            _keep_attributes(there, here, os.fstat(there))
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
    return found


def _copy(there: int, here: int, name: bytes, buffer: bytearray, inherits: bool) -> int:
    """Makes the name in the folder `here`, in the place of what has it. Returns how many bytes of data it has.

    `inherits`: what is made there may get attributes from the folder, which has some itself.
    """
    found = os.stat(name, dir_fd=there, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        _make_special(there, here, name, found)
        return 0
    old = os.open(name, os.O_RDONLY | FILE, dir_fd=there)
    try:
        seen, found = found, os.fstat(old)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != seen.st_ino:
            raise OSError(errno.EAGAIN, "it was exchanged meanwhile: is the history changed?")
        new = _created(here, name)
        try:
            _copy_data(old, new, found, buffer)
            _keep_attributes(old, new, found, has_some=inherits)
        finally:
            os.close(new)
    finally:
        os.close(old)
    return found.st_size


def _created(here: int, name: bytes) -> int:
    try:
        return os.open(name, _NEW, 0o600, dir_fd=here)
    except FileExistsError:
        os.unlink(name, dir_fd=here)
        return os.open(name, _NEW, 0o600, dir_fd=here)


def _copy_data(old: int, new: int, found: os.stat_result, buffer: bytearray) -> None:
    """Holes stay holes. Raises OSError, also when the file is shorter than it was."""
    size, end, piece = found.st_size, 0, memoryview(buffer)
    runs: Iterable[tuple[int, int]] = data_runs(old, size) if found.st_blocks * 512 < size else ((0, size),)
    for position, until in runs:
        while position < until:
            length = os.preadv(old, [piece[: min(_PIECE - position % _PIECE, until - position)]], position)
            if not length:
                raise OSError(errno.EIO, "it is shorter than it was: is the history changed meanwhile?")
            if length < _PIECE or not buffer.startswith(_ZEROS):
                end = position
                while end < position + length:
                    end += os.pwrite(new, piece[end - position : length], end)
            position += length
    if end < size:
        os.ftruncate(new, size)


def _make_special(there: int, here: int, name: bytes, found: os.stat_result) -> None:
    """Makes a symlink, a device node, a named pipe or a socket."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=here)
    is_symlink = stat.S_ISLNK(found.st_mode)
    if is_symlink:
        os.symlink(os.readlink(name, dir_fd=there), name, dir_fd=here)
    else:
        os.mknod(name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=here)
    os.chown(name, found.st_uid, found.st_gid, dir_fd=here, follow_symlinks=False)
    _keep_xattrs(by_descriptor(there, name), by_descriptor(here, name))
    if not is_symlink:
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=here)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=here, follow_symlinks=False)


def _keep_attributes(old: int, new: int, found: os.stat_result, *, has_some: bool = True) -> None:
    """Of an open file or folder. The owner comes first, which takes set-user-ID bits and capabilities away; the time comes last."""
    os.fchown(new, found.st_uid, found.st_gid)
    _keep_xattrs(old, new, has_some=has_some)
    os.fchmod(new, stat.S_IMODE(found.st_mode))
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))


def _keep_xattrs(old: int | bytes, new: int | bytes, *, has_some: bool = True) -> None:
    """Extended attributes, and ACLs, which are such; others that the new one has from its folder, if it `has_some`, go."""
    follow = isinstance(old, int)
    wanted = _xattrs(old)
    for name in _xattrs(new) if has_some else ():
        if name not in wanted and name != _LABEL:
            os.removexattr(new, name, follow_symlinks=follow)
    for name in wanted:
        os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=follow), follow_symlinks=follow)


def _xattrs(of: int | bytes) -> list[str]:
    try:
        names = os.listxattr(of, follow_symlinks=isinstance(of, int))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return []
    return [name for name in names if not name.startswith("system.") or name in _ACLS]
