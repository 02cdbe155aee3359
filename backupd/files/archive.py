"""Streams files of a backup: a tar from which root can restore everything, or a zip for other users.

Names are the host's without the slash at the start: etc/passwd. So `tar -x -C /` restores them to their original place.
"""

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from backupd.files import zip_headers
from backupd.files.attributes import attributes, attributes_of_open
from backupd.files.spool import LinkTable, PackedBytes
from backupd.files.tar_headers import BLOCK, CUT_OFF, DataMap, member, padding, sparse_member, usual_file
from backupd.files.tree import Entry, Tree, outermost, read_entry
from backupd.files.walking import PlainFile, PlainFiles, WalkEntry, walk_grouped
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.file_data import PIECE, Run, data_runs, pieces
from btrkeep.fs.openat import FILE

SAMPLES = 20
_AT_ONCE = 128 << 10
_LEVEL = 6  # zlib's own default
_SAMPLE, _WORTH_IT = 16 << 10, 0.95
_DEFLATE_END = b"\x03\0"  # the last block, which is empty
_RECORD = 20 * BLOCK  # tar's own blocking factor: it reads multiples of this from a pipe
_PADDINGS = [bytes(length) for length in range(BLOCK)]


class ByteSink(Protocol):
    """The destination of a stream."""

    def write(self, data: bytes, /) -> object: ...


Send = Callable[[int, int, int], Iterator[int]]
"""Passes a run of bytes of an open file to a stream in the kernel: see `sparse.send_run`."""


@dataclass(slots=True)
class ArchiveResult:
    """The result of an archive."""

    entries: int = 0
    """Number of names in it."""
    size: int = 0
    """Bytes of the archive."""
    skipped: list[tuple[bytes, str]] = field(default_factory=list)
    """Up to SAMPLES paths that are left out, with the reason."""
    skipped_count: int = 0
    """Number of all paths that are left out."""

    def leave_out(self, path: bytes, why: str) -> None:
        """Counts what an archive of this kind cannot contain."""
        self.skipped_count += 1
        if len(self.skipped) < SAMPLES:
            self.skipped.append((path, why))


class SourceUnreadable(OSError):
    """A file or folder of the backup that cannot be read; `filename` is its path in the backup."""


def write_archive(tree: Tree, paths: Sequence[bytes], kind: str, out: ByteSink, send: Send | None = None) -> ArchiveResult:
    """Writes all of `paths` and everything below them to `out`, in pieces of at most a megabyte. `kind`: "tar" or "zip". `send`:
    passes the data of large files to the same destination. Memory: some thousand names on each level of folders, and of a file's
    holes, however many there are. What a zip's index at the end needs, and a tar's first names of files whose hard links are not
    all written yet, are kept in a file: see spool.

    Raises SourceUnreadable or OSError as soon as anything cannot be read or written, because half an archive must not look
    complete. GNU tar reports nothing if a tar ends between two members, so after an error the start of another member is written.
    Errors of the user, such as a path that is missing, are checked by the caller: see suggestions.missing.
    """
    return _tar(tree, paths, out, send) if kind == "tar" else _zip(tree, paths, out)


def _visits(tree: Tree, paths: Sequence[bytes]) -> Iterator[WalkEntry | PlainFiles]:
    """Yields each name once. Raises SourceUnreadable, also for a mount in the backup."""
    for path in outermost(paths):
        try:
            yield from _visits_below(tree, path)
        except SourceUnreadable:
            raise
        except OSError as error:
            raise _of_path(error, path) from error


def _visits_below(tree: Tree, path: bytes) -> Iterator[WalkEntry | PlainFiles]:
    """Yields a path and everything below it. Raises OSError."""
    for visit in walk_grouped(tree, path, _raise_unreadable):
        if isinstance(visit, PlainFiles):
            yield visit
            continue
        entry = visit.entry
        if entry.device != tree.device and not tree.owns(entry.device):
            why = "a mount there hides the files of the backup"
            raise SourceUnreadable(errno.EXDEV, why, os.fsdecode(entry.path))
        if not visit.left:
            yield visit


def _entries(tree: Tree, paths: Sequence[bytes]) -> Iterator[WalkEntry]:
    """Yields everything one by one."""
    for visit in _visits(tree, paths):
        if isinstance(visit, PlainFiles):
            for file in visit.files:
                yield WalkEntry(read_entry(visit.folder, file.name, visit.above + b"/" + file.name), visit.folder, file.name)
        else:
            yield visit


# --- tar


def _tar(tree: Tree, paths: Sequence[bytes], out: ByteSink, send: Send | None) -> ArchiveResult:
    done, gathered = ArchiveResult(), _GatheringSink(out, send)
    with closing(LinkTable()) as links:
        try:
            for visit in _visits(tree, paths):
                if isinstance(visit, PlainFiles):
                    _tar_plain_files(visit, gathered)
                    done.entries += len(visit.files)
                elif visit.entry.kind == "socket":
                    done.leave_out(visit.entry.path, "a tar cannot contain sockets; the listening program creates it again")
                else:
                    _tar_member(visit, visit.entry.path[1:], links, gathered)
                    gathered.end_member()
                    done.entries += 1
        except BaseException:  # including signals, and a full disk below the table of links
            if gathered.is_between_members:
                gathered.write(CUT_OFF)
            gathered.flush()
            raise
    gathered.write(bytes(2 * BLOCK))
    gathered.write(bytes(-gathered.size % _RECORD))
    gathered.flush()
    done.size = gathered.size
    return done


def _tar_plain_files(group: PlainFiles, out: "_GatheringSink") -> None:
    """Writes files of one folder: the most common entries, so each takes only five system calls, and no Entry is made for it."""
    folder, above = group.folder, group.above[1:] + b"/" if group.above else b""
    for file in group.files:
        name = above + file.name
        try:
            fd = os.open(file.name, FILE, dir_fd=folder)
            try:
                xattrs, data = attributes_of_open(fd), _data(fd, file)
            finally:
                os.close(fd)
            header = None if xattrs else usual_file(file, name)
            if header is None:
                header = member(read_entry(folder, file.name, b"/" + name), name, xattrs)
        except OSError as error:
            raise _of_path(error, b"/" + name) from error
        out.extend((header, data, _PADDINGS[-file.size % BLOCK]))


def _of_path(error: OSError, path: bytes) -> SourceUnreadable:
    """Returns the error with the path in the backup, not with a name in some folder or without one."""
    return SourceUnreadable(error.errno, error.strerror, os.fsdecode(path))


def _raise_unreadable(path: bytes, error: OSError) -> None:
    raise _of_path(error, path) from error


def _read(entry: Entry, fd: int, start: int, end: int) -> Iterator[bytes]:
    """Yields the data of a file. Raises OSError with its path."""
    try:
        yield from pieces(fd, start, end)
    except OSError as error:
        raise _of_path(error, entry.path) from error


def _runs(entry: Entry, fd: int) -> Iterator[Run]:
    """Yields the runs of data of a file. Raises OSError with its path."""
    try:
        yield from data_runs(fd, entry.size)
    except OSError as error:
        raise _of_path(error, entry.path) from error


def _data(fd: int, file: PlainFile) -> bytes:
    """Reads a whole file. Raises OSError, also if it is shorter than its size."""
    data = os.pread(fd, file.size, 0) if file.size else b""
    return data if len(data) == file.size else data + b"".join(pieces(fd, len(data), file.size))


def _tar_member(walk_entry: WalkEntry, name: bytes, links: LinkTable, out: "_GatheringSink") -> None:
    entry = walk_entry.entry
    if entry.links > 1 and entry.kind != "folder" and (before := links.seen(entry.inode, entry.links, name)) is not None:
        out.write(member(entry, name, {}, link=before))
        return
    if entry.kind != "file":
        try:
            xattrs = attributes(walk_entry.folder, walk_entry.name)
        except OSError as error:
            raise _of_path(error, entry.path) from error
        out.write(member(entry, name, xattrs))
        return
    fd = _open_seen(walk_entry)
    try:
        try:
            xattrs = attributes_of_open(fd)
        except OSError as error:
            raise _of_path(error, entry.path) from error
        _tar_file(entry, name, xattrs, fd, out)
    finally:
        os.close(fd)


def _open_seen(walk_entry: WalkEntry) -> int:
    """Opens a regular file of the walk. A backup is read-only, so it is still one; if it was replaced, no symlink is followed."""
    try:
        return os.open(walk_entry.name, FILE, dir_fd=walk_entry.folder)
    except OSError as error:
        raise _of_path(error, walk_entry.entry.path) from error


def _tar_file(entry: Entry, name: bytes, xattrs: dict[str, bytes], fd: int, out: "_GatheringSink") -> None:
    data_map = DataMap.of(entry.size, partial(_runs, entry, fd)) if entry.allocated < entry.size else None
    if data_map is None or data_map.data == entry.size:
        if entry.size <= PIECE:
            out.write(b"".join((member(entry, name, xattrs), *_read(entry, fd, 0, entry.size), padding(entry.size))))
            return
        out.write(member(entry, name, xattrs))
        _tar_data(entry, fd, 0, entry.size, out)
        out.write(padding(entry.size))
        return
    out.write(sparse_member(entry, name, xattrs, data_map))
    for piece in data_map.pieces():
        out.write(piece)
    for start, end in data_map.runs():
        _tar_data(entry, fd, start, end, out)
    out.write(padding(data_map.data))


def _tar_data(entry: Entry, fd: int, start: int, end: int, out: "_GatheringSink") -> None:
    for piece in _read(entry, fd, out.send(fd, start, end), end):
        out.write(piece)


class _GatheringSink:
    """Passes on written data in larger pieces; the first one early, so that a reader gets a byte.

    A write passes on only earlier data. So if a write fails, every complete member was recorded as finished before.
    """

    def __init__(self, out: ByteSink, send: Send | None = None) -> None:
        self._out = out
        self._send = send
        self._held = list[bytes]()
        self._free = 0
        self.size = self._ended = 0

    def write(self, data: bytes) -> None:
        if self._free <= 0 and self._held and data:  # an empty padding may end the member
            self.flush()
        self.size += len(data)
        self._free -= len(data)
        self._held.append(data)

    def extend(self, parts: tuple[bytes, ...]) -> None:
        """Writes a whole member, in several pieces of some kilobytes."""
        size = sum(map(len, parts))
        self.size += size
        self._ended = self.size
        self._free -= size
        self._held += parts
        if self._free <= 0:
            self.flush()

    def send(self, fd: int, start: int, end: int) -> int:
        """Passes on data of a large file in the kernel. Returns the position at which that ended: the rest must be read and
        written.

        The last block is left, so that the member is not complete before it is recorded as finished.
        """
        if self._send and end - start > PIECE:
            self.flush()
            for number in self._send(fd, start, end - BLOCK):
                self.size += number
                start += number
        return start

    def end_member(self) -> None:
        self._ended = self.size
        if self._free <= 0:
            self.flush()

    @property
    def is_between_members(self) -> bool:
        return self.size == self._ended

    def flush(self) -> None:
        data = b"".join(self._held)
        self._held.clear()  # before writing, so that nothing is written twice after an error
        self._free = _AT_ONCE
        if data:
            self._out.write(data)


# --- zip


def _zip(tree: Tree, paths: Sequence[bytes], out: ByteSink) -> ArchiveResult:
    done, gathered = ArchiveResult(), _GatheringSink(out)
    with closing(PackedBytes()) as index:
        for entry in _entries(tree, paths):
            name = entry.entry.path[1:]
            if entry.entry.kind not in zip_headers.KINDS:
                done.leave_out(entry.entry.path, f"a zip cannot contain a {entry.entry.kind}")
            elif name:
                index.write(_zip_member(entry, name, gathered))
                done.entries += 1
        begun = gathered.size
        for piece in index.pieces():
            gathered.write(piece)
    gathered.write(zip_headers.end(done.entries, begun, gathered.size - begun))
    gathered.flush()
    done.size = gathered.size
    return done


def _zip_member(walk_entry: WalkEntry, name: bytes, out: _GatheringSink) -> bytes:
    """Writes a member; returns its record for the index."""
    entry, zip_member, offset = walk_entry.entry, zip_headers.member(walk_entry.entry, name), out.size
    if zip_member.packed:
        out.write(zip_headers.header(zip_member, zip_headers.Sizes()))
        sizes = _zip_file(walk_entry, out)
        out.write(zip_headers.trailer(zip_member, sizes))
    else:
        data = entry.target or b""
        sizes = zip_headers.Sizes(zlib.crc32(data), len(data), len(data))
        out.write(zip_headers.header(zip_member, sizes) + data)
    return zip_headers.record(zip_member, sizes, offset)


def _zip_file(walk_entry: WalkEntry, out: _GatheringSink) -> zip_headers.Sizes:
    """Writes the deflated data of a regular file; returns its sizes."""
    crc, begun = 0, out.size
    with ClosingFd(_open_seen(walk_entry)) as fd:
        for piece in _read(walk_entry.entry, fd, 0, walk_entry.entry.size):
            crc = zlib.crc32(piece, crc)
            out.write(_deflated(piece))
    out.write(_DEFLATE_END)
    return zip_headers.Sizes(crc, out.size - begun, walk_entry.entry.size)


def _deflated(piece: bytes) -> bytes:
    """Returns independent blocks of a deflate stream. Data that does not become smaller is only framed, which is many times as
    fast: photographs, archives, encrypted files. Finding that out takes as long as deflating a small piece.
    """
    sample = piece[:_SAMPLE] if len(piece) > 4 * _SAMPLE else b""
    level = 0 if sample and len(zlib.compress(sample, 1)) > len(sample) * _WORTH_IT else _LEVEL
    packer = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
