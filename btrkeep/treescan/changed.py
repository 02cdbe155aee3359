"""Which inodes of a subvolume were changed since a generation, or have a flag, from their items. Without NumPy, as in links.py.

The kernel notes in each INODE_ITEM (struct btrfs_inode_item) the transaction of its last change: of content, of attributes, and of
names. A search takes only the leaves that were written since, so it costs what was changed and not what there is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from btrfs import ctree

from btrkeep.treescan.search import HEADER, TYPE_AND_LEN_AT, TreeSearch

_TYPE_AND_LEN = Struct("=LL")
_INODE = Struct("=8xQQ16xL8xL68xqLqL")  # transid, size; nlink, mode; ctime and mtime: seconds, nanoseconds
_FLAGS = Struct("=64xQ")
NODATACOW, IMMUTABLE, APPEND = 0x2, 0x40, 0x80
"""Flags of an INODE_ITEM (BTRFS_INODE_...), which are not the numbers that chattr's ioctl has."""


@dataclass(frozen=True, slots=True)
class ChangedInode:
    """An inode that was changed. `mode` has its type, as in stat(2); `size` is in bytes, 0 for an empty folder; `mtime` and
    `ctime` are in nanoseconds.
    """

    ino: int
    mode: int
    size: int
    mtime: int
    ctime: int = 0


def changed_inodes(fd: int, since: int) -> Iterator[ChangedInode]:
    """Every inode of the subvolume that `fd` is open in that was changed after generation `since`, in order.

    Commit before, unless the subvolume is read-only. Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    search = TreeSearch(fd, since=since)
    buffer = search.buffer
    while count := search.fill():
        type_at, size, found = search.first_header + TYPE_AND_LEN_AT, 0, list[ChangedInode]()
        for _ in range(count):
            kind, size = _TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.INODE_ITEM_KEY:
                transid, length, links, mode, *stamps = _INODE.unpack_from(buffer, type_at + _TYPE_AND_LEN.size)
                if transid > since and links:
                    ino = HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1]
                    changed, modified = (stamps[at] * 1_000_000_000 + stamps[at + 1] for at in (0, 2))
                    found.append(ChangedInode(ino, mode, length, modified, changed))
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
        yield from found


def flagged_inodes(fd: int, flags: int) -> Iterator[int]:
    """The number of each inode with one of `flags`, in order. Reads all of the subvolume's tree; otherwise as `changed_inodes`."""
    search = TreeSearch(fd)
    buffer = search.buffer
    while count := search.fill():
        type_at, size, found = search.first_header + TYPE_AND_LEN_AT, 0, list[int]()
        for _ in range(count):
            kind, size = _TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.INODE_ITEM_KEY and _FLAGS.unpack_from(buffer, type_at + _TYPE_AND_LEN.size)[0] & flags:
                found.append(HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1])
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
        yield from found
