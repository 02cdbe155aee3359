"""Chunks and their pieces on the devices, from the chunk tree and the device tree.

Layouts: struct btrfs_chunk, btrfs_stripe, btrfs_dev_extent in btrfs_tree.h.
"""

from dataclasses import dataclass

import numpy as np
from btrfs import ctree

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import HEADER_SIZE, TOP, Key, TreeSearch

_CHUNK = np.dtype(
    [("length", U64), ("owner", U64), ("stripe_len", U64), ("type", U64), ("sizes", "<u4", 3), ("stripes", "<u2"), ("sub", "<u2")]
)
_STRIPE = np.dtype([("devid", U64), ("paddr", U64), ("uuid", "V16")])
_DEV_EXTENT = np.dtype([("tree", U64), ("objectid", U64), ("vaddr", U64), ("length", U64), ("uuid", "V16")])
_FIRST: Key = (ctree.FIRST_CHUNK_TREE_OBJECTID, ctree.CHUNK_ITEM_KEY, 0)
_LAST: Key = (ctree.FIRST_CHUNK_TREE_OBJECTID, ctree.CHUNK_ITEM_KEY, TOP)


@dataclass(frozen=True, slots=True)
class Chunks:
    """u64[n] each, by address; `type` holds the flags of use and profile, `stripes` (int64) is their number.

    Of all m stripes in that order: `stripe_chunk` int64[m], the chunk's index, `stripe_devid` and `stripe_paddr` u64[m].
    """

    vaddr: Array
    length: Array
    type: Array
    stripes: Array
    stripe_chunk: Array
    stripe_devid: Array
    stripe_paddr: Array


@dataclass(frozen=True, slots=True)
class DeviceExtents:
    """u64[n] each, by device and place on it. `vaddr` is that of the chunk."""

    devid: Array
    paddr: Array
    vaddr: Array
    length: Array


def chunks(fd: int) -> Chunks:
    """All chunks. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    parts, seen = [], 0
    search = TreeSearch(fd, ctree.CHUNK_TREE_OBJECTID, _FIRST, _LAST)
    for at, found in batches(search):
        chunk = gathered(search.buffer, at + HEADER_SIZE, _CHUNK)
        stripes = chunk["stripes"].astype(np.int64)
        which = np.repeat(np.arange(len(at)), stripes)
        number = np.arange(len(which)) - np.repeat(np.cumsum(stripes) - stripes, stripes)
        stripe = gathered(search.buffer, at[which] + HEADER_SIZE + _CHUNK.itemsize + number * _STRIPE.itemsize, _STRIPE)
        parts.append((found["offset"], chunk["length"], chunk["type"], stripes, which + seen, stripe["devid"], stripe["paddr"]))
        seen += len(at)
    return Chunks(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def device_extents(fd: int) -> DeviceExtents:
    """All device extents. Raises OSError."""
    parts = []
    first, last = (1, ctree.DEV_EXTENT_KEY, 0), (TOP, ctree.DEV_EXTENT_KEY, TOP)
    search = TreeSearch(fd, ctree.DEV_TREE_OBJECTID, first, last)
    for at, found in batches(search):
        at_extent = at[found["type"] == ctree.DEV_EXTENT_KEY]  # the range of keys holds a device's other items too
        key, extent = found[found["type"] == ctree.DEV_EXTENT_KEY], gathered(search.buffer, at_extent + HEADER_SIZE, _DEV_EXTENT)
        parts.append((key["objectid"], key["offset"], extent["vaddr"], extent["length"]))
    return DeviceExtents(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
