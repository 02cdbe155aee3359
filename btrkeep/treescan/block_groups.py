"""Block groups: how much of each is used.

They are items of the block group tree where the filesystem has one, and then read in bulk. Otherwise they are spread through the
extent tree, between the extents, and each is looked up at its chunk's address. `used_from_free_space` needs neither.
"""

from dataclasses import dataclass
from struct import Struct

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.chunks import Chunks
from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import HEADER_SIZE, TreeSearch

_ITEM = np.dtype([("used", U64), ("chunk_objectid", U64), ("flags", U64)])
_ITEM_FIELDS = Struct("<QQQ")  # the same, for one
_KEY: int = ctree.BLOCK_GROUP_ITEM_KEY
_ONE_ITEM = 256  # bytes of buffer, for one item of 24 and its header
_SUPER_COPIES = np.array([64 << 10, 64 << 20, 256 << 30], U64)  # btrfs_sb_offset(), fs/btrfs/disk-io.h
_SUPER_SIZE = 4096


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """u64[n] each, by address. `flags` are those of use and profile."""

    vaddr: Array
    length: Array
    used: Array
    flags: Array


def has_block_group_tree(fd: int) -> bool:
    """Returns True if block groups are in a tree of their own."""
    return bool(ioctl.get_features(fd).compat_ro_flags & ioctl.FEATURE_COMPAT_RO_BLOCK_GROUP_TREE)


def block_groups(fd: int, chunk: Chunks) -> BlockGroups:
    """Returns all block groups, without any that vanish meanwhile. Raises OSError."""
    if has_block_group_tree(fd):
        return _in_bulk(fd)
    return looked_up(fd, chunk.vaddr, chunk.length)


def _in_bulk(fd: int) -> BlockGroups:
    parts = []
    search = TreeSearch(fd, ctree.BLOCK_GROUP_TREE_OBJECTID)
    for at, found in batches(search):
        item = gathered(search.buffer, at + HEADER_SIZE, _ITEM)
        parts.append((found["objectid"], found["offset"], item["used"], item["flags"]))
    return BlockGroups(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def looked_up(fd: int, vaddr: Array, length: Array) -> BlockGroups:
    """The block groups of these chunks, one search each: some microseconds a piece."""
    tree = ctree.BLOCK_GROUP_TREE_OBJECTID if has_block_group_tree(fd) else ctree.EXTENT_TREE_OBJECTID
    search = TreeSearch(fd, tree, buffer_size=_ONE_ITEM)
    rows = []
    for one, size in zip(vaddr.tolist(), length.tolist(), strict=True):
        search.only((one, _KEY, size))
        if search.fill():  # else it was removed since the chunks were read, which is normal
            used, _, flags = _ITEM_FIELDS.unpack_from(search.buffer, search.first_header + HEADER_SIZE)
            rows.append((one, size, used, flags))
    return BlockGroups(*np.array(rows, U64).reshape(-1, 4).T)


def used_from_free_space(fd: int, chunk: Chunks, vaddr: Array, free: Array) -> Array:
    """u64[n], the used bytes of the block groups at `vaddr` (some of `chunk`'s, in its order) that have so much free: the rest.

    Where a copy of the superblock lies is nothing that the free space tree speaks of. It counts as free on the kernels that were
    tried; to depend on that for the three copies of a device is not worth it, so block groups that may hold one are looked up.
    """
    index = np.searchsorted(chunk.vaddr, vaddr)
    used = chunk.length[index] - free
    holds_super = np.zeros(len(chunk.vaddr), bool)
    end = chunk.stripe_paddr + chunk.length[chunk.stripe_chunk]  # a stripe is no longer than its chunk
    for copy in _SUPER_COPIES:
        holds_super[chunk.stripe_chunk[(chunk.stripe_paddr < copy + _SUPER_SIZE) & (end > copy)]] = True
    for place in np.flatnonzero(holds_super[index]).tolist():
        one = looked_up(fd, chunk.vaddr[index[place]][None], chunk.length[index[place]][None])
        if len(one.used):
            used[place] = one.used[0]
    return used
