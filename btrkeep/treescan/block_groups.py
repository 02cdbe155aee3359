"""The filesystem, its devices, the chunks on them, and how much of each block group is used.

Layouts: struct btrfs_dev_item (its first fields), btrfs_chunk, btrfs_stripe, btrfs_dev_extent in btrfs_tree.h. Devices and chunks
are items of the chunk tree. Block groups are items of the block group tree where the filesystem has one, and then read in bulk.
Otherwise they are spread through the extent tree, between the extents, and each is looked up at its chunk's address.
`used_from_free_space` needs neither.
"""

from dataclasses import dataclass
from struct import Struct

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import HEADER_SIZE, TOP, Key, TreeSearch

_DEVICE = np.dtype([("devid", U64), ("total_bytes", U64), ("bytes_used", U64)])


@dataclass(frozen=True, slots=True)
class Devices:
    """u64[n] each, by devid. `total_bytes`: the part of the device that the filesystem may use."""

    devid: Array
    total_bytes: Array


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Parameters on which every tree of the filesystem depends."""

    uuid: str
    """The filesystem's UUID."""
    nodesize: int
    """Bytes."""
    sectorsize: int
    """Bytes."""


def filesystem(fd: int) -> Filesystem:
    """Identifies the filesystem of `fd`. Needs no privilege. Raises OSError: ENOTTY if it is not a btrfs."""
    info = ioctl.fs_info(fd)
    return Filesystem(str(info.fsid), int(info.nodesize), int(info.sectorsize))


def devices(fd: int) -> Devices:
    """Returns all devices, except the target of a running replacement, number 0. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    parts = []
    first, last = ((ctree.DEV_ITEMS_OBJECTID, ctree.DEV_ITEM_KEY, devid) for devid in (1, TOP))
    search = TreeSearch(fd, ctree.CHUNK_TREE_OBJECTID, first, last)
    for at, _ in batches(search):
        item = gathered(search.buffer, at + HEADER_SIZE, _DEVICE)
        parts.append((item["devid"], item["total_bytes"]))
    return Devices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def count_subvolumes(fd: int) -> int:
    """Returns the number of subvolumes and snapshots of the filesystem of `fd`, without the top one and deleted ones.

    Each has a ROOT_BACKREF, which its deletion removes; `btrfs subvolume list` counts in the same way. Raises OSError (EPERM
    without CAP_SYS_ADMIN).
    """
    count = 0
    first, last = (ctree.FIRST_FREE_OBJECTID, 0, 0), (ctree.LAST_FREE_OBJECTID, 255, ctree.ULLONG_MAX)
    search = TreeSearch(fd, ctree.ROOT_TREE_OBJECTID, first, last)
    for _, header in batches(search):
        count += int((header["type"] == ctree.ROOT_BACKREF_KEY).sum())
    return count


_CHUNK = np.dtype(
    [("length", U64), ("owner", U64), ("stripe_len", U64), ("type", U64), ("sizes", "<u4", 3), ("stripes", "<u2"), ("sub", "<u2")]
)
_STRIPE = np.dtype([("devid", U64), ("paddr", U64), ("uuid", "V16")])
_DEV_EXTENT = np.dtype([("tree", U64), ("objectid", U64), ("vaddr", U64), ("length", U64), ("uuid", "V16")])
_FIRST: Key = (ctree.FIRST_CHUNK_TREE_OBJECTID, ctree.CHUNK_ITEM_KEY, 0)
_LAST: Key = (ctree.FIRST_CHUNK_TREE_OBJECTID, ctree.CHUNK_ITEM_KEY, TOP)


@dataclass(frozen=True, slots=True)
class Chunks:
    """u64[n] each, by address; `type`: the flags of use and profile, `stripes` (int64): their number.

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
    """u64[n] each, by device and position. `vaddr`: that of the chunk."""

    devid: Array
    paddr: Array
    vaddr: Array
    length: Array


def chunks(fd: int) -> Chunks:
    """Returns all chunks. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    parts, seen = [], 0
    search = TreeSearch(fd, ctree.CHUNK_TREE_OBJECTID, _FIRST, _LAST)
    for at, keys in batches(search):
        chunk = gathered(search.buffer, at + HEADER_SIZE, _CHUNK)
        stripes = chunk["stripes"].astype(np.int64)
        which = np.repeat(np.arange(len(at)), stripes)
        number = np.arange(len(which)) - np.repeat(np.cumsum(stripes) - stripes, stripes)
        stripe = gathered(search.buffer, at[which] + HEADER_SIZE + _CHUNK.itemsize + number * _STRIPE.itemsize, _STRIPE)
        parts.append((keys["offset"], chunk["length"], chunk["type"], stripes, which + seen, stripe["devid"], stripe["paddr"]))
        seen += len(at)
    return Chunks(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def device_extents(fd: int) -> DeviceExtents:
    """Returns all device extents. Raises OSError."""
    parts = []
    first, last = (1, ctree.DEV_EXTENT_KEY, 0), (TOP, ctree.DEV_EXTENT_KEY, TOP)
    search = TreeSearch(fd, ctree.DEV_TREE_OBJECTID, first, last)
    for at, keys in batches(search):
        at_extent = at[keys["type"] == ctree.DEV_EXTENT_KEY]  # the range of keys includes other items of the device
        key, extent = keys[keys["type"] == ctree.DEV_EXTENT_KEY], gathered(search.buffer, at_extent + HEADER_SIZE, _DEV_EXTENT)
        parts.append((key["objectid"], key["offset"], extent["vaddr"], extent["length"]))
    return DeviceExtents(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


_ITEM = np.dtype([("used", U64), ("chunk_objectid", U64), ("flags", U64)])
_ITEM_FIELDS = Struct("<QQQ")  # the same, for a single item
_KEY: int = ctree.BLOCK_GROUP_ITEM_KEY
_ONE_ITEM = 256  # bytes of buffer, for one item of 24 and its header
_SUPER_COPIES = np.array([64 << 10, 64 << 20, 256 << 30], U64)  # btrfs_sb_offset(), fs/btrfs/disk-io.h
_SUPER_SIZE = 4096


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """u64[n] each, by address. `flags`: those of use and profile."""

    vaddr: Array
    length: Array
    used: Array
    flags: Array


def has_block_group_tree(fd: int) -> bool:
    """Returns True if block groups are in a tree of their own."""
    return bool(ioctl.get_features(fd).compat_ro_flags & ioctl.FEATURE_COMPAT_RO_BLOCK_GROUP_TREE)


def block_groups(fd: int, chunk: Chunks) -> BlockGroups:
    """Returns all block groups, without those that disappear while it reads. Raises OSError."""
    if has_block_group_tree(fd):
        return _in_bulk(fd)
    return looked_up(fd, chunk.vaddr, chunk.length)


def _in_bulk(fd: int) -> BlockGroups:
    parts = []
    search = TreeSearch(fd, ctree.BLOCK_GROUP_TREE_OBJECTID)
    for at, keys in batches(search):
        item = gathered(search.buffer, at + HEADER_SIZE, _ITEM)
        parts.append((keys["objectid"], keys["offset"], item["used"], item["flags"]))
    return BlockGroups(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def looked_up(fd: int, vaddr: Array, length: Array) -> BlockGroups:
    """Reads the block groups of these chunks, with one search each: some microseconds."""
    tree = ctree.BLOCK_GROUP_TREE_OBJECTID if has_block_group_tree(fd) else ctree.EXTENT_TREE_OBJECTID
    search = TreeSearch(fd, tree, buffer_size=_ONE_ITEM)
    rows = []
    for start, size in zip(vaddr.tolist(), length.tolist(), strict=True):
        search.only((start, _KEY, size))
        if search.fill():  # if not, it was removed since the chunks were read, which is normal
            used, _, flags = _ITEM_FIELDS.unpack_from(search.buffer, search.first_header + HEADER_SIZE)
            rows.append((start, size, used, flags))
    return BlockGroups(*np.array(rows, U64).reshape(-1, 4).T)


def used_from_free_space(fd: int, chunk: Chunks, vaddr: Array, free: Array) -> Array:
    """u64[n], the used bytes of the block groups at `vaddr` (some of `chunk`'s, in its order) with these free bytes: the rest.

    The free space tree ignores copies of the superblock. On the tested kernels their space counts as free; this is not relied on
    for the three copies of a device, so block groups that may contain one are looked up.
    """
    index = np.searchsorted(chunk.vaddr, vaddr)
    used = chunk.length[index] - free
    holds_super = np.zeros(len(chunk.vaddr), bool)
    end = chunk.stripe_paddr + chunk.length[chunk.stripe_chunk]  # a stripe is no longer than its chunk
    for copy in _SUPER_COPIES:
        holds_super[chunk.stripe_chunk[(chunk.stripe_paddr < copy + _SUPER_SIZE) & (end > copy)]] = True
    for place in np.flatnonzero(holds_super[index]).tolist():
        exact = looked_up(fd, chunk.vaddr[index[place]][None], chunk.length[index[place]][None])
        if len(exact.used):
            used[place] = exact.used[0]
    return used
