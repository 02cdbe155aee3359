"""Estimates the progress of a drop as a share of the branches of the tree.

The key in drop_progress alone does not tell what is left: that would need the tree, and TREE_SEARCH returns none without
references. But the root node of that tree stays on disk, unchanged, until the drop's last step, and the drop processes its key
pointers from left to right, so the number before drop_progress can be counted. The root node is read from a device once for each
root, and used only if its header names exactly this node: bytenr, generation, owner and level.

All branches have about the same number of leaves; those shared with another snapshot are dropped faster. So this is a share of the
work, not of the time.
"""

import errno
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import btrfs
from btrfs import ctree

from btrkeep.descriptors import ClosingFd
from btrkeep.pool.orphans import DeadRoot, Key

# struct btrfs_header: csum, fsid, bytenr, flags, chunk_tree_uuid, generation, owner, nritems, level; then struct btrfs_key_ptr: a
# disk key, blockptr, generation. include/uapi/linux/btrfs_tree.h
_HEADER = struct.Struct("<48xQ24xQQLB")
_KEY_POINTER = struct.Struct("<QBQ16x")
_LARGEST_CHUNK = 16 << 30  # the kernel makes none above 10 GiB
_STRIPE_LENGTH = 65536
_PARITY: int = ctree.BLOCK_GROUP_RAID5 | ctree.BLOCK_GROUP_RAID6


def branches(path: Path, dead: DeadRoot) -> tuple[Key, ...] | None:
    """Returns the first key of each branch of the tree of a deleted subvolume, in order; None if unknown.

    Unknown: for a tree of a single leaf, with metadata in RAID5 or RAID6, if a device is missing or unreadable, and if the tree is
    already gone. `path` is on the filesystem. Raises OSError.
    """
    if dead.height == 0:
        return None
    with btrfs.FileSystem(str(path)) as filesystem:
        found = _place(filesystem, dead.bytenr)
        if found is None:
            return None
        devid, physical = found
        try:
            device = filesystem.dev_info(devid).path
            node = _read_directly(device, physical, filesystem.nodesize)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENOENT, errno.EIO, errno.EACCES, errno.EPERM, errno.EINVAL):
                return None
            raise
    return parse_node(node, dead)


def _place(filesystem: btrfs.FileSystem, vaddr: int) -> tuple[int, int] | None:
    """Returns device id and physical address of one copy of `vaddr`; None if there is no plain copy (parity)."""
    for chunk in filesystem.chunks(max(0, vaddr - _LARGEST_CHUNK), vaddr):
        if chunk.vaddr <= vaddr < chunk.vaddr + chunk.length:
            return None if chunk.type & _PARITY else _in_stripes(chunk, vaddr - chunk.vaddr)
    return None


def _in_stripes(chunk: ctree.Chunk, offset: int) -> tuple[int, int]:
    striped = chunk.type & (ctree.BLOCK_GROUP_RAID0 | ctree.BLOCK_GROUP_RAID10)
    copies = (chunk.sub_stripes or 1) if striped else chunk.num_stripes
    row, column = divmod(offset // _STRIPE_LENGTH, chunk.num_stripes // copies)
    stripe = chunk.stripes[column * copies]
    return stripe.devid, stripe.offset + row * _STRIPE_LENGTH + offset % _STRIPE_LENGTH


def _read_directly(device: str, physical: int, size: int) -> bytes:
    """Bytes of a device past its page cache, which btrfs does not go through and which may hold older ones."""
    with ClosingFd(os.open(device, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)) as fd, mmap.mmap(-1, size) as aligned:
        return aligned[: os.preadv(fd, [aligned], physical)]


def parse_node(node: bytes, dead: DeadRoot) -> tuple[Key, ...] | None:
    """The keys in that node, None when it is not the root node of this tree."""
    if len(node) < _HEADER.size:
        return None
    bytenr, generation, owner, count, level = _HEADER.unpack_from(node)
    if (bytenr, generation, owner, level) != (dead.bytenr, dead.generation, dead.id, dead.height):
        return None
    end = _HEADER.size + count * _KEY_POINTER.size
    return tuple(_KEY_POINTER.iter_unpack(node[_HEADER.size : end])) if count > 0 and end <= len(node) else None


def passed(keys: Sequence[Key], drop_progress: Key) -> int:
    """Counts the branches that the drop has behind it: all before the one that its key lies in."""
    return max(0, bisect_right(keys, drop_progress) - 1)
