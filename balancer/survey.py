"""Reads a filesystem into arrays: its data block groups, their used bytes, and the layout of their free space.

Mixed block groups (data and metadata) count as data, as in python-btrfs's example. The memory is that of the block groups and one
batch of free extents.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from balancer.score import Array, FreeExtents, FreeSpaceTally, benefit, used_pct
from btrkeep.descriptors import ClosingFd
from btrkeep.treescan.block_groups import Chunks, chunks, filesystem, looked_up, used_from_free_space
from btrkeep.treescan.extents import extents, gaps
from btrkeep.treescan.free_space import free_space, has_free_space_tree

DATA = 1  # BTRFS_BLOCK_GROUP_DATA, btrfs_tree.h


@dataclass(frozen=True, slots=True)
class DataBlockGroups:
    """Data block groups, by address: `vaddr`, `length`, `used`, `largest_free` u64[n]; the others as in `balancer.score`."""

    vaddr: Array
    length: Array
    used: Array
    used_pct: Array
    fragments: Array
    largest_free: Array
    score: Array
    benefit: Array


@dataclass(frozen=True, slots=True)
class Survey:
    """All data block groups, and the histogram of their free extents."""

    groups: DataBlockGroups
    free: int
    """Total free bytes."""
    extents: Array
    """i64[SIZES]: number of free extents by size class."""
    bytes: Array
    """i64[SIZES]: their bytes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a block group contains, which determines the cost of moving it."""

    extents: int
    """Number of its extents."""
    references: int
    """Number of references of file extents and tree blocks to its extents."""
    moves: int
    """Bytes of all extents."""
    largest: int
    """Bytes of the largest extent."""


def filesystem_uuid(path: Path) -> str:
    """Returns the UUID of the btrfs that contains `path`, a folder or a file. Raises OSError."""
    with ClosingFd(os.open(path if path.is_dir() else path.resolve().parent, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return filesystem(fd).uuid


def survey(fd: int) -> Survey:
    """Reads all data block groups. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    chunk = chunks(fd)
    is_data = chunk.type & np.uint64(DATA) != 0
    return _counted(fd, chunk, chunk.vaddr[is_data], chunk.length[is_data])


def _counted(fd: int, chunk: Chunks, vaddr: Array, length: Array) -> Survey:
    tally = FreeSpaceTally(vaddr, length)
    if has_free_space_tree(fd):
        is_counted = _count_free_space(fd, vaddr, length, tally)
        free = tally.finish()
        used = used_from_free_space(fd, chunk, vaddr, free.free)
    else:
        for batch in gaps(fd, vaddr, length):
            tally.add(*batch)
        free = tally.finish()
        block_groups = looked_up(fd, vaddr, length)
        is_counted = _among(vaddr, block_groups.vaddr)
        used = np.zeros(len(vaddr), np.uint64)
        used[is_counted] = block_groups.used
    return surveyed(vaddr, length, used, free, is_counted)


def _count_free_space(fd: int, vaddr: Array, length: Array, tally: FreeSpaceTally) -> Array:
    """bool[n]: which of the chunks are block groups. One that was removed after the chunks were read is no longer in this tree."""
    if not len(vaddr):
        return np.zeros(0, bool)
    seen = []
    for batch in free_space(fd, int(vaddr[0]), int(vaddr[-1] + length[-1]) - 1):
        seen.append(batch.group_vaddr)
        tally.add(batch.vaddr, batch.length)
    return _among(vaddr, np.concatenate(seen)) if seen else np.zeros(len(vaddr), bool)


def _among(values: Array, others: Array) -> Array:
    """bool[n]: which of `values` are in `others`; both are sorted, so hashing as in numpy.isin is unnecessary."""
    if not len(others):
        return np.zeros(len(values), bool)
    return np.asarray(others[np.minimum(np.searchsorted(others, values), len(others) - 1)] == values)


def surveyed(vaddr: Array, length: Array, used: Array, free: FreeExtents, is_counted: Array) -> Survey:
    """Combines the data of block groups, u64[n] each; `is_counted`, bool[n]: those that still exist."""
    vaddr, length, used, score = vaddr[is_counted], length[is_counted], used[is_counted], free.score[is_counted]
    share, fragments, largest = used_pct(used, length), free.fragments[is_counted], free.largest[is_counted]
    groups = DataBlockGroups(vaddr, length, used, share, fragments, largest, score, benefit(score, used))
    return Survey(groups, int(free.free[is_counted].sum()), free.extents, free.bytes)


def cost(fd: int, vaddr: int, length: int) -> Cost:
    """Reads the cost of a block group from the extent tree. Raises OSError."""
    count = references = moves = largest = 0
    for batch in extents(fd, vaddr, vaddr + length - 1):
        if len(batch.vaddr):
            count += len(batch.vaddr)
            references += int(batch.refs.sum())
            moves += int(batch.length.sum())
            largest = max(largest, int(batch.length.max()))
    return Cost(count, references, moves, largest)
