"""Stores data that grows with the number of names in a file, not in memory, because a host may have any number of names.

The files are unnamed and disappear with their process. They are in TMPDIR or /var/tmp, which is a disk where /tmp is memory. Raises
OSError if there is no room, and EFBIG for more than `MOST` bytes, so that one user cannot fill that disk.
"""

import errno
import heapq
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

MOST = 64 << 20
"""Bytes of one file: the packed records of some two million names, or half a million hard links that wait for another name."""
IN_MEMORY = 10_000
"""Names of one folder that are put in order in memory; of more each ten thousand are, and then merged."""
_PIECE = 16 << 10


def _file() -> IO[bytes]:
    import tempfile  # it takes as long as the rest of this package, and few commands need a file

    try:
        return tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp"), prefix="btrkeep-")  # noqa: S108  unnamed
    except OSError:  # wherever there is a place, then
        return tempfile.TemporaryFile(prefix="btrkeep-")


class Packed:
    """Bytes that are written once, and then read once from the beginning. Alike records, as names are, take little room."""

    def __init__(self) -> None:
        self._file, self._packer, self._held = _file(), zlib.compressobj(1), 0

    def write(self, data: bytes) -> None:
        """Adds to it. Raises OSError."""
        self._put(self._packer.compress(data))

    def pieces(self) -> Iterator[bytes]:
        """All of it, some hundred kilobytes at a time. Raises OSError."""
        self._put(self._packer.flush())
        self._file.seek(0)
        unpacker = zlib.decompressobj()
        while packed := unpacker.unconsumed_tail or self._file.read(_PIECE):
            yield unpacker.decompress(packed, _PIECE * 16)
        yield unpacker.flush()

    def close(self) -> None:
        """Forgets it."""
        self._file.close()

    def _put(self, packed: bytes) -> None:
        self._held += len(packed)
        if self._held > MOST:
            raise _too_many()
        self._file.write(packed)


class LinkTable:
    """Which name of a file with several came first. A file is forgotten with the last of its names."""

    def __init__(self) -> None:
        self._table: sqlite3.Connection | None = None

    def seen(self, inode: int, links: int, name: bytes) -> bytes | None:
        """The first name of the same file, None when this is it. Raises OSError."""
        try:
            return self._seen(self._table or self._made(), inode, links, name)
        except sqlite3.Error as error:  # it is bounded by `max_page_count`: for SQLite that is a full disk
            is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL  # our own misuse of sqlite3 has no code
            raise (_too_many() if is_full else OSError(errno.EIO, f"the table of links: {error}")) from error

    def close(self) -> None:
        """Forgets them all."""
        if self._table:
            self._table.close()

    def _seen(self, table: sqlite3.Connection, inode: int, links: int, name: bytes) -> bytes | None:
        found = table.execute("SELECT name, left FROM first WHERE inode = ?", (inode,)).fetchone()
        if found is None:
            table.execute("INSERT INTO first VALUES (?, ?, ?)", (inode, links - 1, name))
            return None
        if found[1] <= 1:
            table.execute("DELETE FROM first WHERE inode = ?", (inode,))
        else:
            table.execute("UPDATE first SET left = ? WHERE inode = ?", (found[1] - 1, inode))
        return bytes(found[0])

    def _made(self) -> sqlite3.Connection:
        """A database without a name: SQLite keeps 4 MiB of it in memory, and all else in a file that it has unlinked."""
        self._table = sqlite3.connect("", isolation_level=None)
        for words in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-4096", "page_size=4096", f"max_page_count={MOST >> 12}"):
            self._table.execute(f"PRAGMA {words}")
        self._table.execute("CREATE TABLE first (inode INTEGER PRIMARY KEY, left INTEGER, name BLOB)")
        return self._table


def ordered(names: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """Returns the number of names, and the names in byte order. Reads all at once. Names contain no NUL.

    Memory: IN_MEMORY of them, however many there are; more if no file has room, because that must not prevent a restore. Raises
    OSError if the file cannot be read again.
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
    """Names in order, some thousand after some thousand in one file, each with a NUL behind it."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._ends = [0]
        self._kept = list[list[bytes]]()

    def add(self, names: list[bytes]) -> None:
        try:
            self._file = self._file or _file()
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
                raise OSError(errno.EIO, "a file of our own is shorter than it was")
            start += len(piece)
            *whole, rest = (rest + piece).split(b"\0")
            yield from whole


def _too_many() -> OSError:
    return OSError(errno.EFBIG, "too many names for one archive, or no room for them in /var/tmp")
