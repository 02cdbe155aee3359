"""Copies names of an old tree into a backup, with every attribute that `rsync --archive --acls --xattrs` keeps.

Few names of a tree differ from the tree before it. Starting rsync for them takes longer than copying them, and rsync opens a file
by its whole path, so the owner of a folder in that path can redirect it. Here every name is opened through a descriptor of its
folder, never through a symlink, and an entry that was replaced since it was examined, or that another process is writing to, is
refused.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from heapq import merge
from typing import Any, NamedTuple

from backupd.run.importing.copy_processes import CopyProcesses
from backupd.run.importing.target_names import (
    CopyPlace,
    changed_meanwhile,
    correct_attributes,
    give_attributes,
    make_special,
    status_or_none,
)
from backupd.run.importing.tree_links import TreeLinks
from backupd.run.importing.tree_walk import Attributes, attributes_of, walk_again
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import is_damage
from btrkeep.fs.file_data import SourceUnreadable, at_source, data_runs
from btrkeep.fs.openat import FILE, open_folder

_PIECE = 128 << 10  # bytes; that many zeros, aligned to a multiple, become a hole
_BLOCK = 4096  # files share data in whole blocks, so changes in place are of whole blocks
_ZEROS = bytes(_PIECE)
_MANY = 64  # names handed to a process at a time
_LONGEST_PATH = 32 << 10  # bytes of a folder's path; a longer one does not fit into a message
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileMatch(Enum):
    """Which files of the backup are kept for a file of the tree: no file, a file with the same size and time, or a file with the
    same content.
    """

    NONE = "none"
    SIZE_AND_TIME = "size and time"
    CONTENT = "content"


@dataclass(slots=True)
class CopiedNames:
    """Totals of copied names."""

    names: int = 0
    """Number of names that were made or changed, without folders."""
    bytes: int = 0
    """Size of these files."""
    written: int = 0
    """How many of these bytes were written."""

    def add(self, other: "CopiedNames") -> None:
        """Adds other numbers."""
        self.names, self.bytes, self.written = self.names + other.names, self.bytes + other.bytes, self.written + other.written


class _Folder(NamedTuple):
    """A folder to copy, without the folders in it, which exist in the backup already."""

    path: bytes
    """Its path in the tree."""
    attributes: bytes | None
    """The digest of its attributes when it was examined; None: the attributes are not copied."""
    names: list[tuple[bytes, int, FileMatch]]
    """The names to copy, each with its inode when it was examined."""


def copy_tree(
    source: int,
    target: int,
    links: TreeLinks,
    goes_on: Callable[[], bool],
    same: FileMatch = FileMatch.NONE,
    *,
    delta: bool = False,
    processes: CopyProcesses | None = None,
) -> CopiedNames:
    """Makes the content of the open folder `target` the same as that of `source`, except for further names of hard links, and for
    names that exist only in the target. No name may be a folder in one tree and another type in the other. `delta`: files are
    changed in place.

    Raises OSError, whose filename is the path in the tree. If `goes_on` returns False, it ends early.
    """
    skip, alike = links.further, set(links.alike)

    def folders() -> Iterator[_Folder]:
        with closing(walk_again(source, links.digests, goes_on)) as walked:
            for walked_folder in walked:
                _make_folders(target, walked_folder.path, walked_folder.folders)
                begin = walked_folder.path + b"/" if walked_folder.path else b""
                names = [(name, begin + name, inode) for name, inode in zip(walked_folder.names, walked_folder.inodes, strict=True)]
                wanted = [(name, inode, path in alike) for name, path, inode in names if path not in skip]
                how = [(name, inode, FileMatch.CONTENT if doubt else same) for name, inode, doubt in wanted]
                yield _Folder(walked_folder.path, _digest(attributes_of(walked_folder.fd, walked_folder.status)), how)

    return _copied(source, target, folders(), goes_on, processes, delta=delta)


def copy_changed(
    source: int,
    target: int,
    links: TreeLinks,
    goes_on: Callable[[], bool],
    *,
    delta: bool = False,
    processes: CopyProcesses | None = None,
) -> CopiedNames:
    """Copies the changed names into a copy of the previous tree. The other arguments and errors are those of `copy_tree`."""
    names, inner = dict[bytes, list[tuple[bytes, int, FileMatch]]](), dict[bytes, list[bytes]]()
    skip, alike = links.further, set(links.alike)
    for path, inode in links.changed.items():
        if path not in skip:
            above, _, name = path.rpartition(b"/")
            names.setdefault(above, []).append((name, inode, FileMatch.CONTENT if path in alike else FileMatch.NONE))
    for path in links.folders:
        above, _, name = path.rpartition(b"/")
        if path:
            inner.setdefault(above, []).append(name)

    def folders() -> Iterator[_Folder]:
        for path, attributes in links.folders.items():  # a folder comes after its parent
            _make_folders(target, path, inner.get(path, ()))
            yield _Folder(path, _digest(attributes), names.get(path, []))

    return _copied(source, target, folders(), goes_on, processes, delta=delta)


def _digest(attributes: Attributes) -> bytes:
    return blake2b(repr(attributes).encode(), digest_size=16).digest()


def _make_folders(target: int, path: bytes, names: Sequence[bytes]) -> None:
    if not names:
        return
    with _opened(target, path) as made:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=made)


def _copied(
    source: int,
    target: int,
    folders: Iterator[_Folder],
    goes_on: Callable[[], bool],
    processes: CopyProcesses | None,
    *,
    delta: bool,
) -> CopiedNames:
    """Copies one folder after the other. The processes get some names at a time, and a folder's attributes when it has
    all of them.
    """
    if not processes or not processes.is_usable:
        copier, total = _Copier(delta=delta), CopiedNames()
        for folder in folders:
            if not goes_on():
                break
            total.add(copier.folder(source, target, folder, goes_on))
        return total
    return _CopiedByProcesses(source, target, processes, delta=delta).all(folders, goes_on)


def copy_batch(source: int, target: int, batch: tuple[Any, ...], goes_on: Callable[[], bool]) -> tuple[Any, ...]:
    """Copies names of folders in one of the processes. Returns True with the numbers of CopiedNames, or False with those of the
    error.
    """
    folders, delta = batch
    done = CopiedNames()
    try:
        for path, attributes, names in folders:
            folder = _Folder(path, attributes, [(name, inode, FileMatch(match)) for name, inode, match in names])
            done.add(_copier(delta).folder(source, target, folder, goes_on))
    except OSError as error:
        return False, error.errno or errno.EIO, error.strerror or str(error), error.filename or ""
    return True, done.names, done.bytes, done.written


@cache
def _copier(delta: bool) -> "_Copier":
    """Returns the copier of a process with one thread."""
    return _Copier(delta=delta)


class _CopiedByProcesses:
    """Gives names to processes, and adds up what they have copied."""

    def __init__(self, source: int, target: int, processes: CopyProcesses, *, delta: bool) -> None:
        self._source, self._target, self._processes, self._delta = source, target, processes, delta
        self._copied = CopiedNames()
        self._failed: OSError | None = None
        self._goes_on: Callable[[], bool] = lambda: True
        self._filled: list[_Folder] = []
        """Folders with all names, but not yet their attributes."""
        self._held: list[tuple[Any, Callable[[], None]]] = []
        """Parts of folders for the next batch, each with a function to call at its end."""
        self._weight = 0

    def all(self, folders: Iterator[_Folder], goes_on: Callable[[], bool]) -> CopiedNames:
        """Copies all folders. Raises OSError with the path, OperatorError if a process was killed."""
        self._goes_on = goes_on
        try:
            for folder in folders:
                if self._failed or not goes_on():
                    break
                self._folder(folder)
            self._finish()
            while self._filled and not self._failed and goes_on():
                self._finish_filled()
                self._finish()
        except BaseException:
            self._processes.stop.set()
            raise
        finally:
            if self._processes.is_usable:  # nothing of this copy may remain for the next one
                self._processes.finish()
        if self._failed:
            raise self._failed
        return self._copied

    def _folder(self, folder: _Folder) -> None:
        if len(folder.names) <= _MANY:
            self._give(folder, folder.attributes, folder.names)
            return
        waiting = 0

        def given() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._filled.append(folder._replace(names=[]))

        waiting = len(range(0, len(folder.names), _MANY))
        for start in range(0, len(folder.names), _MANY):
            self._give(folder, None, folder.names[start : start + _MANY], given)
        self._finish_filled()

    def _finish_filled(self) -> None:
        while self._filled:
            folder = self._filled.pop()
            self._give(folder, folder.attributes, [])

    def _give(
        self,
        folder: _Folder,
        attributes: bytes | None,
        names: Sequence[tuple[bytes, int, FileMatch]],
        given: Callable[[], None] = lambda: None,
    ) -> None:
        if len(folder.path) > _LONGEST_PATH:
            part = _Folder(folder.path, attributes, list(names))
            self._copied.add(_Copier(delta=self._delta).folder(self._source, self._target, part, self._goes_on))
            given()
            return
        self._held.append(((folder.path, attributes, [(name, inode, match.value) for name, inode, match in names]), given))
        self._weight += 1 + len(names) + len(folder.path) // 512
        if self._weight >= _MANY:
            self._give_held()

    def _give_held(self) -> None:
        """Gives the collected parts as one batch: one message for each folder with few names would take longer than
        copying them.
        """
        held, self._held, self._weight = self._held, [], 0

        def take(answer: tuple[Any, ...]) -> None:
            is_copied, *rest = answer
            if is_copied:
                self._copied.add(CopiedNames(*rest))
                for _, given in held:
                    given()
            elif not self._failed:
                self._failed = OSError(*rest)
                self._processes.stop.set()

        if held:
            self._processes.give(self._source, self._target, ([part for part, _ in held], self._delta), take)

    def _finish(self) -> None:
        self._give_held()
        self._processes.finish()


def _opened(root: int, path: bytes) -> ClosingFd:
    return ClosingFd(open_folder(root, path.split(b"/") if path else ()))


class _Copier:
    """Copies folder after folder."""

    def __init__(self, *, delta: bool) -> None:
        self._delta = delta
        self.goes_on: Callable[[], bool] = lambda: True
        self._buffer, self._other = bytearray(_PIECE), bytearray(_PIECE)

    def folder(self, source: int, target: int, folder: _Folder, goes_on: Callable[[], bool]) -> CopiedNames:
        """Copies the names of a folder, and then its attributes, if there are any. Raises OSError with the path."""
        self.goes_on = goes_on
        copied_names, path = CopiedNames(), folder.path
        begin = path + b"/" if path else b""
        try:
            with _opened(source, path) as source_fd, _opened(target, path) as here:
                inherits = bool(folder.names and os.listxattr(here))
                for name, inode, same in folder.names:
                    path = begin + name
                    if not self.goes_on():
                        break
                    self._name(CopyPlace(source_fd, here, name, inode, inherits), same, copied_names)
                if folder.attributes is None:
                    return copied_names
                path, status = folder.path, os.fstat(source_fd)
                with at_source():
                    digest = _digest(attributes_of(source_fd, status))
                if digest != folder.attributes:
                    raise changed_meanwhile()
                correct_attributes(source_fd, here, status, os.fstat(here))
        except OSError as error:
            is_known = isinstance(error, SourceUnreadable) and is_damage(error)
            why = f"it cannot be read in the tree: {error.strerror}" if is_known else error.strerror
            raise OSError(error.errno, why, os.fsdecode(path)) from error
        return copied_names

    def _name(self, place: "CopyPlace", same: FileMatch, counts: CopiedNames) -> None:
        try:
            is_plain = stat.S_ISREG(os.stat(place.name, dir_fd=place.source, follow_symlinks=False).st_mode)
            old = os.open(place.name, os.O_RDONLY | FILE, dir_fd=place.source) if is_plain else -1  # opening may have effects
        except OSError as error:
            raise SourceUnreadable(error.errno, error.strerror) from error
        if not is_plain:
            counts.names += make_special(place)
            return
        try:
            status = os.fstat(old)
            if status.st_ino != place.inode or not stat.S_ISREG(status.st_mode):
                raise changed_meanwhile()
            kept = (same is not FileMatch.NONE or self._delta) and self._keep(old, place, status, same, counts)
            if not kept:
                counts.written += self._make(old, place, status)
                counts.names += 1
                counts.bytes += status.st_size
            after = os.fstat(old)
            if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
                raise changed_meanwhile()
        finally:
            os.close(old)

    def _make(self, old: int, place: "CopyPlace", status: os.stat_result) -> int:
        """Makes the file, instead of the entry with its name. Returns the number of bytes written."""
        new = _created(place.here, place.name, status.st_mode & 0o777)
        try:
            written = self._copy_data(old, new, status)
            give_attributes(old, new, status, inherits=place.inherits)
        finally:
            os.close(new)
        return written

    def _keep(self, old: int, place: "CopyPlace", status: os.stat_result, same: FileMatch, counts: CopiedNames) -> bool:
        """Keeps the existing file if it matches; returns False if it has to be made again. Its inode has no other name: prepare()
        splits hard links.
        """
        if (has := status_or_none(place.here, place.name)) is None or not stat.S_ISREG(has.st_mode) or has.st_nlink != 1:
            return False
        new = os.open(place.name, (os.O_RDWR if self._delta else os.O_RDONLY) | FILE, dir_fd=place.here)
        try:
            is_as_large = has.st_size == status.st_size
            if not (same is FileMatch.SIZE_AND_TIME and is_as_large and has.st_mtime_ns == status.st_mtime_ns):
                if self._delta:
                    written = self._change(old, new, status.st_size, is_as_large)
                    if written or not is_as_large:
                        counts.add(CopiedNames(1, status.st_size, written))
                    has = os.fstat(new)
                elif same is not FileMatch.CONTENT or not is_as_large or next(self._different(old, new, status.st_size), None):
                    return False
            correct_attributes(old, new, status, has)
        except _Damaged:
            return False
        finally:
            os.close(new)
        return True

    def _change(self, old: int, new: int, size: int, is_as_large: bool) -> int:
        """Copies the content of the old file into the new one. Returns the number of bytes written."""
        written = 0
        if not is_as_large:
            os.truncate(new, size)
        for at, block in self._different(old, new, size):
            _write(new, block, at)
            written += len(block)
        return written

    def _different(self, old: int, new: int, size: int) -> Iterator[tuple[int, memoryview]]:
        """Yields the differences between two open files of that size: an offset, and the data of the old file there, in whole
        blocks. Holes in both are not read. Raises _Damaged.
        """
        old_data, other = memoryview(self._buffer), memoryview(self._other)
        for position, length in _pieces_of_either(old, new, size):
            if not self.goes_on():
                return
            with at_source():
                _read(old, old_data[:length], position)
            try:
                _read(new, other[:length], position)
            except OSError as error:
                raise _Damaged from error
            if old_data[:length] == other[:length]:
                continue
            begin = None
            for at in range(0, length, _BLOCK):
                if old_data[at : min(at + _BLOCK, length)] == other[at : min(at + _BLOCK, length)]:
                    if begin is not None:
                        yield position + begin, old_data[begin:at]
                    begin = None
                elif begin is None:
                    begin = at
            if begin is not None:
                yield position + begin, old_data[begin:length]

    def _copy_data(self, old: int, new: int, status: os.stat_result) -> int:
        """Copies the data; holes stay holes. Returns the number of bytes written. Raises OSError, also if the file has become
        shorter.
        """
        size = status.st_size
        if 0 < size < _PIECE and size <= status.st_blocks * 512:  # the usual case
            try:
                data = os.pread(old, size, 0)
            except OSError:
                data = b""  # read again below
            if len(data) == size == os.pwrite(new, data, 0):
                return size
        end, written, piece = 0, 0, memoryview(self._buffer)
        runs: Iterable[tuple[int, int]] = data_runs(old, size) if status.st_blocks * 512 < size else ((0, size),)
        for position, until in runs:
            while position < until and self.goes_on():
                length = min(_PIECE - position % _PIECE, until - position)
                with at_source():
                    _read(old, piece[:length], position)
                if length < _PIECE or not self._buffer.startswith(_ZEROS):
                    _write(new, piece[:length], position)
                    end = position + length
                    written += length
                position += length
        if end < size:
            os.truncate(new, size)
        return written


class _Damaged(Exception):
    """A file of the backup cannot be read, so it has to be made again."""


def _pieces_of_either(source: int, other: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields offset and length of the data in two open files, in whole blocks: each range that is data in at least one of them.
    Both may have a hole of many TiB.
    """
    position = 0
    for begin, end in merge(data_runs(source, size), data_runs(other, size)):
        position, end = max(position, begin - begin % _BLOCK), min(end + -end % _BLOCK, size)
        while position < end:
            length = min(_PIECE, end - position)
            yield position, length
            position += length


def _read(fd: int, into: memoryview, position: int) -> None:
    """Reads that many bytes. Raises OSError if there are fewer."""
    done = 0
    while done < len(into):
        length = os.preadv(fd, [into[done:]], position + done)
        if not length:
            raise OSError(errno.EAGAIN, "it became shorter: another program may be changing the history")
        done += length


def _write(fd: int, data: memoryview, position: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)


def _created(here: int, name: bytes, mode: int) -> int:
    try:
        return os.open(name, _NEW, mode, dir_fd=here)
    except FileExistsError:
        os.unlink(name, dir_fd=here)
        return os.open(name, _NEW, mode, dir_fd=here)
