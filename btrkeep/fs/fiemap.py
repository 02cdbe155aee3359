"""Finds where a file's data is on disk, by the FIEMAP ioctl (Documentation/filesystems/fiemap.rst of the kernel)."""

from collections.abc import Iterator
from itertools import zip_longest
from struct import Struct

from btrkeep.ioctl import ioctl

Run = tuple[int, int]  # from here, up to there: offsets in a file, bytes

_FIEMAP = 0xC020660B
_HEADER = Struct("=QQLLLL")  # start, length, flags, mapped extents, extent count, reserved
_EXTENT = Struct("=QQQ16xL12x")  # logical, physical, length, flags
_SYNC = 0x1  # what is not on disk yet has no extent, or that of the data it overwrites
_BATCH = 512
_LAST, _ENCODED, _SHARED = 0x1, 0x8, 0x2000
NO_PLACE = 0x2 | 0x4 | 0x200  # unknown, not written yet, inline
# unknown, delalloc, encoded (compressed), encrypted, not aligned, inline, tail, unwritten, shared
_NOT_PRIVATE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x2000


def is_private(flags: int) -> bool:
    """True if only this file refers to an extent with these flags, and plain data is in it: it is not shared with a snapshot or a
    reflink, not compressed, inline or preallocated.
    """
    return not flags & _NOT_PRIVATE


def extents(fd: int, at_a_time: int = _BATCH) -> Iterator[tuple[int, int, int, int]]:
    """All extents as the kernel has them: logical and physical place, length, flags. Flushes the file first. Raises OSError.

    So many are asked for at a time: for each the kernel looks for all that refer to it.
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
    """Writes the file's data out and waits until the filesystem has its extents; no commit, no barrier. Raises OSError."""
    next(extents(fd, 1), None)


def address(fd: int, offset: int) -> int | None:
    """Returns the btrfs logical address of the byte at `offset`; of a compressed extent, the address of its begin. Returns None for
    a hole or inline data, which have no address of their own. Raises OSError.
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
    """Compares the parts of compressed extents by the subvolume's tree, because FIEMAP tells only where such an extent begins."""
    from btrkeep.treescan.extents import parts_of_file  # NumPy takes time to load

    parts = parts_of_file(fd)
    return parts is not None and parts == parts_of_file(other)
