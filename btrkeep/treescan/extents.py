"""Extents: all of the extent tree with their owners, the gaps between them, and those to which the files of a subvolume refer.

An EXTENT_ITEM or METADATA_ITEM starts with refs, generation and flags (struct btrfs_extent_item). For a tree block in an
EXTENT_ITEM its first key and level follow (btrfs_tree_block_info). Then come inline references (btrfs_extent_inline_ref); the first
of them names the owner, unless the extent is shared through another tree block.

An EXTENT_DATA item (struct btrfs_file_extent_item) of a regular extent ends with its address and its length on disk; an inline one
has data instead, a hole the address 0.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import BUFFER_SIZE, HEADER, HEADER_SIZE, TOP, TreeSearch

_EXTENT: int = ctree.EXTENT_ITEM_KEY
_METADATA: int = ctree.METADATA_ITEM_KEY
_TREE_BLOCK: int = ctree.EXTENT_FLAG_TREE_BLOCK
_ITEM = np.dtype([("refs", U64), ("generation", U64), ("flags", U64)])
_BLOCK_INFO = np.dtype([("key", "V17"), ("level", "u1")])
_INLINE = np.dtype([("type", "u1"), ("owner", U64)])
_OWNER_REF = 172  # BTRFS_EXTENT_OWNER_REF_KEY, with simple quotas
_NAMES_ITS_TREE = (ctree.TREE_BLOCK_REF_KEY, ctree.EXTENT_DATA_REF_KEY, _OWNER_REF)
_OLD_ITEM_SIZE = 4  # on filesystems before 2008, struct btrfs_extent_item_v0
SHARED = 0
"""The owner of an extent whose first reference names no tree."""


@dataclass(frozen=True, slots=True)
class Extents:
    """A batch, by address: u64[n] each, `is_tree_block` bool[n]. `refs`: number of references. `owner`: a tree's id, or SHARED."""

    vaddr: Array
    length: Array
    refs: Array
    generation: Array
    is_tree_block: Array
    owner: Array


def extents(fd: int, first: int = 0, last: int = TOP, *, buffer_size: int = BUFFER_SIZE) -> Iterator[Extents]:
    """Yields the extents that start at virtual addresses from `first` to `last`, a batch for each buffer. Raises OSError."""
    node = int(ioctl.fs_info(fd).nodesize)
    search = TreeSearch(fd, ctree.EXTENT_TREE_OBJECTID, (first, 0, 0), (last, 255, TOP), buffer_size=buffer_size)
    for at, keys in batches(search):
        is_extent = ((keys["type"] == _EXTENT) | (keys["type"] == _METADATA)) & (keys["len"] > _OLD_ITEM_SIZE)
        yield _batch(search.buffer, at[is_extent], keys[is_extent], node)


def _batch(buffer: bytearray, at: Array, keys: Array, node: int) -> Extents:
    item = gathered(buffer, at + HEADER_SIZE, _ITEM)
    is_metadata_item = keys["type"] == _METADATA
    is_tree_block = is_metadata_item | (item["flags"] & np.uint64(_TREE_BLOCK) != 0)
    length = np.where(is_metadata_item, U64.type(node), keys["offset"])
    before = HEADER_SIZE + _ITEM.itemsize + np.where(is_tree_block & ~is_metadata_item, _BLOCK_INFO.itemsize, 0)
    has_inline = keys["len"] + HEADER_SIZE >= before + _INLINE.itemsize
    inline = gathered(buffer, np.where(has_inline, at + before, 0), _INLINE)
    owner = np.where(has_inline & np.isin(inline["type"], _NAMES_ITS_TREE), inline["owner"], U64.type(SHARED))
    return Extents(keys["objectid"], length, item["refs"], item["generation"], is_tree_block, owner)


def gaps(fd: int, vaddr: Array, length: Array, *, buffer_size: int = BUFFER_SIZE) -> Iterator[tuple[Array, Array]]:
    """Yields the free extents of these block groups (u64[n] each, by address), the gaps between extents, in batches of (vaddr,
    length), u64[m].

    For filesystems without a free space tree. A copy of the superblock counts as free, as in python-btrfs's fallback. Reads the
    whole extent tree between the first and the last of these block groups.
    """
    if not len(vaddr):
        return
    ends = vaddr + length
    # Space outside of the block groups counts as used, so that one rule finds all gaps.
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
    """Returns the gaps before each `begin` that no earlier extent covers. `reached`: the end of the earlier ones."""
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    covered = np.maximum.accumulate(np.concatenate(([reached], end[:-1])))
    is_gap = begin > covered
    return covered[is_gap], begin[is_gap] - covered[is_gap]


_INLINE_DATA = 0
_SMALL_BUFFER = 16 * 1024
_TYPE_AT, _REST_AT = 20, 21
_REST = Struct("=QQQQ")  # vaddr, length on disk, offset in the decompressed data, length
_COMPRESSION_AT = 16
_FILE_ITEM = np.dtype(
    [("generation", U64), ("ram_bytes", U64), ("encoding", "<u4"), ("type", "u1"), ("vaddr", U64), ("length", U64)]
)


def file_extents(fd: int) -> Iterator[tuple[Array, Array]]:
    """Yields (vaddr, length) u64[n] each, a batch for each buffer, of the subvolume of `fd`; bytes on disk, so after compression.

    An extent comes once for each reference of a file. Inline data and holes are left out. Raises OSError.
    """
    search = TreeSearch(fd)
    for at, keys in batches(search):
        is_extent = (keys["type"] == ctree.EXTENT_DATA_KEY) & (keys["len"] >= _FILE_ITEM.itemsize)
        item = gathered(search.buffer, at[is_extent] + HEADER_SIZE, _FILE_ITEM)
        item = item[(item["type"] != _INLINE_DATA) & (item["vaddr"] != 0)]
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
    inode, file_parts = os.fstat(fd).st_ino, list[tuple[int, ...]]()
    first, last = (inode, ctree.EXTENT_DATA_KEY, 0), (inode, ctree.EXTENT_DATA_KEY, TOP)
    search = TreeSearch(fd, first=first, last=last, buffer_size=_SMALL_BUFFER)
    while count := search.fill():
        at = search.first_header
        for number in range(count):
            _, _, logical, _, size = HEADER.unpack_from(search.buffer, at)
            item = at + HEADER_SIZE
            if search.buffer[item + _TYPE_AT] == _INLINE_DATA:
                return None
            kind, compression = search.buffer[item + _TYPE_AT], search.buffer[item + _COMPRESSION_AT]
            file_parts.append((logical, kind, compression, *_REST.unpack_from(search.buffer, item + _REST_AT)))
            if number < count - 1:
                at += HEADER_SIZE + size
        search.resume_after(at)
    return file_parts
