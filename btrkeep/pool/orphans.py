"""Deleted subvolumes that wait for the kernel's cleaner thread, the one that it is dropping, and how much of that is done.

A deletion inserts an ORPHAN item (ORPHAN_OBJECTID, ORPHAN_ITEM, subvolume id) into the root tree at once, within the running
transaction; the cleaner removes it and the subvolume's ROOT_ITEM after the whole tree is dropped. A drop that takes more than one
transaction records its progress in the ROOT_ITEM: drop_progress, the key to continue from, and drop_level. The references in the
ROOT_ITEM are 1 until a commit or the drop writes it; `btrfs subvolume list -d` shows a deletion only from then on. Layouts:
include/uapi/linux/btrfs_tree.h (btrfs_root_item), include/uapi/linux/btrfs.h (btrfs_ioctl_subvol_wait); order of events:
btrfs_delete_subvolume and btrfs_drop_snapshot in the kernel's fs/btrfs/.

A search sees the running transaction: an orphan that has disappeared may not be committed yet. All searches need CAP_SYS_ADMIN and
raise PermissionError without it.

The key in drop_progress alone does not show how much is left: that would need the tree, and TREE_SEARCH returns none without
references. But the root node of that tree stays on disk, unchanged, until the drop's last step, and the drop processes its key
pointers from left to right, so the number before drop_progress can be counted. The root node is read from a device once for each
root, and used only if its header names exactly this node: bytenr, generation, owner and level.

All branches have about the same number of leaves; those shared with another snapshot are dropped faster. So this is a share of the
work, not of the time.
"""

import errno
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

import btrfs
from btrfs import ctree
from btrfs.ioctl import ULLONG_MAX, search_v2

from btrkeep.descriptors import ClosingFd, iow

# In ROOT_ITEM, after the inode item (160 bytes) and seven numbers: refs, drop_progress (objectid, type, offset), drop_level, level.
_REFS_AND_DROP = struct.Struct("<LQBQBB")
_REFS_AND_DROP_AT = 160 + 7 * 8
_GENERATION_AND_BYTENR = struct.Struct("<Q8xQ")
_GENERATION_AND_BYTENR_AT = 160
_ONE_ITEM = 4096  # a ROOT_ITEM has 439 bytes, and 32 before it
_MANY_ITEMS = 65536  # 2,048 orphan items, which are only headers

_SUBVOL_WAIT = struct.Struct("=QLL")  # subvolid, mode, count
_SUBVOL_SYNC_WAIT = iow(65, _SUBVOL_WAIT.size)
_SYNC_COUNT = 2
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25

Key = tuple[int, int, int]


def key_text(key: Key) -> str:
    """A key as btrfs-progs writes it: (6660 DIR_ITEM 368092212)."""
    return str(ctree.Key(*key))


@dataclass(frozen=True, slots=True)
class Drop:
    """A root that is being dropped. `drop_progress`: the key (objectid, type, offset) from which the drop continues; all smaller
    keys are already dropped. `level`: the tree level of this key, 0 for the leaves.

    The key is written when the drop changes transactions; None if it has not done so yet, as with small trees.
    """

    root: int
    drop_progress: Key | None
    level: int


@dataclass(frozen=True, slots=True)
class DeadRoot:
    """A deleted subvolume whose tree still exists."""

    id: int
    """The subvolume's number."""
    bytenr: int
    """Logical address of the root node of its tree."""
    generation: int
    """The generation of the root node."""
    height: int
    """The height of its tree."""
    drop: Drop | None
    """The progress of the cleaner with it; None: not started."""


def _anywhere(path: Path) -> ClosingFd:
    """A descriptor of a file or folder on the filesystem, for calls about the whole filesystem."""
    return ClosingFd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))


def orphan_items(path: Path) -> list[int]:
    """Returns the numbers of all ORPHAN items of the root tree: those of `dead_roots`, and occasionally an inode of free space
    cache v1.

    For callers that poll and may count one too many: takes a tenth of the time of `dead_roots`. Raises OSError.
    """
    with _anywhere(path) as fd:
        return _orphan_items(fd)


def count_orphans(path: Path) -> int | None:
    """Returns the number of `orphan_items`; None if this process may not search trees, as in a unit without capabilities. Raises
    OSError.
    """
    try:
        return len(orphan_items(path))
    except PermissionError:
        return None


def dead_roots(path: Path) -> list[DeadRoot]:
    """Returns the deleted subvolumes that still exist, by id, in one search. Raises OSError. Takes 13 ms for 1,000 of them."""
    with _anywhere(path) as fd:
        return [dead for id_ in _orphan_items(fd) if (dead := _dead_root(fd, id_))]


def _orphan_items(fd: int) -> list[int]:
    first = ctree.Key(ctree.ORPHAN_OBJECTID, ctree.ORPHAN_ITEM_KEY, 0)
    last = ctree.Key(ctree.ORPHAN_OBJECTID, ctree.ORPHAN_ITEM_KEY, ULLONG_MAX)
    items = search_v2(fd, ctree.ROOT_TREE_OBJECTID, first, last, buf_size=_MANY_ITEMS)
    return [header.offset for header, _ in items]


def _dead_root(fd: int, id_: int) -> DeadRoot | None:
    """Reads an orphan from the root tree; None if it is not a subvolume.

    Inodes of the free space cache v1 are also in the root tree, with numbers from the same counter, and have an ORPHAN item while
    they are removed. They have no ROOT_ITEM; nor has a subvolume whose drop has just finished.
    """
    first, last = ctree.Key(id_, ctree.ROOT_ITEM_KEY, 0), ctree.Key(id_, ctree.ROOT_ITEM_KEY, ULLONG_MAX)
    for _, item in search_v2(fd, ctree.ROOT_TREE_OBJECTID, first, last, nr_items=1, buf_size=_ONE_ITEM):
        generation, bytenr = _GENERATION_AND_BYTENR.unpack_from(item, _GENERATION_AND_BYTENR_AT)
        refs, *key, drop_level, height = _REFS_AND_DROP.unpack_from(item, _REFS_AND_DROP_AT)
        begun = refs == 0 and key[0] != 0  # inode number 0 does not exist
        drop = Drop(id_, (key[0], key[1], key[2]), drop_level) if begun else None
        return DeadRoot(id_, bytenr, generation, height, drop)
    return None


def wait_for(path: Path, subvolume_id: int, timeout: float) -> bool:
    """Waits until the deleted subvolume no longer exists; returns False if it still does after `timeout` seconds. Raises OSError.

    A subvolume that was not deleted counts as gone. For a short wait, wake the cleaner first: `commit`. The kernel's own wait
    (BTRFS_IOC_SUBVOL_SYNC_WAIT) polls once a second, has no timeout and ends at any signal; a search for one key takes some
    microseconds, so this polls, first often and later four times a second.
    """
    deadline, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
    with _anywhere(path) as fd:
        while _has_orphan(fd, subvolume_id):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _has_orphan(fd: int, id_: int) -> bool:
    key = ctree.Key(ctree.ORPHAN_OBJECTID, ctree.ORPHAN_ITEM_KEY, id_)
    return any(True for _ in search_v2(fd, ctree.ROOT_TREE_OBJECTID, key, key, nr_items=1, buf_size=_ONE_ITEM))


def queued(path: Path) -> int | None:
    """Counts the cleaner's list, without the one that it is dropping; None if the kernel does not report it. Raises OSError.

    Uses BTRFS_IOC_SUBVOL_SYNC_WAIT (Linux 6.13). Other deleted subvolumes of `dead_roots` are held: a process has one of their
    files open, and the cleaner gets them only when it is closed.
    """
    arguments = bytearray(_SUBVOL_WAIT.pack(0, _SYNC_COUNT, 0))
    with _anywhere(path) as fd:
        try:
            ioctl(fd, _SUBVOL_SYNC_WAIT, arguments)
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EINVAL):  # EINVAL: the kernel has the ioctl, but not this mode
                return None
            raise
    return int(_SUBVOL_WAIT.unpack(arguments)[2])


# struct btrfs_header: csum, fsid, bytenr, flags, chunk_tree_uuid, generation, owner, nritems, level; then struct btrfs_key_ptr: a
# disk key, blockptr, generation. include/uapi/linux/btrfs_tree.h
_HEADER = struct.Struct("<48xQ24xQQLB")
_KEY_POINTER = struct.Struct("<QBQ16x")
_LARGEST_CHUNK = 16 << 30  # the kernel's limit is 10 GiB
_STRIPE_LENGTH = 65536
_PARITY: int = ctree.BLOCK_GROUP_RAID5 | ctree.BLOCK_GROUP_RAID6


def branches(path: Path, dead: DeadRoot) -> tuple[Key, ...] | None:
    """Returns the first key of each branch of the tree of a deleted subvolume, in order; None if unknown.

    Unknown: for a tree of a single leaf, with metadata in RAID5 or RAID6, if a device is missing or unreadable, and if the tree no
    longer exists. `path` is on the filesystem. Raises OSError.
    """
    if dead.height == 0:
        return None
    with btrfs.FileSystem(str(path)) as filesystem:
        location = _place(filesystem, dead.bytenr)
        if location is None:
            return None
        devid, physical = location
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
    """Reads bytes of a device, not from its page cache: btrfs does not write through that, so it may be outdated.
    Raises OSError.
    """
    import mmap  # only needed here

    with ClosingFd(os.open(device, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)) as fd, mmap.mmap(-1, size) as aligned:
        return aligned[: os.preadv(fd, [aligned], physical)]


def parse_node(node: bytes, dead: DeadRoot) -> tuple[Key, ...] | None:
    """Returns the keys in that node, None if it is not the root node of this tree."""
    if len(node) < _HEADER.size:
        return None
    bytenr, generation, owner, count, level = _HEADER.unpack_from(node)
    if (bytenr, generation, owner, level) != (dead.bytenr, dead.generation, dead.id, dead.height):
        return None
    end = _HEADER.size + count * _KEY_POINTER.size
    return tuple(_KEY_POINTER.iter_unpack(node[_HEADER.size : end])) if count > 0 and end <= len(node) else None


def passed(keys: Sequence[Key], drop_progress: Key) -> int:
    """Counts the branches that the drop has finished: all before the one that contains its key."""
    return max(0, bisect_right(keys, drop_progress) - 1)
