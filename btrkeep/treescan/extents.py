"""Extents from the extent tree: their addresses, reference counts and owners; and the gaps between them.

An EXTENT_ITEM or METADATA_ITEM begins with refs, generation and flags (struct btrfs_extent_item). For a tree block in an
EXTENT_ITEM its first key and level follow (btrfs_tree_block_info). Then come inline references (btrfs_extent_inline_ref); the first
of them names the owner, unless the extent is shared through another tree block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import BUFFER_SIZE, HEADER_SIZE, TOP, TreeSearch

_EXTENT: int = ctree.EXTENT_ITEM_KEY
_METADATA: int = ctree.METADATA_ITEM_KEY
_TREE_BLOCK: int = ctree.EXTENT_FLAG_TREE_BLOCK
_ITEM = np.dtype([("refs", U64), ("generation", U64), ("flags", U64)])
_BLOCK_INFO = np.dtype([("key", "V17"), ("level", "u1")])
_INLINE = np.dtype([("type", "u1"), ("owner", U64)])
_OWNER_REF = 172  # BTRFS_EXTENT_OWNER_REF_KEY, with simple quotas
_NAMES_ITS_TREE = (ctree.TREE_BLOCK_REF_KEY, ctree.EXTENT_DATA_REF_KEY, _OWNER_REF)
_OLD_ITEM_SIZE = 4  # of filesystems before 2008, struct btrfs_extent_item_v0
SHARED = 0
"""The owner of an extent whose first reference names no tree."""


@dataclass(frozen=True, slots=True)
class Extents:
    """A batch, by address: u64[n] each, `is_tree_block` bool[n]. `refs`: references counted. `owner`: a tree's id, or SHARED."""

    vaddr: Array
    length: Array
    refs: Array
    generation: Array
    is_tree_block: Array
    owner: Array


def extents(fd: int, first: int = 0, last: int = TOP, *, buffer_size: int = BUFFER_SIZE) -> Iterator[Extents]:
    """The extents that begin at virtual addresses from `first` to `last`, a batch for each buffer. Raises OSError."""
    node = int(ioctl.fs_info(fd).nodesize)
    search = TreeSearch(fd, ctree.EXTENT_TREE_OBJECTID, (first, 0, 0), (last, 255, TOP), buffer_size=buffer_size)
    for at, found in batches(search):
        is_extent = ((found["type"] == _EXTENT) | (found["type"] == _METADATA)) & (found["len"] > _OLD_ITEM_SIZE)
        yield _batch(search.buffer, at[is_extent], found[is_extent], node)


def _batch(buffer: bytearray, at: Array, found: Array, node: int) -> Extents:
    item = gathered(buffer, at + HEADER_SIZE, _ITEM)
    is_metadata_item = found["type"] == _METADATA
    is_tree_block = is_metadata_item | (item["flags"] & np.uint64(_TREE_BLOCK) != 0)
    length = np.where(is_metadata_item, U64.type(node), found["offset"])
    before = HEADER_SIZE + _ITEM.itemsize + np.where(is_tree_block & ~is_metadata_item, _BLOCK_INFO.itemsize, 0)
    has_inline = found["len"] + HEADER_SIZE >= before + _INLINE.itemsize
    inline = gathered(buffer, np.where(has_inline, at + before, 0), _INLINE)
    owner = np.where(has_inline & np.isin(inline["type"], _NAMES_ITS_TREE), inline["owner"], U64.type(SHARED))
    return Extents(found["objectid"], length, item["refs"], item["generation"], is_tree_block, owner)


def gaps(fd: int, vaddr: Array, length: Array, *, buffer_size: int = BUFFER_SIZE) -> Iterator[tuple[Array, Array]]:
    """Yields the free extents of these block groups (u64[n] each, by address), the gaps between extents, in batches of (vaddr,
    length), u64[m].

    For filesystems without a free space tree. A copy of the superblock counts as free, as in python-btrfs's fallback. Reads the
    whole extent tree between the first and the last of these block groups.
    """
    if not len(vaddr):
        return
    ends = vaddr + length
    # What lies outside of the block groups takes part as if it were in use, so one rule finds all gaps.
    outside_at, outside_end = ends[:-1], vaddr[1:]
    reached, seen = vaddr[0], 0
    for batch in extents(fd, int(vaddr[0]), int(ends[-1]) - 1, buffer_size=buffer_size):
        if not len(batch.vaddr):
            continue
        until = int(np.searchsorted(outside_at, batch.vaddr[-1], "right"))
        begin = np.concatenate((batch.vaddr, outside_at[seen:until]))
        end = np.concatenate((batch.vaddr + batch.length, outside_end[seen:until]))
        seen = until
        yield _between(begin, end, reached)
        reached = max(reached, end.max())
    yield _between(np.append(outside_at[seen:], ends[-1]), np.append(outside_end[seen:], ends[-1]), reached)


def _between(begin: Array, end: Array, reached: Array) -> tuple[Array, Array]:
    """The gaps before each `begin` that nothing earlier covers; `reached` is how far was covered before."""
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    covered = np.maximum.accumulate(np.concatenate(([reached], end[:-1])))
    is_gap = begin > covered
    return covered[is_gap], begin[is_gap] - covered[is_gap]
