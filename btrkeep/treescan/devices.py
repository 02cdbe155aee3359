"""The filesystem itself, its devices, and how many subvolumes it has.

Layout: struct btrfs_dev_item in btrfs_tree.h, of which the first fields are read; devices are items of the chunk tree.
"""

from dataclasses import dataclass

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, batches, gathered
from btrkeep.treescan.search import HEADER_SIZE, TOP, TreeSearch

_ITEM = np.dtype([("devid", U64), ("total_bytes", U64), ("bytes_used", U64)])


@dataclass(frozen=True, slots=True)
class Devices:
    """u64[n] each, by devid. `total_bytes`: as much of the device as the filesystem may use."""

    devid: Array
    total_bytes: Array


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Parameters of the filesystem that every tree depends on. `nodesize` and `sectorsize` are bytes."""

    uuid: str
    nodesize: int
    sectorsize: int


def filesystem(fd: int) -> Filesystem:
    """Identifies the filesystem that `fd` is on. Needs no privilege. Raises OSError: ENOTTY where it is no btrfs."""
    info = ioctl.fs_info(fd)
    return Filesystem(str(info.fsid), int(info.nodesize), int(info.sectorsize))


def devices(fd: int) -> Devices:
    """Returns all devices, except the target of a running replacement, number 0. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    parts = []
    first, last = ((ctree.DEV_ITEMS_OBJECTID, ctree.DEV_ITEM_KEY, devid) for devid in (1, TOP))
    search = TreeSearch(fd, ctree.CHUNK_TREE_OBJECTID, first, last)
    for at, _ in batches(search):
        item = gathered(search.buffer, at + HEADER_SIZE, _ITEM)
        parts.append((item["devid"], item["total_bytes"]))
    return Devices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def count_subvolumes(fd: int) -> int:
    """Subvolumes and snapshots of the filesystem that `fd` is on, without the top one and those that are deleted already.

    Each has a ROOT_BACKREF, which its deletion takes away; `btrfs subvolume list` counts them too. Raises OSError (EPERM without
    CAP_SYS_ADMIN).
    """
    found = 0
    first, last = (ctree.FIRST_FREE_OBJECTID, 0, 0), (ctree.LAST_FREE_OBJECTID, 255, ctree.ULLONG_MAX)
    search = TreeSearch(fd, ctree.ROOT_TREE_OBJECTID, first, last)
    for _, header in batches(search):
        found += int((header["type"] == ctree.ROOT_BACKREF_KEY).sum())
    return found
