"""`checksums` of a host: which content each of its files had when it was read, for all of its backups in one file.

A file is told by inode number, time of its last change on this server (ctime) and size. No host chooses these, and a snapshot keeps
them, so one record speaks of every backup that has the file. The records are sorted, and found in the mapped file without reading
all of it: a host may have ten million. Each has a check of its own, and one that does not pass it is as if it were not there.
"""

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import merge
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from btrkeep.pool.atomic import write_pieces_atomically

CHECKSUMS = "checksums"
_KEY = struct.Struct(">QQQ")
_REST = struct.Struct(">QI32s")
_CHECK = struct.Struct(">I")
_IN_BLOCK = 256
_LENGTH = _KEY.size + _REST.size + _CHECK.size
_MAGIC = b"btrkeep checksums 2\n".ljust(_LENGTH, b"\0")
_FORGOTTEN_AFTER = (
    3 * 365 * 86400 * 10**6
)  # microseconds: a file that was not read for so long is most likely in no backup any more
_DAMAGED = 1
_WHOLE = (1 << 64) - 1

Key = bytes


class ReadBefore(NamedTuple):
    """What is known of one file: when it was last read (microseconds since 1970), whether it was damaged then, and its SHA-256.

    The digest of one that was found damaged is the one from before that; all zeros if there was none.
    """

    at: int
    damaged: bool
    digest: bytes


def key_of(inode: int, changed: int, size: int) -> Key:
    """What a file is told by; `changed` in nanoseconds."""
    return _KEY.pack(inode, changed & _WHOLE, size)


class Checksums:
    """The records of the host whose folder that is, as they were when this was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError. A file that is none of ours counts as empty, and is replaced; so does the part that cannot be read."""
        self._folder, self._fd, count = folder, -1, 0
        with suppress(FileNotFoundError):
            self._fd = os.open(folder / CHECKSUMS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._read(0, _LENGTH) == _MAGIC:
                count = os.fstat(self._fd).st_size // _LENGTH - 1
        self._blocks = range(0, count, _IN_BLOCK)
        self._first = [self._read((start + 1) * _LENGTH, _KEY.size) for start in self._blocks]
        self._at_hand: tuple[int, list[bytes]] = (-1, [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def find(self, key: Key) -> ReadBefore | None:
        """What is known of that file."""
        number = bisect_right(self._first, key) - 1
        if number < 0:
            return None
        if self._at_hand[0] != number:
            self._at_hand = (number, self._block(number))
        records = self._at_hand[1]
        place = bisect_left(records, key)
        found = records[place] if place < len(records) else b""
        return _parsed(found) if found[: _KEY.size] == key else None

    def write(self, found: Mapping[Key, ReadBefore], now: int | None) -> None:
        """Replaces the file by one that has these besides, on disk before this returns. What is open here stays as it was.

        What is too old at `now` (microseconds since 1970) goes; None: nothing does.
        """
        old = (record for number in range(len(self._blocks)) for record in self._block(number))
        new = (_record(key, found[key]) for key in sorted(found))
        both = merge(
            ((record, 0) for record in old), ((record, 1) for record in new), key=lambda one: (one[0][: _KEY.size], one[1])
        )
        write_pieces_atomically(self._folder / CHECKSUMS, _pieces(both, now - _FORGOTTEN_AFTER if now is not None else 0))

    def _block(self, number: int) -> list[bytes]:
        data = self._read((self._blocks[number] + 1) * _LENGTH, _IN_BLOCK * _LENGTH)
        return [data[start : start + _LENGTH] for start in range(0, len(data) - _LENGTH + 1, _LENGTH)]

    def _read(self, place: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, place)
        except OSError:  # damaged itself: what it knew is read anew
            return b""


def _record(key: Key, one: ReadBefore) -> bytes:
    body = key + _REST.pack(max(0, one.at), _DAMAGED if one.damaged else 0, one.digest)
    return body + _CHECK.pack(zlib.crc32(body))


def _parsed(record: bytes) -> ReadBefore | None:
    body = record[: -_CHECK.size]
    if _CHECK.pack(zlib.crc32(body)) != record[-_CHECK.size :]:
        return None
    at, flags, digest = _REST.unpack(body[_KEY.size :])
    return ReadBefore(at, bool(flags & _DAMAGED), digest)


def _pieces(sorted_records: Iterator[tuple[bytes, int]], since: int) -> Iterator[bytes]:
    """The file, in pieces: of two records of a file the later one, none that is older than `since` or fails its check."""
    piece, last = bytearray(_MAGIC), b""
    for record, _ in sorted_records:
        if last and last[: _KEY.size] != record[: _KEY.size] and (known := _parsed(last)) and known.at >= since:
            piece += last
        last = record
        if len(piece) >= 1 << 20:
            yield bytes(piece)
            piece.clear()
    if last and (known := _parsed(last)) and known.at >= since:
        piece += last
    yield bytes(piece)
