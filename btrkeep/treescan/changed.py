"""Finds what was changed in a subvolume since a generation: inodes, bytes of data, names. Without NumPy, like links.py.

The kernel records in each INODE_ITEM (struct btrfs_inode_item) the transaction of its last change: of content, of attributes, and
of names. Each EXTENT_DATA item (struct btrfs_file_extent_item) has the generation in which its extent was written; a clone keeps
the generation of its origin. A search reads only the leaves that were written since, so its time depends on the changes and not on
the size. Delayed data has no item yet, so callers commit first.

A ROOT_ITEM (struct btrfs_root_item) has the transaction of the last change to a file of its subvolume, ctransid. Setting or
clearing the read-only flag, a snapshot, a deletion or a balance do not change it; sharing of data (FIDEDUPERANGE) does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct

from btrfs import ctree

from btrkeep.errors import DAMAGED
from btrkeep.treescan.search import BUFFER_SIZE, HEADER, HEADER_SIZE, LEN, LEN_AT, TYPE_AND_LEN, TYPE_AND_LEN_AT, TreeSearch

_CTRANSID = Struct("=295xQ")
_FIRST, _LAST = ctree.FIRST_FREE_OBJECTID, (1 << 64) - 256


def last_changes(fd: int) -> dict[int, int]:
    """Returns the transaction of the last change to a file, by the id of each subvolume on the filesystem of `fd`, as of the last
    commit.

    Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    search = TreeSearch(fd, ctree.ROOT_TREE_OBJECTID, (_FIRST, 0, 0), (_LAST, 255, (1 << 64) - 1))
    buffer, changes = search.buffer, dict[int, int]()
    while count := search.fill():
        type_at, size = search.first_header + TYPE_AND_LEN_AT, 0
        for _ in range(count):
            kind, size = TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.ROOT_ITEM_KEY and size >= _CTRANSID.size:
                id_ = HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1]
                changes[id_] = _CTRANSID.unpack_from(buffer, type_at + TYPE_AND_LEN.size)[0]
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
    return changes


def has_readable_tree(fd: int, since: int = 0, pulse: Callable[[], None] = lambda: None) -> bool:
    """Returns False if the disk cannot read some of the metadata of the subvolume of `fd`: names, owners, positions of data.

    Reads everything written in that generation or later, 16 KiB for about 30 files, and no data. `pulse` is called after each 256
    KiB, and may raise. Raises OSError for an error that is not damage.
    """
    search = TreeSearch(fd, since=since)
    try:
        while count := search.fill():
            search.resume_after(_last(search, count))
            pulse()
    except OSError as error:
        if error.errno in DAMAGED:
            return False
        raise
    return True


def _last(search: TreeSearch, count: int) -> int:
    """Returns where the last of the buffer's items starts."""
    at = search.first_header
    for _ in range(count - 1):
        at += HEADER_SIZE + LEN.unpack_from(search.buffer, at + LEN_AT)[0]
    return at


_INODE = Struct("=8xQQ16xL8xL68xqLqL")  # transid, size; nlink, mode; ctime and mtime: seconds, nanoseconds
_FLAGS = Struct("=64xQ")
NODATACOW, IMMUTABLE, APPEND = 0x2, 0x40, 0x80
"""Flags of an INODE_ITEM (BTRFS_INODE_...), which differ from the numbers of chattr's ioctl."""


@dataclass(frozen=True, slots=True)
class ChangedInode:
    """A changed inode."""

    ino: int
    """The inode number."""
    mode: int
    """Including its type, as in stat(2)."""
    size: int
    """Bytes; 0 for an empty folder."""
    mtime: int
    """Nanoseconds."""
    ctime: int = 0
    """Nanoseconds."""


def changed_inodes(fd: int, since: int) -> Iterator[ChangedInode]:
    """Yields every inode of the open subvolume of `fd` that was changed after generation `since`, in order.

    Commit before, unless the subvolume is read-only. Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    search = TreeSearch(fd, since=since)
    buffer = search.buffer
    while count := search.fill():
        type_at, size, inodes = search.first_header + TYPE_AND_LEN_AT, 0, list[ChangedInode]()
        for _ in range(count):
            kind, size = TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.INODE_ITEM_KEY:
                transid, length, links, mode, *stamps = _INODE.unpack_from(buffer, type_at + TYPE_AND_LEN.size)
                if transid > since and links:
                    ino = HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1]
                    changed, modified = (stamps[at] * 1_000_000_000 + stamps[at + 1] for at in (0, 2))
                    inodes.append(ChangedInode(ino, mode, length, modified, changed))
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
        yield from inodes


def flagged_inodes(fd: int, flags: int) -> Iterator[int]:
    """Yields the number of each inode with one of `flags`, in order. Reads all of the subvolume's tree; otherwise like
    `changed_inodes`.
    """
    search = TreeSearch(fd)
    buffer = search.buffer
    while count := search.fill():
        type_at, size, inodes = search.first_header + TYPE_AND_LEN_AT, 0, list[int]()
        for _ in range(count):
            kind, size = TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.INODE_ITEM_KEY and _FLAGS.unpack_from(buffer, type_at + TYPE_AND_LEN.size)[0] & flags:
                inodes.append(HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1])
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
        yield from inodes


_EXTENT = Struct("=Q8xB3xBQ16xQ")  # generation, compression, type, disk_bytenr, num_bytes
_INLINE_EXTENT = Struct("=QQ4xB")  # generation, ram_bytes, type; the data follow
_INLINE, _REGULAR = 0, 1
_DIR_ITEM = Struct("=17xQHHx")  # transid, data_len, name_len: of a folder entry or an extended attribute


def written_files(fd: int, since: int, at_least: int, *, compressed: bool = False, buffer_size: int = BUFFER_SIZE) -> Iterator[int]:
    """Yields the inode number of each file with `at_least` bytes of data written after generation `since`, of the subvolume of
    `fd`.

    In order, each once, as a stream: the caller may change a file that was yielded. Inline and preallocated data, and holes, are
    not counted; compressed data is with `compressed`. Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    sizes = written_sizes(fd, since, compressed=compressed, buffer_size=buffer_size)
    return (ino for ino, size in sizes if size >= at_least)


def written_sizes(fd: int, since: int, *, compressed: bool = False, buffer_size: int = BUFFER_SIZE) -> Iterator[tuple[int, int]]:
    """Yields (inode number, bytes written after generation `since`) of each file with new data. Otherwise like `written_files`."""
    search = TreeSearch(fd, since=since, buffer_size=buffer_size)
    buffer, type_and_len = search.buffer, TYPE_AND_LEN.unpack_from
    ino = size = total = 0
    while count := search.fill():
        type_at, sizes = search.first_header + TYPE_AND_LEN_AT, []
        for _ in range(count):
            kind, size = type_and_len(buffer, type_at)
            if kind == ctree.EXTENT_DATA_KEY and size >= _EXTENT.size:
                objectid = HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1]
                if objectid != ino:
                    if total:
                        sizes.append((ino, total))
                    ino, total = objectid, 0
                generation, compression, extent, vaddr, length = _EXTENT.unpack_from(buffer, type_at + TYPE_AND_LEN.size)
                if generation > since and extent == _REGULAR and vaddr and (compressed or not compression):
                    total += length
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
        yield from sizes
    if total:
        yield ino, total


def written_bytes(fd: int, since: int, *, inline: bool = False, buffer_size: int = BUFFER_SIZE) -> int:
    """Returns the bytes of data written after generation `since` to files of the subvolume of `fd`, before compression.

    Holes are not counted; inline data is counted with `inline`.
    """
    search = TreeSearch(fd, since=since, buffer_size=buffer_size)
    buffer, total = search.buffer, 0
    while count := search.fill():
        type_at = search.first_header + TYPE_AND_LEN_AT
        for number in range(count):
            kind, size = TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.EXTENT_DATA_KEY and size >= _EXTENT.size:
                generation, _, extent, vaddr, length = _EXTENT.unpack_from(buffer, type_at + TYPE_AND_LEN.size)
                total += length if generation > since and extent == _REGULAR and vaddr else 0
            if inline and kind == ctree.EXTENT_DATA_KEY:
                generation, length, extent = _INLINE_EXTENT.unpack_from(buffer, type_at + TYPE_AND_LEN.size)
                total += length if generation > since and extent == _INLINE else 0
            if number == count - 1:
                search.resume_after(type_at - TYPE_AND_LEN_AT)
            type_at += size + HEADER.size
    return total


@dataclass(frozen=True, slots=True)
class SubvolumeGrowth:
    """The growth of a subvolume since a generation: `names` in its folders, and `bytes` of data and extended attributes."""

    names: int
    bytes: int


def growth(fd: int, since: int, *, buffer_size: int = BUFFER_SIZE) -> SubvolumeGrowth:
    """Returns what was written after generation `since` into the subvolume of `fd`, before compression.

    A replaced or newly linked name is new; so is rewritten data. Inline data and preallocated space are counted, holes are not.
    Raises OSError (EPERM without CAP_SYS_ADMIN).
    """
    search = TreeSearch(fd, since=since, buffer_size=buffer_size)
    buffer, names, total = search.buffer, 0, 0
    while count := search.fill():
        type_at = last = search.first_header + TYPE_AND_LEN_AT
        for _ in range(count):
            last = type_at
            kind, size = TYPE_AND_LEN.unpack_from(buffer, type_at)
            payload = type_at + TYPE_AND_LEN.size
            if kind == ctree.DIR_INDEX_KEY:
                names += _DIR_ITEM.unpack_from(buffer, payload)[0] > since
            elif kind == ctree.EXTENT_DATA_KEY:
                generation, inline, extent = _INLINE_EXTENT.unpack_from(buffer, payload)
                if generation > since:
                    total += inline if extent == _INLINE else _on_disk(buffer, payload)
            elif kind == ctree.XATTR_ITEM_KEY:
                total += _attributes(buffer, payload, payload + size, since)
            type_at += size + HEADER.size
        search.resume_after(last - TYPE_AND_LEN_AT)
    return SubvolumeGrowth(names, total)


def _on_disk(buffer: bytearray, payload: int) -> int:
    """Returns the size on disk, including preallocated space (fallocate(2))."""
    _, _, _, vaddr, length = _EXTENT.unpack_from(buffer, payload)
    return int(length) if vaddr else 0


def _attributes(buffer: bytearray, at: int, end: int, since: int) -> int:
    """Returns the size of the attributes of one item: attributes whose names have the same hash share it, and the sender of a file
    chooses the names.
    """
    total = 0
    while at + _DIR_ITEM.size <= end:
        transid, length, name = _DIR_ITEM.unpack_from(buffer, at)
        total += length + name if transid > since else 0
        at += _DIR_ITEM.size + length + name
    return total
