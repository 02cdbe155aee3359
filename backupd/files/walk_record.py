"""Walks a backup again and again: the first time name by name, later from a record, for the files of a backup never change.

A folder is opened again only if something is in it. The record is in an unnamed file. It is not made of a backup that is too large
for it, or that cannot be read everywhere: such a backup is walked name by name each time.
"""

import errno
import marshal
import os
import weakref
from collections.abc import Generator, Iterator
from typing import Any

from backupd.files.spool import MOST, unnamed_file
from backupd.files.tree import Descent, Entry, Tree, components, joined
from backupd.files.walking import (
    PlainFile,
    PlainFiles,
    PlainFolders,
    Unreadable,
    Walked,
    WalkEntry,
    packed,
    parent_of,
    report,
    unpacked,
    walk_batched,
)

_NAMES = 1000  # of one piece of the record; it is in memory
_LENGTH = 4  # bytes, before each piece
_LEFT = None
"""The event after all that is in a folder. The others: a tuple of the name and Entry's further fields; a list of plain files; a
tuple of _FOLDERS and a list of plain folders.
"""
_FOLDERS = None


class RepeatedWalk:
    """Batched walks through one backup, as `walk_batched` has them. Not for a folder that may change."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._record: _Record | None = None
        self._spans: dict[bytes, tuple[int, int]] = {}

    def walk(self, tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[Walked, None, None]:
        """The entry at `path` and all below it, as `walk_batched`. Raises OSError."""
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
        """Adds them to the record. Returns False if there is no free space for them."""
        try:
            self._record = self._record or _Record(self._most)
            self._record.add(events)
        except OSError:
            return False
        return True


def _count(visit: Walked) -> int:
    if isinstance(visit, PlainFolders):
        return sum(1 + len(folder.files) for folder in visit.folders)
    return len(visit.files) if isinstance(visit, PlainFiles) else 1


def _event(visit: Walked) -> Any:
    if isinstance(visit, PlainFiles):
        return list(map(tuple, visit.files))
    if isinstance(visit, PlainFolders):
        return _FOLDERS, list(map(packed, visit.folders))
    if visit.left:
        return _LEFT
    entry = visit.entry
    numbers = entry.size, entry.allocated, entry.mode, entry.uid, entry.gid, entry.mtime, entry.inode, entry.links, entry.device
    return (visit.name, entry.kind, *numbers, entry.target, entry.rdev, entry.changed)


class _Record:
    """Pieces of events in an unnamed file, `end` bytes of it. Raises OSError; EFBIG if there would be more than `most`."""

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
            raise OSError(errno.EIO, "a file of our own is shorter than it was")
        return data


_Events = Iterator[tuple[int, Any]]
"""Recorded events, each with a number that is less than that of any event which is recorded later."""


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
    """Yields what is in a folder; its first event was taken already."""
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
            elif event[0] is _FOLDERS:
                yield PlainFolders(down.path.rstrip(b"/"), down.fd, list(map(unpacked, event[1])), number)
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
    """Returns True if the walk is in the folder of that name now; else it stayed where it was."""
    try:
        down.enter(name)
    except OSError as error:
        report(unreadable, down.path_of(name), error)
        return False
    if tree.owns(os.fstat(down.fd).st_dev):
        return True
    down.leave()
    report(unreadable, down.path_of(name), OSError(errno.EXDEV, "something else is mounted there"))
    return False


def _skip(event: Any, events: _Events) -> None:
    """Passes over what is in a folder, from its first event on."""
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
    """A set of numbers of groups and folders of a record, in one bit for each number up to the largest.

    Of ten million numbers it takes 1.3 MB, a set of Python takes 0.6 GB."""

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
