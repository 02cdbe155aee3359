"""Free space, from the free space tree.

There is one FREE_SPACE_INFO for each block group; FREE_SPACE_EXTENT has everything in its key; FREE_SPACE_BITMAP has a bit for each
sector from its objectid on (struct btrfs_free_space_info and the constants beside it, btrfs_tree.h). Without such a tree, `gaps`
answers from the extent tree.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, gathered, headers, positions
from btrkeep.treescan.search import BUFFER_SIZE, HEADER_SIZE, TOP, TreeSearch

_TREE: int = ctree.FREE_SPACE_TREE_OBJECTID
_INFO: int = ctree.FREE_SPACE_INFO_KEY
_EXTENT: int = ctree.FREE_SPACE_EXTENT_KEY
_BITMAP: int = ctree.FREE_SPACE_BITMAP_KEY
_BITMAP_BYTES = 256
_BITMAP_ROW = np.dtype((U64, _BITMAP_BYTES // 8))
_HEADER_WORDS = HEADER_SIZE // 8
# The last word of a header (type and length of the payload), for the three kinds of items in this tree.
_INFO_WORD, _EXTENT_WORD, _BITMAP_WORD = _INFO | 8 << 32, _EXTENT, _BITMAP | _BITMAP_BYTES << 32


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """A batch, in order of addresses. `vaddr`, `length`: u64[n], the free extents, including those of bitmaps, without overlaps.

    A free extent that continues in the next bitmap counts as two, as in python-btrfs. `group_vaddr`, `group_length`: u64[m], the
    block groups that start in this batch, with or without free space. Some may not exist: mkfs.btrfs (6.2 to 6.14) removes
    temporary block groups and leaves their free space items behind. So only those with a chunk count.
    """

    vaddr: Array
    length: Array
    group_vaddr: Array
    group_length: Array


def has_free_space_tree(fd: int) -> bool:
    """Returns True if the filesystem has a free space tree that can be trusted."""
    valid = ioctl.FEATURE_COMPAT_RO_FREE_SPACE_TREE | ioctl.FEATURE_COMPAT_RO_FREE_SPACE_TREE_VALID
    return bool(ioctl.get_features(fd).compat_ro_flags & valid == valid)


def free_space(fd: int, first: int = 0, last: int = TOP, *, buffer_size: int = BUFFER_SIZE) -> Iterator[FreeSpace]:
    """Yields the free extents of the block groups from virtual address `first` to `last`, one batch for each buffer.

    `first` is the start of a block group and `last` the last byte of one, because a bitmap is found by its start.

    The filesystem may change during this. The kernel locks one leaf at a time, so the result is not a consistent snapshot:
    space that is used or freed during this may or may not be included, but no byte is included twice.

    Raises OSError: EPERM without CAP_SYS_ADMIN, ENOENT without a free space tree.
    """
    sector = int(ioctl.fs_info(fd).sectorsize)
    search = TreeSearch(fd, _TREE, (first, 0, 0), (last, 255, TOP), buffer_size=buffer_size)
    reached = U64.type(0)
    while count := search.fill():
        batch, last_header = _aligned(search, count, sector) or _unaligned(search, count, sector)
        search.resume_after(last_header)
        batch, reached = _apart(batch, reached)
        yield batch


def _aligned(search: TreeSearch, count: int, sector: int) -> tuple[FreeSpace, int] | None:
    """Decodes the batch as 64-bit words; returns None if the buffer has an unusual layout.

    Words may be a header if the fourth one is one of three values. The content of a bitmap may look the same, but rarely does. So
    each header must end where the next one starts, which is true only for the correct ones, because the first is known.
    """
    words = np.frombuffer(search.buffer, U64, (len(search.buffer) - search.first_header) // 8, search.first_header)
    fourth = words[_HEADER_WORDS - 1 :]
    at = np.flatnonzero((fourth == _EXTENT_WORD) | (fourth == _BITMAP_WORD) | (fourth == _INFO_WORD))[:count]
    kinds = fourth[at]
    sizes = _HEADER_WORDS + (kinds >> np.uint64(35)).view(np.int64)  # the upper half is the payload's length in bytes
    if len(at) < count or at[0] != 0 or (at[:-1] + sizes[:-1] != at[1:]).any():
        return None
    bitmaps = at[kinds == _BITMAP_WORD]
    rows = gathered(search.buffer, search.first_header + (bitmaps + _HEADER_WORDS) * 8, _BITMAP_ROW)
    extents, groups = at[kinds == _EXTENT_WORD], at[kinds == _INFO_WORD]
    aligned = _in_order(words[extents + 1], words[extents + 2], *unpacked(words[bitmaps + 1], rows, sector))
    return FreeSpace(*aligned, words[groups + 1], words[groups + 2]), search.first_header + int(at[-1]) * 8


def _unaligned(search: TreeSearch, count: int, sector: int) -> tuple[FreeSpace, int]:
    """Reads item by item: the last bitmap of a block group of an odd size is shorter, and shifts all later items."""
    at = positions(search.buffer, search.first_header, count)
    keys = headers(search.buffer, at)
    is_bitmap = keys["type"] == _BITMAP
    rows = np.zeros((int(is_bitmap.sum()), _BITMAP_BYTES), np.uint8)
    for row, begin, length in zip(rows, at[is_bitmap] + HEADER_SIZE, keys["len"][is_bitmap], strict=True):
        row[:length] = np.frombuffer(search.buffer, np.uint8, int(length), int(begin))
    extents, groups = keys[keys["type"] == _EXTENT], keys[keys["type"] == _INFO]
    bits = unpacked(keys["objectid"][is_bitmap], rows.view(U64), sector)
    return FreeSpace(*_in_order(extents["objectid"], extents["offset"], *bits), groups["objectid"], groups["offset"]), int(at[-1])


def unpacked(vaddr: Array, words: Array, sector: int) -> tuple[Array, Array]:
    """Returns the runs of set bits of bitmaps, as addresses and lengths (u64[n] each). `vaddr`: u64[m]; `words`: u64[m, 32],
    little-endian.

    Each word XORed with itself shifted by one bit has a bit at each start and after each end of a run; the bit that is shifted out
    goes into the next word, and from the last one into an additional word. So starts and ends alternate, also from row to row.
    """
    edges = np.zeros((len(words), words.shape[1] + 1), U64)
    edges[:, 1:] = words >> np.uint64(63)
    edges[:, :-1] ^= words ^ (words << np.uint64(1))
    octets = edges.view(np.uint8).ravel()
    with_edges = np.flatnonzero(octets != 0)  # only octets with an edge are unpacked; NumPy searches bool fastest
    at = np.flatnonzero(np.unpackbits(octets[with_edges], bitorder="little").view(bool))
    # The offset of each octet is computed before its bits, because there are far more bits.
    row_starts = np.arange(len(words) + 1) * (edges.shape[1] * 8)
    of_row = np.diff(np.searchsorted(with_edges, row_starts))
    octet = 8 * sector
    before = ((with_edges - np.arange(len(with_edges))) * octet).view(U64) + np.repeat(
        vaddr - (row_starts[:-1] * octet).view(U64), of_row
    )
    where = before[at >> 3]
    at *= sector
    where += at.view(U64)
    return where[0::2], where[1::2] - where[0::2]


def _in_order(vaddr: Array, length: Array, more_vaddr: Array, more_length: Array) -> tuple[Array, Array]:
    if not len(more_vaddr):
        return vaddr, length
    if not len(vaddr):
        return more_vaddr, more_length
    all_vaddr, all_length = np.concatenate((vaddr, more_vaddr)), np.concatenate((length, more_length))
    order = np.argsort(all_vaddr, kind="stable")
    return all_vaddr[order], all_length[order]


def _apart(batch: FreeSpace, reached: Any) -> tuple[FreeSpace, Any]:
    """Removes what earlier batches already had, and returns the end of this one; `reached` is the end of the earlier ones.

    An extent whose start was allocated during the scan appears again at the new start; so do those of a block group whose extents
    the kernel converts to a bitmap at that moment, or back.
    """
    if not len(batch.vaddr):
        return batch, reached
    ends = batch.vaddr + batch.length
    if batch.vaddr[0] >= reached and (batch.vaddr[1:] >= ends[:-1]).all():  # nearly always true
        return batch, ends[-1]
    covered = np.maximum.accumulate(np.concatenate(([reached], ends)))
    begin = np.maximum(batch.vaddr, covered[:-1])
    is_new = ends > begin
    return replace(batch, vaddr=begin[is_new], length=(ends - begin)[is_new]), covered[-1]
