"""Stores data that grows with the number of names in a file, not in memory, because a host may have any number of names.

The files are unnamed and disappear with their process. They are in TMPDIR or /var/tmp, which is a disk even if /tmp is memory.
Raises OSError, SpoolFull if there is no free space, and SpoolTooLarge for more than `MOST` bytes, so that one user cannot fill that
disk.
"""

import errno
import heapq
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:  # a backup without hard links does not need it
    import sqlite3

MOST = 64 << 20
"""Bytes of one file: the packed records of some two million names, or half a million hard links of which another name
is missing.
"""
IN_MEMORY = 10_000
"""Names of one folder that are sorted in memory; larger folders are sorted in parts of ten thousand, which are merged."""
_PIECE = 16 << 10
_FULL_BELOW = 1 << 20  # bytes
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class SpoolFull(OSError):
    """The filesystem of the temporary files is full."""


class SpoolTooLarge(OSError):
    """A file would have more than `MOST` bytes."""


def folder() -> str:
    """Returns the folder for these files, if it can be used."""
    return os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108  they are unnamed


def unnamed_file() -> IO[bytes]:
    """A file that disappears with its process. Raises OSError."""
    import tempfile  # importing it takes as long as the rest of this package, and few commands need a file

    try:
        return tempfile.TemporaryFile(dir=folder(), prefix="btrkeep-")
    except OSError:  # anywhere else
        return tempfile.TemporaryFile(prefix="btrkeep-")


class PackedBytes:
    """Bytes that are written once, and then read once from the beginning. Similar records, as names are, take little space."""

    def __init__(self) -> None:
        self._file, self._packer, self._held = unnamed_file(), zlib.compressobj(1), 0

    def write(self, data: bytes) -> None:
        """Adds to it. Raises OSError."""
        self._put(self._packer.compress(data))

    def pieces(self) -> Iterator[bytes]:
        """Yields its content, some hundred kilobytes at a time. Raises OSError."""
        self._put(self._packer.flush())
        with _space_reported():
            self._file.seek(0)  # flushes the buffer
        unpacker = zlib.decompressobj()
        while packed := unpacker.unconsumed_tail or self._file.read(_PIECE):
            yield unpacker.decompress(packed, _PIECE * 16)
        yield unpacker.flush()

    def close(self) -> None:
        """Deletes the content."""
        self._file.close()

    def _put(self, packed: bytes) -> None:
        self._held += len(packed)
        if self._held > MOST:
            raise _too_large()
        with _space_reported():
            self._file.write(packed)


class LinkTable:
    """Records the first name of each file with several names. A file is forgotten with the last of its names."""

    def __init__(self) -> None:
        self._table: sqlite3.Connection | None = None

    def seen(self, inode: int, links: int, name: bytes) -> bytes | None:
        """Returns the first name of the same file, None if this is the first. Raises OSError."""
        import sqlite3

        try:
            return self._seen(self._table or self._made(), inode, links, name)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:  # a misuse of sqlite3 has no code
                raise OSError(errno.EIO, f"the table of links: {error}") from error
            raise (_full() if _is_full() else _too_large()) from error  # reaching `max_page_count` is a full disk for SQLite too

    def close(self) -> None:
        """Deletes the table."""
        if self._table:
            self._table.close()

    def _seen(self, table: "sqlite3.Connection", inode: int, links: int, name: bytes) -> bytes | None:
        row = table.execute("SELECT name, left FROM first WHERE inode = ?", (inode,)).fetchone()
        if row is None:
            table.execute("INSERT INTO first VALUES (?, ?, ?)", (inode, links - 1, name))
            return None
        if row[1] <= 1:
            table.execute("DELETE FROM first WHERE inode = ?", (inode,))
        else:
            table.execute("UPDATE first SET left = ? WHERE inode = ?", (row[1] - 1, inode))
        return bytes(row[0])

    def _made(self) -> "sqlite3.Connection":
        """Opens a database without a name: SQLite keeps 4 MiB of it in memory, and the rest in an unlinked file."""
        import sqlite3

        self._table = sqlite3.connect("", isolation_level=None)
        for words in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-4096", "page_size=4096", f"max_page_count={MOST >> 12}"):
            self._table.execute(f"PRAGMA {words}")
        self._table.execute("CREATE TABLE first (inode INTEGER PRIMARY KEY, left INTEGER, name BLOB)")
        return self._table


def ordered(names: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """Returns the number of names, and the names in byte order. Reads all at once. Names contain no NUL.

    Memory: IN_MEMORY of them, whatever their number; more if there is no space for a file, because that must not prevent a restore.
    Raises OSError if the file cannot be read again.
    """
    count, held, runs = 0, list[bytes](), _Runs()
    for name in names:
        if len(held) == IN_MEMORY:
            runs.add(sorted(held))
            held.clear()
        held.append(name)
        count += 1
    return count, runs.merged(sorted(held))


class _Runs:
    """Yields names in order, in sorted parts of one file, each followed by a NUL."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._ends = [0]
        self._kept = list[list[bytes]]()

    def add(self, names: list[bytes]) -> None:
        try:
            self._file = self._file or unnamed_file()
            self._file.seek(self._ends[-1])
            self._file.write(b"\0".join(names) + b"\0")
            self._file.flush()
        except OSError:
            self._kept.append(names)
        else:
            self._ends.append(self._file.tell())

    def merged(self, last: list[bytes]) -> Iterator[bytes]:
        if not self._kept and not self._file:
            return iter(last)
        spans = zip(self._ends, self._ends[1:], strict=False)
        return heapq.merge(last, *self._kept, *(self._read(start, end) for start, end in spans))

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        assert self._file
        rest = b""
        while start < end:
            piece = os.pread(self._file.fileno(), min(_PIECE, end - start), start)
            if not piece:
                raise OSError(errno.EIO, "a temporary file has become shorter")
            start += len(piece)
            *whole, rest = (rest + piece).split(b"\0")
            yield from whole


def _is_full() -> bool:
    try:
        status = os.statvfs(folder())
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _FULL_BELOW


@contextmanager
def _space_reported() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _full() from error
        raise


def _too_large() -> SpoolTooLarge:
    return SpoolTooLarge(errno.EFBIG, "too many hard links or names for one archive")


def _full() -> SpoolFull:
    return SpoolFull(errno.ENOSPC, f"{folder()} has no free space for its temporary files")
