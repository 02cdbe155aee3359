"""Files of a backup as one stream: a tar from which root gets all of it back, or a zip for everybody else.

Names are the host's without the slash at the beginning: etc/passwd. So `tar -x -C /` puts them where they were.
"""

import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from backupd.files import zip_headers
from backupd.files.attributes import attributes
from backupd.files.spool import LinkTable, Packed
from backupd.files.tar_headers import BLOCK, DataMap, member, padding, sparse_member
from backupd.files.tree import Entry, Tree, components, joined, open_plain
from backupd.files.walking import WalkEntry, walk
from btrkeep.fs.sparse import data_runs, pieces

SAMPLES = 20
_RECORD = 20 * BLOCK  # tar's own blocking: what it reads from a pipe is a multiple of it


class ByteSink(Protocol):
    """The destination of a stream."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(slots=True)
class Archived:
    """The result of an archive; `left_out` are up to SAMPLES paths with the reason, `left_out_count` counts all."""

    entries: int = 0
    size: int = 0
    """Bytes of the archive."""
    left_out: list[tuple[bytes, str]] = field(default_factory=list)
    left_out_count: int = 0

    def leave_out(self, path: bytes, why: str) -> None:
        """Counts what an archive of this kind cannot hold."""
        self.left_out_count += 1
        if len(self.left_out) < SAMPLES:
            self.left_out.append((path, why))


def write_archive(tree: Tree, paths: Sequence[bytes], kind: str, out: ByteSink) -> Archived:
    """Writes all of `paths` and what is below them to `out`, in pieces of a megabyte at the most. `kind`: "tar" or "zip".

    Memory: some thousand names on each level of folders, and of a file's holes, however many there are. What a zip's index at the
    end needs, and a tar's first names of files of which not all hard links have come yet, lies in a file meanwhile: see spool.
    Raises OSError as soon as anything cannot be read or written: half an archive must not look like a whole one. UsageError's
    business, such as a path that is missing, is the caller's: see suggestions.missing.
    """
    return _tar(tree, paths, out) if kind == "tar" else _zip(tree, paths, out)


def outermost(paths: Sequence[bytes]) -> list[bytes]:
    """The paths without doubles and without those that are below another one; in their order."""
    split = {joined(components(path)): components(path) for path in paths}
    above = {tuple(names) for names in split.values()}
    return [path for path, names in split.items() if not any(tuple(names[:depth]) in above for depth in range(len(names)))]


def _found(tree: Tree, paths: Sequence[bytes]) -> Iterator[tuple[WalkEntry, bytes]]:
    """Everything, with its name in the archive."""
    for path in outermost(paths):
        for found in walk(tree, path):
            if not tree.owns(found.entry.device):
                raise OSError(
                    errno.EXDEV, "something is mounted there, which hides what the backup has", os.fsdecode(found.entry.path)
                )
            if not found.left:
                yield found, found.entry.path[1:]


# --- tar


def _tar(tree: Tree, paths: Sequence[bytes], out: ByteSink) -> Archived:
    done, counted = Archived(), _Counted(out)
    with closing(LinkTable()) as links:
        for found, name in _found(tree, paths):
            if found.entry.kind == "socket":
                done.leave_out(found.entry.path, "a tar holds no sockets; the program that listens makes it again")
                continue
            _tar_member(found, name, links, counted)
            done.entries += 1
    counted.write(bytes(2 * BLOCK))
    counted.write(bytes(-counted.size % _RECORD))
    done.size = counted.size
    return done


def _tar_member(found: WalkEntry, name: bytes, links: LinkTable, out: ByteSink) -> None:
    entry = found.entry
    if entry.links > 1 and entry.kind != "folder" and (before := links.seen(entry.inode, entry.links, name)) is not None:
        out.write(member(entry, name, {}, link=before))
        return
    xattrs = attributes(found.folder, found.name)
    if entry.kind != "file":
        out.write(member(entry, name, xattrs))
        return
    with os.fdopen(open_plain(found.name, found.folder), "rb", 0) as file:
        _tar_file(entry, name, xattrs, file.fileno(), out)


def _tar_file(entry: Entry, name: bytes, xattrs: dict[str, bytes], fd: int, out: ByteSink) -> None:
    found = DataMap.of(entry.size, partial(data_runs, fd, entry.size)) if entry.allocated < entry.size else None
    if found is None or found.data == entry.size:
        out.write(member(entry, name, xattrs))
        _tar_data(fd, 0, entry.size, out)
        out.write(padding(entry.size))
        return
    out.write(sparse_member(entry, name, xattrs, found))
    for piece in found.pieces():
        out.write(piece)
    for start, end in found.runs():
        _tar_data(fd, start, end, out)
    out.write(padding(found.data))


def _tar_data(fd: int, start: int, end: int, out: ByteSink) -> None:
    for piece in pieces(fd, start, end):
        out.write(piece)


class _Counted:
    def __init__(self, out: ByteSink) -> None:
        self._out = out
        self.size = 0

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self.size += len(data)


# --- zip


def _zip(tree: Tree, paths: Sequence[bytes], out: ByteSink) -> Archived:
    done, counted = Archived(), _Counted(out)
    with closing(Packed()) as index:
        for found, name in _found(tree, paths):
            if found.entry.kind not in zip_headers.KINDS:
                done.leave_out(found.entry.path, f"a zip holds no {found.entry.kind}")
            elif name:
                index.write(_zip_member(found, name, counted))
                done.entries += 1
        begun = counted.size
        for piece in index.pieces():
            counted.write(piece)
    counted.write(zip_headers.end(done.entries, begun, counted.size - begun))
    done.size = counted.size
    return done


def _zip_member(found: WalkEntry, name: bytes, out: _Counted) -> bytes:
    """Writes it; gives its record for the index."""
    entry, one, offset = found.entry, zip_headers.member(found.entry, name), out.size
    if one.packed:
        out.write(zip_headers.header(one, zip_headers.Sizes()))
        sizes = _zip_file(found, out)
        out.write(zip_headers.trailer(one, sizes))
    else:
        data = entry.target or b""
        sizes = zip_headers.Sizes(zlib.crc32(data), len(data), len(data))
        out.write(zip_headers.header(one, sizes) + data)
    return zip_headers.record(one, sizes, offset)


def _zip_file(found: WalkEntry, out: _Counted) -> zip_headers.Sizes:
    """The data of a plain file, deflated."""
    crc, begun, packer = 0, out.size, zlib.compressobj(wbits=-zlib.MAX_WBITS)
    with os.fdopen(open_plain(found.name, found.folder), "rb", 0) as file:
        for piece in pieces(file.fileno(), 0, found.entry.size):
            crc = zlib.crc32(piece, crc)
            out.write(packer.compress(piece))
    out.write(packer.flush())
    return zip_headers.Sizes(crc, out.size - begun, found.entry.size)
