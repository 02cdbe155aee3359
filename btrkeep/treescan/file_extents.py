"""The extents that the files of a subvolume refer to, from its tree.

An EXTENT_DATA item (struct btrfs_file_extent_item) of a regular extent ends with its address and its length on disk; an inline
one has data instead, a hole the address 0.
"""

import os
from collections.abc import Iterator
from struct import Struct

import numpy as np
from btrfs import ctree

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import HEADER, HEADER_SIZE, TOP, TreeSearch

_INLINE = 0
_SMALL_BUFFER = 16 * 1024
_TYPE_AT, _REST_AT = 20, 21
_REST = Struct("=QQQQ")  # vaddr, length on disk, from here in what it decompresses to, so many bytes
_COMPRESSION_AT = 16
_ITEM = np.dtype([("generation", U64), ("ram_bytes", U64), ("encoding", "<u4"), ("type", "u1"), ("vaddr", U64), ("length", U64)])


def file_extents(fd: int) -> Iterator[tuple[Array, Array]]:
    """(vaddr, length) u64[n] each, a batch for each buffer, of the subvolume that `fd` is in; bytes on disk, so after compression.

    An extent comes as often as a file refers to it. Inline data and holes are left out. Raises OSError.
    """
    search = TreeSearch(fd)
    for at, found in batches(search):
        is_extent = (found["type"] == ctree.EXTENT_DATA_KEY) & (found["len"] >= _ITEM.itemsize)
        item = gathered(search.buffer, at[is_extent] + HEADER_SIZE, _ITEM)
        item = item[(item["type"] != _INLINE) & (item["vaddr"] != 0)]
        yield item["vaddr"], item["length"]


def distinct_extents(fd: int) -> tuple[Array, Array]:
    """Returns the same, each extent once, by address."""
    parts = list(file_extents(fd))
    vaddr, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True) if parts else (np.zeros(0, U64), ())
    length = np.concatenate([part[1] for part in parts])[first] if parts else np.zeros(0, U64)
    return vaddr, length


def parts_of_file(fd: int) -> list[tuple[int, ...]] | None:
    """Returns the extents of the file `fd` in order: (logical, type, compression, vaddr, length on disk, offset in the decompressed
    data, bytes); holes have the vaddr 0. Returns None if data is inline and so has no address of its own.

    Delayed data is not included: flush the file first. Needs CAP_SYS_ADMIN. Raises OSError.
    """
    inode, found = os.fstat(fd).st_ino, list[tuple[int, ...]]()
    first, last = (inode, ctree.EXTENT_DATA_KEY, 0), (inode, ctree.EXTENT_DATA_KEY, TOP)
    search = TreeSearch(fd, first=first, last=last, buffer_size=_SMALL_BUFFER)
    while count := search.fill():
        at = search.first_header
        for number in range(count):
            _, _, logical, _, size = HEADER.unpack_from(search.buffer, at)
            item = at + HEADER_SIZE
            if search.buffer[item + _TYPE_AT] == _INLINE:
                return None
            kind, compression = search.buffer[item + _TYPE_AT], search.buffer[item + _COMPRESSION_AT]
            found.append((logical, kind, compression, *_REST.unpack_from(search.buffer, item + _REST_AT)))
            if number < count - 1:
                at += HEADER_SIZE + size
        search.resume_after(at)
    return found
