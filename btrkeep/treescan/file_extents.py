"""The extents that the files of a subvolume refer to, from its tree.

An EXTENT_DATA item (struct btrfs_file_extent_item) of a regular extent ends with its address and its length on disk; an inline
one has data instead, a hole the address 0.
"""

from collections.abc import Iterator

import numpy as np
from btrfs import ctree

from btrkeep.treescan.items import U64, Array, gathered, headers, positions
from btrkeep.treescan.search import BUFFER_SIZE, HEADER_SIZE, TreeSearch

_INLINE = 0
_ITEM = np.dtype([("generation", U64), ("ram_bytes", U64), ("encoding", "<u4"), ("type", "u1"), ("vaddr", U64), ("length", U64)])


def file_extents(fd: int, *, buffer_size: int = BUFFER_SIZE) -> Iterator[tuple[Array, Array]]:
    """(vaddr, length) u64[n] each, a batch for each buffer, of the subvolume that `fd` is in; bytes on disk, so after compression.

    An extent comes as often as a file refers to it. Inline data and holes are left out. Raises OSError.
    """
    search = TreeSearch(fd, buffer_size=buffer_size)
    while count := search.fill():
        at = positions(search.buffer, search.first_header, count)
        found = headers(search.buffer, at)
        is_extent = (found["type"] == ctree.EXTENT_DATA_KEY) & (found["len"] >= _ITEM.itemsize)
        item = gathered(search.buffer, at[is_extent] + HEADER_SIZE, _ITEM)
        item = item[(item["type"] != _INLINE) & (item["vaddr"] != 0)]
        yield item["vaddr"], item["length"]
        search.resume_after(int(at[-1]))


def distinct_extents(fd: int) -> tuple[Array, Array]:
    """The same, each extent once, by address."""
    parts = list(file_extents(fd))
    vaddr, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True) if parts else (np.zeros(0, U64), ())
    length = np.concatenate([part[1] for part in parts])[first] if parts else np.zeros(0, U64)
    return vaddr, length
