"""The data of a regular file: reads, copies and compares it in pieces, without its holes; and finds its place on disk with FIEMAP.

`PieceBuffer` compares parts of two files as they are on the disk, bypassing the page cache if the filesystem supports that
(O_DIRECT). For a gibibyte of each file this takes a ninth of the processor time of reads through the page cache, and leaves the
memory to others.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from struct import Struct

from btrkeep.descriptors import ioctl

PIECE = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
Run = tuple[int, int]  # start and end offset in a file, in bytes


class SourceUnreadable(OSError):
    """The source of a copy cannot be read. Any other OSError of a copy is about its destination."""


@contextmanager
def at_source() -> Iterator[None]:
    """Raises SourceUnreadable for an OSError."""
    try:
        yield
    except OSError as error:
        raise SourceUnreadable(error.errno, error.strerror or str(error), error.filename) from error


def data_runs(fd: int, size: int, position: int = 0) -> Iterator[Run]:
    """Yields the runs of data from `position` up to `size`; holes and preallocated space are not data. Raises OSError."""
    while position < size and (position := _next_data(fd, position, size)) < size:
        end = min(os.lseek(fd, position, os.SEEK_HOLE), size)
        yield position, end
        position = end


def _next_data(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # only a hole up to the end
            raise
        return size


def pieces(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Yields the bytes from `start` up to `end`. Raises OSError, also if the file ends before that."""
    while start < end:
        data = os.pread(fd, min(PIECE, end - start), start)
        if not data:
            raise OSError(errno.EIO, "the file is shorter than its reported size")
        yield data
        start += len(data)


def copy_run(source: int, copy: int, start: int, end: int) -> Iterator[int]:
    """Copies the bytes from `start` up to `end` to the same position in another open file; yields the number after each piece.

    The kernel copies them directly (sendfile), in half of the time of read and write. Its error does not show the side; a read and
    a write do. Raises OSError; SourceUnreadable, also if the source ends before that.
    """
    os.lseek(copy, start, os.SEEK_SET)
    while start < end:
        try:
            number = os.sendfile(copy, source, start, min(PIECE, end - start))
        except OSError:
            number = 0
        if not number:
            with at_source():
                data = next(pieces(source, start, end))
            number = os.write(copy, data)
        yield number
        start += number


def send_run(source: int, stream: int, start: int, end: int) -> Iterator[int]:
    """Copies the bytes from `start` up to `end` to an open stream in the kernel (sendfile); yields the number after each piece.

    Raises nothing: it ends early at any error. The caller then reads and writes the rest, which shows the error and its source.
    """
    while start < end:
        try:
            number = os.sendfile(stream, source, start, min(PIECE, end - start))
        except OSError:
            return
        if not number:
            return
        yield number
        start += number


def begin_writing(fd: int, start: int, end: int) -> None:
    """Makes the disk start to write a part of a file, so that a later sync waits for less. That sync reports any error."""
    _libc.sync_file_range(fd, start, end - start, _SYNC_FILE_RANGE_WRITE)


_PAGE = os.sysconf("SC_PAGESIZE")
_memory = ctypes.CDLL(None)
_memory.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class PieceBuffer:
    """Memory for a piece of a file, `size` bytes.

    It is shared memory: a fork may take pages of private memory away from a read in progress (open(2), O_DIRECT). All its pages
    exist from the start: into a missing page, btrfs reads through the page cache.
    """

    def __init__(self, size: int = PIECE) -> None:
        from mmap import MAP_ANONYMOUS, MAP_POPULATE, MAP_SHARED, mmap  # few commands need it

        self.size = size
        self._room = mmap(-1, size, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._room))

    def read(self, fd: int, start: int, length: int) -> None:
        """Reads that many bytes, at most `size`. Raises OSError, also if the file ends before that."""
        done, end = 0, -(-length // _PAGE) * _PAGE
        with memoryview(self._room) as room:
            while done < length:
                try:
                    with room[done:end] as part:
                        number = os.preadv(fd, [part], start + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not bypass_page_cache(fd, wanted=False):
                        raise
                    continue  # not aligned as this filesystem requires
                if not number:
                    raise OSError(errno.EIO, "the file is shorter than its reported size")
                done += number

    def equals(self, other: "PieceBuffer", length: int) -> bool:
        """Returns True if the first `length` bytes are equal."""
        return not _memory.memcmp(self._address, other._address, length)


def bypass_page_cache(fd: int, *, wanted: bool) -> bool:
    """Makes an open file bypass the page cache, or use it again. Returns False if that is not possible."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if bool(flags & os.O_DIRECT) == wanted:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags ^ os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


_FIEMAP = 0xC020660B
_HEADER = Struct("=QQLLLL")  # start, length, flags, mapped extents, extent count, reserved
_EXTENT = Struct("=QQQ16xL12x")  # logical, physical, length, flags
_SYNC = 0x1  # without it, unwritten data has no extent, or that of the overwritten data
_BATCH = 512
_LAST, _ENCODED, _SHARED = 0x1, 0x8, 0x2000
NO_PLACE = 0x2 | 0x4 | 0x200  # unknown, not written yet, inline
# unknown, delalloc, encoded (compressed), encrypted, not aligned, inline, tail, unwritten, shared
_NOT_PRIVATE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x2000


def is_private(flags: int) -> bool:
    """True if only this file refers to an extent with these flags, and it contains plain data: it is not shared with a snapshot or
    a reflink, not compressed, inline or preallocated.
    """
    return not flags & _NOT_PRIVATE


def extents(fd: int, at_a_time: int = _BATCH) -> Iterator[tuple[int, int, int, int]]:
    """Yields all extents as the kernel reports them: logical and physical position, length, flags. Flushes the file first. Raises
    OSError.

    That many are requested at a time: for each the kernel searches for all references.
    """
    buffer = bytearray(_HEADER.size + at_a_time * _EXTENT.size)
    position, flags = 0, 0
    while not flags & _LAST:
        _HEADER.pack_into(buffer, 0, position, 2**64 - 1 - position, _SYNC, 0, at_a_time, 0)
        ioctl(fd, _FIEMAP, buffer)
        mapped = _HEADER.unpack_from(buffer)[3]
        if not mapped:
            return
        for number in range(mapped):
            logical, physical, length, flags = _EXTENT.unpack_from(buffer, _HEADER.size + number * _EXTENT.size)
            position = logical + length
            yield logical, physical, length, flags


def settle(fd: int) -> None:
    """Writes the file's data and waits until the filesystem has its extents; no commit, no barrier. Raises OSError."""
    next(extents(fd, 1), None)


def address(fd: int, offset: int) -> int | None:
    """Returns the btrfs logical address of the byte at `offset`; for a compressed extent, the address of its start. Returns None
    for a hole or inline data, which have no address of their own. Raises OSError.
    """
    for logical, physical, length, flags in extents(fd):
        if logical <= offset < logical + length:
            if flags & NO_PLACE:
                return None
            return physical if flags & _ENCODED else physical + offset - logical
    return None


def share_all(fd: int, other: int) -> bool:
    """Returns True if two files of one btrfs refer to exactly the same data on disk: an unmodified reflink.

    Inline data has no address of its own, so such files do not count. Raises OSError.
    """
    compressed = False
    for ours, theirs in zip_longest(extents(fd), extents(other)):
        if not ours or not theirs or _place(ours) != _place(theirs) or ours[3] & NO_PLACE:
            return False
        compressed = compressed or bool(ours[3] & _ENCODED)
    return not compressed or _same_parts(fd, other)


def _place(extent: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    return (*extent[:3], extent[3] & ~(_LAST | _SHARED))


def _same_parts(fd: int, other: int) -> bool:
    """Compares the parts of compressed extents with the subvolume's tree, because FIEMAP reports only the start of such
    an extent.
    """
    from btrkeep.treescan.extents import parts_of_file  # NumPy is slow to import

    parts = parts_of_file(fd)
    return parts is not None and parts == parts_of_file(other)


_SEARCH = 0xC0709411  # BTRFS_IOC_TREE_SEARCH_V2
_SEARCH_KEY = Struct("=7Q4L4QQ")  # tree, inodes, offsets, generations, types, number of items, unused, bytes for items
_COUNT, _COUNT_AT = Struct("=L"), 64
_ITEM = Struct("=QQQLLQ")  # generation, inode, offset in the file, type, length; generation of the extent
_EXTENT_DATA, _MOST, _MOST_ITEMS = 108, 2**64 - 1, 16
_SEARCH_SIZE = 16 << 10  # bytes for that many items, one of them with inline data
_search_buffer = bytearray(_SEARCH_KEY.size + _SEARCH_SIZE)


def have_same_items(folder: int, inode: int, other_folder: int, other_inode: int) -> bool:
    """Returns True if two files of one btrfs refer to the same data, or have the same inline data, by the items of their trees.

    Each is the inode of that number in the subvolume of an open folder. The files are not opened. Delayed data is not included:
    sync the filesystem first. Files with many extents are not the same. Raises OSError; EPERM without CAP_SYS_ADMIN.
    """
    items = _extent_items(folder, inode)
    return bool(items) and items == _extent_items(other_folder, other_inode)


def _extent_items(folder: int, inode: int) -> list[tuple[int, bytes]]:
    """Returns the offset of each extent in the file, and its item without generations; nothing if there are too many."""
    _SEARCH_KEY.pack_into(
        _search_buffer, 0, 0, inode, inode, 0, _MOST, 0, _MOST, _EXTENT_DATA, _EXTENT_DATA, _MOST_ITEMS, 0, 0, 0, 0, 0, _SEARCH_SIZE
    )
    ioctl(folder, _SEARCH, _search_buffer)
    count = _COUNT.unpack_from(_search_buffer, _COUNT_AT)[0]
    items, at = list[tuple[int, bytes]](), _SEARCH_KEY.size
    for _ in range(count if count < _MOST_ITEMS else 0):
        _, _, offset, _, length, _ = _ITEM.unpack_from(_search_buffer, at)
        end = at + _ITEM.size - 8 + length
        items.append((offset, bytes(_search_buffer[at + _ITEM.size : end])))
        at = end
    return items
