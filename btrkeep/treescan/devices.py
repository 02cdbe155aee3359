"""The filesystem itself and its devices: what their items in the chunk tree say.

Layout: struct btrfs_dev_item in btrfs_tree.h, of which the first fields are read.
"""

from dataclasses import dataclass

import numpy as np
from btrfs import ctree, ioctl

from btrkeep.treescan.items import U64, Array, gathered, positions
from btrkeep.treescan.search import HEADER_SIZE, TOP, TreeSearch

_ITEM = np.dtype([("devid", U64), ("total_bytes", U64), ("bytes_used", U64)])


@dataclass(frozen=True, slots=True)
class Devices:
    """u64[n] each, by devid. `total_bytes`: as much of the device as the filesystem may use."""

    devid: Array
    total_bytes: Array


@dataclass(frozen=True, slots=True)
class Filesystem:
    """What every tree depends on. `nodesize` and `sectorsize` are bytes."""

    uuid: str
    nodesize: int
    sectorsize: int


def filesystem(fd: int) -> Filesystem:
    """Which filesystem `fd` is on. Needs no privilege. Raises OSError: ENOTTY where it is no btrfs."""
    info = ioctl.fs_info(fd)
    return Filesystem(str(info.fsid), int(info.nodesize), int(info.sectorsize))


def devices(fd: int) -> Devices:
    """All devices, but for the target of a replacement that goes on: number 0. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    parts = []
    first, last = ((ctree.DEV_ITEMS_OBJECTID, ctree.DEV_ITEM_KEY, devid) for devid in (1, TOP))
    search = TreeSearch(fd, ctree.CHUNK_TREE_OBJECTID, first, last)
    while count := search.fill():
        at = positions(search.buffer, search.first_header, count)
        item = gathered(search.buffer, at + HEADER_SIZE, _ITEM)
        parts.append((item["devid"], item["total_bytes"]))
        search.resume_after(int(at[-1]))
    return Devices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
