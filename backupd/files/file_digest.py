"""A plain file read from the disk, and the digest of its content."""

import errno
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from mmap import MAP_ANONYMOUS, MAP_POPULATE, MAP_SHARED, PAGESIZE, mmap
from typing import NamedTuple

from backupd.repo.checksums import LONGEST_HOLE, NO_DIGEST, Key
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import PIECE, data_runs

_BLOCK = 4096  # bytes: the smallest hole
_ZEROS = bytes(_BLOCK)


class FileRead(NamedTuple):
    path: bytes
    key: Key
    size: int
    """Bytes that were read."""
    digest: bytes
    bad: int | None
    """The first byte that cannot be read; None if all can."""
    plain: bytes | None = None
    """SHA-256 as `sha256sum` prints it, if requested."""


class PlainSum:
    """SHA-256 of a file as `sha256sum` prints it; holes are read as zeros."""

    def __init__(self) -> None:
        self._sum, self._end, self._is_known = sha256(), 0, True

    def add(self, position: int, data: bytes) -> None:
        """Adds the data at that position, which must be after all data added before."""
        self._add_hole(position - self._end)
        self._sum.update(data)
        self._end = position + len(data)

    def digest(self, size: int) -> bytes | None:
        """Returns the digest of a file of that size; None for a file with long holes, which is never recorded."""
        self._add_hole(size - self._end)
        return self._sum.digest() if self._is_known else None

    def _add_hole(self, length: int) -> None:
        self._is_known = self._is_known and length <= LONGEST_HOLE
        for _ in range(length // _BLOCK if self._is_known else 0):
            self._sum.update(_ZEROS)
        self._sum.update(_ZEROS[: length % _BLOCK])


class _DataSum:
    """SHA-256 of a file without its holes and its blocks of zeros. The end offset of each is part of the digest."""

    def __init__(self) -> None:
        self._sum, self._end = sha256(), 0

    def add(self, position: int, data: bytes) -> None:
        """Adds the data at that position, which must be after all data added before."""
        for first, behind in runs_without_zeros(data):
            if position + first != self._end:
                self._sum.update(b"hole up to %d" % (position + first))
            self._end = position + behind
            self._sum.update(data if behind - first == len(data) else data[first:behind])

    def digest(self) -> bytes:
        return self._sum.digest()


def small_buffer() -> mmap:
    """Returns a buffer of PIECE bytes for `read_small`.

    It is shared memory: a fork may take the pages of a private buffer away during a read (open(2), O_DIRECT). All its pages exist
    from the start: into a missing page, btrfs reads through the page cache.
    """
    return mmap(-1, PIECE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE)


def read_small(fd: int, path: bytes, size: int, key: Key, buffer: mmap) -> FileRead:
    """Reads a file of at most PIECE bytes, opened with O_DIRECT, into a `small_buffer`; closes it. Also returns the SHA-256 of its
    content (`plain`). The digest is that of `read_file`. The data comes from the disk past the page cache, into the same few pages
    each time, which takes less than `read_file`. Raises OSError for anything but damage.
    """
    with memoryview(buffer) as room:
        try:
            # the page cache is still used for compressed and inline data, and for all that this kernel cannot read directly
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not _fills(fd, room, 0, size):
                bad = _first_bad(fd, room, size)
                return FileRead(path, key, bad, NO_DIGEST, bad)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        with room[:size] as data:
            plain = digest = sha256(data).digest()
    if 0 in buffer[:size:_BLOCK]:  # there may be holes
        without_zeros = _DataSum()
        without_zeros.add(0, buffer[:size])
        digest = without_zeros.digest()
    return FileRead(path, key, size, digest, None, plain)


def _first_bad(fd: int, room: memoryview, size: int) -> int:
    """Returns the first byte of a file that cannot be read; 0 if all can be read now, though a moment ago they could not."""
    return next((place for place in range(0, size, _BLOCK) if not _fills(fd, room, place, min(_BLOCK, size - place))), 0)


def _fills(fd: int, room: memoryview, position: int, length: int) -> bool:
    """Reads this many bytes and up to the end of their page, as O_DIRECT requires; returns False if they are incomplete."""
    try:
        with room[: -(-length // PAGESIZE) * PAGESIZE] as part:
            return os.preadv(fd, [part], position) >= length
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        return False


def read_file(
    fd: int, path: bytes, size: int, key: Key, goes_on: Callable[[], bool], plain: PlainSum | None = None
) -> FileRead | None:
    """Reads a file of that size from the disk, not from memory, and closes it. Raises OSError for anything but damage.

    Calls `goes_on`, which may take long, before each piece; returns None if it returns False. The digest is that of `sha256sum`,
    unless there are holes or blocks of zeros, which count as equal, because deduplication may turn one into the other: these are
    left out, and their end offsets are part of the digest.
    """
    digest, position, count = _DataSum(), 0, 0
    with ClosingFd(fd):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            # in a small file, reading the zeros of a hole is faster than searching for holes
            for start, end in ((0, size),) if size <= PIECE else data_runs(fd, size):
                position = start
                while position < end:
                    if not goes_on():
                        return None
                    data = os.pread(fd, min(PIECE, end - position), position)
                    if not data:
                        raise OSError(errno.EIO, "the file is shorter than its reported size")
                    digest.add(position, data)
                    if plain:
                        plain.add(position, data)
                    position += len(data)
                    count += len(data)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            return FileRead(path, key, count, NO_DIGEST, position)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # free the page cache
    return FileRead(path, key, count, digest.digest(), None, plain.digest(size) if plain else None)


def runs_without_zeros(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the positions of data that is not in a block of zeros, in order; `data` begins at a block."""
    begun, heads = 0, data[::_BLOCK]
    block = heads.find(0)  # the first byte of most blocks is not zero
    while block >= 0:
        place = block * _BLOCK
        if data.startswith(_ZEROS[: len(data) - place], place):
            if begun < place:
                yield begun, place
            begun = place + _BLOCK
        block = heads.find(0, block + 1)
    if begun < len(data):
        yield begun, len(data)
