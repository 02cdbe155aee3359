"""Walks a backup in batches for a restore, several times: first name by name, later from a record, because its files never change.

A folder is opened again only if it contains something. The record is in an unnamed file. There is no record of a backup that is too
large for it, or that cannot be read everywhere: such a backup is walked name by name each time.
"""

import errno
import marshal
import os
import stat
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from backupd.files.spool import MOST, unnamed_file
from backupd.files.tree import Descent, Entry, Tree, components, entry_of, joined, names_in, read_entry
from backupd.files.walking import MANY, MUCH, PlainFile, PlainFiles, Unreadable, WalkEntry, parent_of, plain_file, report, symlink
from btrkeep.fs.openat import FOLDER

WHOLE = 256
"""Maximum names in a folder that is restored as a unit: a killed restore loses at most this many."""
_FOLDERS = 64  # at most in a group
_MESSAGE, _OF_NAME = 20 << 10, 80  # bytes of names, plus overhead of each name, at which a group is full
_TARGETS = 20 << 10  # bytes of symlink targets at most in a group
_NAMES = 1000  # names in a piece of the record, which is held in memory
_LENGTH = 4  # bytes, before each piece
_LEFT = None
"""The event after everything in a folder. The other events: a tuple of the name and Entry's further fields; a list of plain files;
a tuple of _OF_FOLDERS, packed folders and their totals.
"""
_OF_FOLDERS = None


class PlainFolder(NamedTuple):
    """A folder with at most WHOLE names and MUCH bytes, all of them plain files and symlinks with one name each.

    `mtime` in nanoseconds. Consists of plain types, because it is sent to other processes.
    """

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    files: list[PlainFile]


class FolderTotals(NamedTuple):
    """Numbers of folders, and of the plain files and symlinks in them; bytes of the files, and those on disk."""

    folders: int
    files: int
    symlinks: int
    size: int
    allocated: int

    @property
    def names(self) -> int:
        """Number of all names."""
        return self.folders + self.files + self.symlinks


class PlainFolders(NamedTuple):
    """Plain folders in one folder, few enough for a message to another process (128 KiB). They are packed for it, because this
    process needs only the totals of most of them. The rest as in PlainFiles.
    """

    above: bytes
    folder: int
    packed: bytes
    totals: FolderTotals
    number: int = -1

    @property
    def folders(self) -> list[PlainFolder]:
        """Unpacks the folders."""
        return unpack_folders(self.packed)


Walked = WalkEntry | PlainFiles | PlainFolders


def pack_folders(folders: Iterable[PlainFolder]) -> bytes:
    """Returns the folders as bytes, for a record or another process."""
    return marshal.dumps([(*folder[:-1], list(map(tuple, folder.files))) for folder in folders])


def unpack_folders(packed: bytes) -> list[PlainFolder]:
    """Returns the folders that this program has packed."""
    folders = marshal.loads(packed)  # noqa: S302
    return [PlainFolder._make((*fields, list(map(PlainFile._make, files)))) for *fields, files in folders]


def walk_batched(tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[Walked, None, None]:
    """Like `walk`, but plain files, symlinks and files with several names come together, before everything else among the same 64
    names; and so do folders that contain only a few of them.

    A folder that is mounted in the backup counts as unreadable.
    """
    with parent_of(tree, path) as (above, name):
        first = read_entry(above, name, joined(components(path)))
        yield WalkEntry(first, above, name)
        if first.kind == "folder":
            yield from _batches_below(tree, first, unreadable)
            yield WalkEntry(first, above, name, left=True)


_Others = list[tuple[bytes, os.stat_result]]


@dataclass(slots=True)
class _Level:
    """A folder that a batched walk has entered, or will enter."""

    entry: Entry
    """The folder."""
    name: bytes
    """Its name in its own folder."""
    fd: int
    """The open folder."""
    names: Iterator[bytes]
    """Its names that were not read yet."""
    files: list[PlainFile] = field(default_factory=list)
    """The plain files that were read."""
    others: _Others = field(default_factory=_Others)
    """The other names that were read, in reverse order."""


def _looked(
    fd: int, path: bytes, device: int, names: Iterable[bytes], unreadable: Unreadable | None
) -> tuple[list[PlainFile], _Others]:
    """Reads names in an open folder on that device. Returns the plain files, and the others, in reverse order."""
    files, others = list[PlainFile](), _Others()
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            file = symlink(name, status, fd) if stat.S_ISLNK(status.st_mode) else plain_file(name, status, device)
        except OSError as error:
            report(unreadable, path.rstrip(b"/") + b"/" + name, error)
            continue
        if file:
            files.append(file)
        else:
            others.append((name, status))
    others.reverse()
    return files, others


def _batches_below(tree: Tree, first: Entry, unreadable: Unreadable | None) -> Iterator[Walked]:
    with ExitStack() as stack:
        try:
            down = stack.enter_context(Descent(tree, first.path))
            levels = [_Level(first, b"", down.fd, names_in(down.fd))]
        except OSError as error:
            report(unreadable, first.path, error)
            return
        while levels:
            level, above, fd = levels[-1], down.path.rstrip(b"/"), down.fd
            if level.files:
                files, level.files = level.files, []
                yield from (PlainFiles(above, fd, plain_files) for plain_files in _parted(files))
            elif level.others:
                plain, other = _plain_folders(tree, down, level, unreadable)
                if isinstance(other, _Level):
                    down.enter_open(other.fd, other.name)
                if plain:
                    yield PlainFolders(above, fd, pack_folders(plain), _totals(plain))
                if isinstance(other, _Level):
                    yield WalkEntry(other.entry, fd, other.name)
                    levels.append(other)
                elif other:
                    yield WalkEntry(other, fd, other.name)
                    if other.kind == "folder":
                        yield WalkEntry(other, fd, other.name, left=True)
            elif names := list(islice(level.names, MANY)):
                level.files, level.others = _looked(fd, above, os.fstat(fd).st_dev, names, unreadable)
            else:
                levels.pop()
                down.leave()
                if levels:
                    yield WalkEntry(level.entry, down.fd, level.name, left=True)


def _parted(files: list[PlainFile]) -> Iterator[list[PlainFile]]:
    """Yields the files in groups: one with MUCH bytes or MANY files gets no further file."""
    group, size = list[PlainFile](), 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= MUCH or len(group) == MANY:
            yield group
            group, size = [], 0
    if group:
        yield group


def _plain_folders(
    tree: Tree, down: Descent, level: _Level, unreadable: Unreadable | None
) -> tuple[list[PlainFolder], _Level | Entry | None]:
    """Takes plain folders from the rest of a level until they are many. Returns them, and the entry that ends
    the group: an open folder to enter, or an entry that is not a folder; None at the end of the level.
    """
    plain, names, length, size = list[PlainFolder](), 0, 0, 0
    while level.others and len(plain) < _FOLDERS and names < WHOLE and length < _MESSAGE and size < MUCH:
        name, status = level.others.pop()
        inner = _whole_folder(tree, down, name, status, unreadable) if stat.S_ISDIR(status.st_mode) else None
        if not isinstance(inner, PlainFolder):
            return plain, inner or entry_of(down.path_of(name), status, None)  # symlinks are in groups
        plain.append(inner)
        length += len(name) + _OF_NAME
        if inner.files:
            names += len(inner.files)
            length += sum(len(file.name) + len(file.target or b"") + _OF_NAME for file in inner.files)
            size += sum(file.size for file in inner.files)
    return plain, None


def _is_plain(files: Sequence[PlainFile]) -> bool:
    """Returns True if a folder with nothing but these files in it is a plain one."""
    size = targets = 0
    for file in files:
        if file.links != 1:
            return False
        size += file.size
        targets += len(file.target or b"")
    return size <= MUCH and targets <= _TARGETS


def _totals(folders: Sequence[PlainFolder]) -> FolderTotals:
    files = [file for folder in folders for file in folder.files]
    symlinks = sum(file.target is not None for file in files)
    size, allocated = sum(file.size for file in files), sum(file.allocated for file in files)
    return FolderTotals(len(folders), len(files) - symlinks, symlinks, size, allocated)


def _whole_folder(
    tree: Tree, down: Descent, name: bytes, status: os.stat_result, unreadable: Unreadable | None
) -> PlainFolder | _Level | None:
    """Reads a folder as long as it may be a plain one. Returns it open if it is not plain; None if it is not to be entered."""
    path, fd, stays_open = down.path_of(name), -1, False
    try:
        if not tree.owns(status.st_dev):
            raise OSError(errno.EXDEV, "another filesystem is mounted there")
        fd = os.open(name, FOLDER, dir_fd=down.fd)
        if not tree.owns(os.fstat(fd).st_dev):
            raise OSError(errno.EXDEV, "another filesystem is mounted there")
        names, files, others, has_all = names_in(fd), list[PlainFile](), _Others(), False
        while not others and len(files) <= WHOLE and not has_all:
            if batch := list(islice(names, MANY)):
                more, others = _looked(fd, path, status.st_dev, batch, unreadable)
                files += more
            else:
                has_all = True
        if has_all and _is_plain(files):
            return PlainFolder(name, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, files)
        stays_open = True
        return _Level(entry_of(path, status, None), name, fd, names, files, others)
    except OSError as error:
        report(unreadable, path, error)
        return None
    finally:
        if fd >= 0 and not stays_open:
            os.close(fd)


class RepeatedWalk:
    """Batched walks through one backup, as `walk_batched` has them. Not for a folder that may change."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._record: _Record | None = None
        self._spans: dict[bytes, tuple[int, int]] = {}

    def walk(self, tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[Walked, None, None]:
        """Yields the entry at `path` and all below it, like `walk_batched`. Raises OSError."""
        span = self._spans.get(path)
        if span and self._record:
            yield from _repeated(tree, path, enumerate(self._record.events(*span), span[0]), unreadable)
        else:
            yield from self._walked(tree, path, unreadable)

    def _walked(self, tree: Tree, path: bytes, unreadable: Unreadable | None) -> Generator[Walked, None, None]:
        is_recorded = True

        def failed(at: bytes, error: OSError) -> None:
            nonlocal is_recorded
            is_recorded = False
            if unreadable is None:
                raise error
            unreadable(at, error)

        events, names, start = list[Any](), 0, self._record.end if self._record else 0
        for visit in walk_batched(tree, path, failed):
            if is_recorded:
                events.append(_event(visit))
                names += _count(visit)
                if names >= _NAMES:
                    is_recorded = self._added(events)
                    events, names = [], 0
            yield visit
        if is_recorded and self._added(events) and self._record:
            self._spans[path] = start, self._record.end

    def _added(self, events: list[Any]) -> bool:
        """Adds the events to the record. Returns False if there is no free space for them."""
        try:
            self._record = self._record or _Record(self._most)
            self._record.add(events)
        except OSError:
            return False
        return True


def _count(visit: Walked) -> int:
    if isinstance(visit, PlainFolders):
        return visit.totals.names
    return len(visit.files) if isinstance(visit, PlainFiles) else 1


def _event(visit: Walked) -> Any:
    if isinstance(visit, PlainFiles):
        return list(map(tuple, visit.files))
    if isinstance(visit, PlainFolders):
        return _OF_FOLDERS, visit.packed, tuple(visit.totals)
    if visit.left:
        return _LEFT
    entry = visit.entry
    numbers = entry.size, entry.allocated, entry.mode, entry.uid, entry.gid, entry.mtime, entry.inode, entry.links, entry.device
    return (visit.name, entry.kind, *numbers, entry.target, entry.rdev, entry.changed)


class _Record:
    """Pieces of events in an unnamed file with `end` bytes. Raises OSError; EFBIG if there would be more than `most`."""

    def __init__(self, most: int) -> None:
        with unnamed_file() as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._most, self.end = most, 0

    def add(self, events: list[Any]) -> None:
        packed = marshal.dumps(events)
        if self.end + _LENGTH + len(packed) > self._most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        piece = len(packed).to_bytes(_LENGTH, "little") + packed
        if os.pwrite(self._file, piece, self.end) != len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.end += len(piece)

    def events(self, position: int, end: int) -> Iterator[Any]:
        while position < end:
            length = int.from_bytes(self._read(position, _LENGTH), "little")
            yield from marshal.loads(self._read(position + _LENGTH, length))  # noqa: S302  our own unnamed file
            position += _LENGTH + length

    def _read(self, position: int, length: int) -> bytes:
        data = os.pread(self._file, length, position)
        if len(data) != length:
            raise OSError(errno.EIO, "a temporary file has become shorter")
        return data


_Events = Iterator[tuple[int, Any]]
"""Recorded events, each with a number that is lower than that of any event recorded later."""


def _repeated(tree: Tree, path: bytes, events: _Events, unreadable: Unreadable | None) -> Generator[Walked, None, None]:
    with parent_of(tree, path) as (above, name):
        first = Entry(joined(components(path)), *next(events)[1][1:])
        yield WalkEntry(first, above, name)
        if first.kind == "folder":
            number, event = next(events)
            if event is not _LEFT:
                yield from _below(tree, first, number, event, events, unreadable)
            yield WalkEntry(first, above, name, left=True)


def _below(tree: Tree, first: Entry, number: int, event: Any, events: _Events, unreadable: Unreadable | None) -> Iterator[Walked]:
    """Yields the content of a folder; its first event was already taken."""
    try:
        opened = Descent(tree, first.path)
    except OSError as error:
        report(unreadable, first.path, error)
        return
    with opened as down:
        entered = list[tuple[Entry, bytes]]()
        while True:
            if event is _LEFT:
                if not entered:
                    return
                down.leave()
                entry, name = entered.pop()
                yield WalkEntry(entry, down.fd, name, left=True)
            elif isinstance(event, list):
                yield PlainFiles(down.path.rstrip(b"/"), down.fd, list(map(PlainFile._make, event)), number)
            elif event[0] is _OF_FOLDERS:
                yield PlainFolders(down.path.rstrip(b"/"), down.fd, event[1], FolderTotals._make(event[2]), number)
            else:
                name, kind, *rest = event
                entry = Entry(down.path_of(name), kind, *rest)
                yield WalkEntry(entry, down.fd, name)
                if kind == "folder":
                    number, event = next(events)
                    if event is not _LEFT:
                        if _enter(tree, down, name, unreadable):
                            entered.append((entry, name))
                            continue
                        _skip(event, events)
                    yield WalkEntry(entry, down.fd, name, left=True)
            number, event = next(events)


def _enter(tree: Tree, down: Descent, name: bytes, unreadable: Unreadable | None) -> bool:
    """Returns True if the walk has entered the folder of that name; otherwise its position is unchanged."""
    try:
        down.enter(name)
    except OSError as error:
        report(unreadable, down.path_of(name), error)
        return False
    if tree.owns(os.fstat(down.fd).st_dev):
        return True
    down.leave()
    report(unreadable, down.path_of(name), OSError(errno.EXDEV, "another filesystem is mounted there"))
    return False


def _skip(event: Any, events: _Events) -> None:
    """Skips the content of a folder, from its first event on."""
    depth = 1
    while True:
        if event is _LEFT:
            depth -= 1
            if not depth:
                return
        elif isinstance(event, tuple) and event[1] == "folder":
            depth += 1
        _, event = next(events)


class NumberSet:
    """A set of numbers of groups and folders of a record, with one bit for each number up to the largest.

    For ten million numbers it takes 1.3 MB, a set of Python takes 0.6 GB.
    """

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> None:
        """Adds a number."""
        byte = number >> 3
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1024 - len(self._bits)))
        self._bits[byte] |= 1 << (number & 7)

    def __contains__(self, number: int) -> bool:
        byte = number >> 3
        return 0 <= byte < len(self._bits) and bool(self._bits[byte] >> (number & 7) & 1)
