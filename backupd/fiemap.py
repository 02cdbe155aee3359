"""Where a file's data is on disk, by the FIEMAP ioctl (Documentation/filesystems/fiemap.rst of the kernel)."""

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
_LAST = 0x1
_NO_PLACE = 0x2 | 0x4 | 0x200  # unknown, not written yet, inline
# unknown, delalloc, encoded (compressed), encrypted, not aligned, inline, tail, unwritten, shared
_NOT_PRIVATE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x2000


def private_extents(fd: int) -> Iterator[Run]:
    """The extents that only this file refers to, with plain data in them: not shared with a snapshot or a reflink, not compressed,
    inline or preallocated. Neighbours on disk are one extent here. Flushes the file first. Raises OSError.
    """
    for logical, _, length, flags in extents(fd):
        if not flags & _NOT_PRIVATE:
            yield logical, logical + length


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


def share_all(fd: int, other: int) -> bool:
    """Whether two files of one filesystem refer to the very same data on disk, place by place: a reflink that nobody wrote to.

    Data that is in the metadata (inline) has no place of its own, so such files do not count.
    """
    pairs = zip_longest(extents(fd), extents(other))
    return all(ours and theirs and ours[:3] == theirs[:3] and not ours[3] & _NO_PLACE for ours, theirs in pairs)
