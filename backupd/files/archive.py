"""Files of a backup as one stream: a tar from which root gets all of it back, or a zip for everybody else.

Names are the host's without the slash at the beginning: etc/passwd. So `tar -x -C /` puts them where they were. With `base` they
begin with the last name of what was asked for, as `cp` has it: the folder /srv/www becomes www.
"""

import io
import os
import struct
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backupd.files.attributes import attributes
from backupd.files.content import data_runs, pieces
from backupd.files.tarhead import BLOCK, member, padding, sparse_member
from backupd.files.tree import Entry, Tree, components, joined, open_plain
from backupd.files.walking import Found, walk

SAMPLES = 20
_ZIP_KINDS = ("file", "folder", "symlink")
_RECORD = 20 * BLOCK  # tar's own blocking: what it reads from a pipe is a multiple of it


class Out(Protocol):
    """Where a stream goes."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(slots=True)
class Archived:
    """What went into an archive; `left_out` are up to SAMPLES paths with the reason, `left_out_count` counts all."""

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


def write_archive(tree: Tree, paths: Sequence[bytes], kind: str, out: Out, *, base: bool = False) -> Archived:
    """Writes all of `paths` and what is below them to `out`, in pieces of a megabyte at the most. `kind`: "tar" or "zip".

    Memory: names of one folder; for a tar those files of which not all hard links have come yet; for a zip some 500 bytes for each
    name, which its index at the end needs. Raises OSError as soon as anything cannot be read or written: half an archive must not
    look like a whole one. UsageError's business, such as a path that is missing, is the caller's: see near.missing.
    """
    return _tar(tree, paths, out, base) if kind == "tar" else _zip(tree, paths, out, base)


def outermost(paths: Sequence[bytes]) -> list[bytes]:
    """The paths without doubles and without those that are below another one; in their order."""
    split = {joined(components(path)): components(path) for path in paths}
    above = {tuple(names) for names in split.values()}
    return [path for path, names in split.items() if not any(tuple(names[:depth]) in above for depth in range(len(names)))]


def _found(tree: Tree, paths: Sequence[bytes], base: bool) -> Iterator[tuple[Found, bytes]]:
    """Everything, with its name in the archive."""
    for path in outermost(paths):
        cut = len(path.rpartition(b"/")[0]) + 1 if base else 1
        for found in walk(tree, path):
            if not found.left:
                yield found, found.entry.path[cut:]


# --- tar


def _tar(tree: Tree, paths: Sequence[bytes], out: Out, base: bool) -> Archived:
    done, counted, links = Archived(), _Counted(out), _Links()
    for found, name in _found(tree, paths, base):
        if found.entry.kind == "socket":
            done.leave_out(found.entry.path, "a tar holds no sockets; the program that listens makes it again")
            continue
        _tar_member(found, name, links, counted)
        done.entries += 1
    counted.write(bytes(2 * BLOCK))
    counted.write(bytes(-counted.size % _RECORD))
    done.size = counted.size
    return done


def _tar_member(found: Found, name: bytes, links: "_Links", out: Out) -> None:
    entry = found.entry
    if (before := links.seen(entry, name)) is not None:
        out.write(member(entry, name, {}, link=before))
        return
    xattrs = attributes(found.folder, found.name)
    if entry.kind != "file":
        out.write(member(entry, name, xattrs))
        return
    with os.fdopen(open_plain(found.name, found.folder), "rb", 0) as file:
        _tar_file(entry, name, xattrs, file.fileno(), out)


def _tar_file(entry: Entry, name: bytes, xattrs: dict[str, bytes], fd: int, out: Out) -> None:
    runs = list(data_runs(fd, entry.size)) if entry.allocated < entry.size else [(0, entry.size)]
    whole = sum(end - start for start, end in runs) == entry.size
    out.write(member(entry, name, xattrs) if whole else sparse_member(entry, name, xattrs, runs))
    for start, end in runs:
        for piece in pieces(fd, start, end):
            out.write(piece)
    out.write(padding(sum(end - start for start, end in runs)))


class _Links:
    """Which name of a file with several came first. A file is forgotten with the last of its names."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[bytes, int]] = {}

    def seen(self, entry: Entry, name: bytes) -> bytes | None:
        """The first name of the same file, None when this is it."""
        if entry.links < 2 or entry.kind == "folder":
            return None
        first, left = self._first.pop(entry.inode, (None, entry.links))
        if left > 1:
            self._first[entry.inode] = (first or name, left - 1)
        return first


class _Counted:
    def __init__(self, out: Out) -> None:
        self._out = out
        self.size = 0

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self.size += len(data)


# --- zip


def _zip(tree: Tree, paths: Sequence[bytes], out: Out, base: bool) -> Archived:
    done, counted = Archived(), _Counted(out)
    with zipfile.ZipFile(_Stream(counted), "w") as archive:
        for found, name in _found(tree, paths, base):
            if found.entry.kind not in _ZIP_KINDS:
                done.leave_out(found.entry.path, f"a zip holds no {found.entry.kind}")
            elif name:
                _zip_member(archive, found, name)
                done.entries += 1
    done.size = counted.size
    return done


def _zip_member(archive: zipfile.ZipFile, found: Found, name: bytes) -> None:
    entry, info = found.entry, _zip_info(found.entry, name)
    if entry.kind == "folder":
        info.CRC = 0  # which mkdir leaves to the caller up to Python 3.11
        archive.mkdir(info)
        return
    with archive.open(info, "w", force_zip64=entry.size >= zipfile.ZIP64_LIMIT // 2) as to:
        if entry.target is not None:
            to.write(entry.target)
            return
        with os.fdopen(open_plain(found.name, found.folder), "rb", 0) as file:
            for piece in pieces(file.fileno(), 0, entry.size):
                to.write(piece)


def _zip_info(entry: Entry, name: bytes) -> zipfile.ZipInfo:
    """Name, time, owner and mode as Info-ZIP's zip has them. A zip's own time has no zone: it gets UTC."""
    seconds = entry.mtime // 10**9
    moment = time.gmtime(min(max(seconds, 315532800), 4354819198))  # 1980 to 2107 is what it can say
    info = zipfile.ZipInfo(zip_name(name) + ("/" if entry.kind == "folder" else ""), moment[:6])
    info.external_attr = (entry.mode | _FORMATS[entry.kind]) << 16 | (0x10 if entry.kind == "folder" else 0)
    info.create_system = 3  # Unix, which is whose modes these are
    info.compress_type = zipfile.ZIP_DEFLATED if entry.kind == "file" else zipfile.ZIP_STORED
    info.file_size = len(entry.target) if entry.target is not None else 0 if entry.kind == "folder" else entry.size
    if -(2**31) <= seconds < 2**31:
        info.extra = struct.pack("<HHBl", 0x5455, 5, 1, seconds)
    info.extra += struct.pack("<HHBBLBL", 0x7875, 11, 1, 4, entry.uid, 4, entry.gid)
    return info


_FORMATS = {"file": 0o100000, "folder": 0o040000, "symlink": 0o120000}


def zip_name(name: bytes) -> str:
    """A name as a zip can have it: bytes that are no UTF-8 become %FF, for a zip has only text; and a backslash %5C, which Windows
    takes for a slash: a host that names a file ..\\x would else choose where it is extracted.
    """
    text = name.decode("utf-8", "surrogateescape").replace("\\", "%5C")
    return "".join(f"%{ord(char) - 0xDC00:02X}" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in text)


class _Stream(io.RawIOBase):
    """A file that can only be written: zipfile writes sizes after the data then."""

    def __init__(self, out: Out) -> None:
        super().__init__()
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        self._out.write(piece)
        return len(piece)
