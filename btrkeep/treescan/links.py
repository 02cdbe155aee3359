"""Files with more than one name, the paths of folders, and which subvolumes and files refer to the data at an address. Without
NumPy: its import takes longer than most of these searches.

Layouts: the kernel's btrfs_tree.h (struct btrfs_inode_item, btrfs_inode_ref, btrfs_inode_extref). Link counts, names and times that
were changed since the last commit may still wait outside of the tree (delayed inodes), so callers commit first.

A reference to data in the extent tree names one tree, or one tree block, and snapshots share tree blocks, so the extent tree does
not show which subvolumes share an extent. By LOGICAL_INO_V2 the kernel follows the tree blocks up to every root. Layouts: struct
btrfs_ioctl_logical_ino_args and btrfs_data_container in linux/btrfs.h (Linux 4.15).
"""

import ctypes
import errno
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import NamedTuple

from btrfs import ctree
from btrfs import ioctl as numbers

from btrkeep.treescan.search import BUFFER_SIZE, HEADER, TYPE_AND_LEN, TYPE_AND_LEN_AT, Key, TreeSearch

_INODE_NLINK_AT = HEADER.size + 40
_INODE_LINKS_AND_MODE = Struct("=L8xL")  # nlink, uid, gid, mode
_ONE_LINK = b"\1\0\0\0"
_INODE_REF = Struct("=QH")
_INODE_EXTREF = Struct("=QQH")
_ROOT_FOLDER: int = ctree.FIRST_FREE_OBJECTID
_PARENTS_REMEMBERED = 65536
_LARGEST = 64 << 10  # bytes of an item with its header: less than the largest node
_ONE_INODE = 2 * _LARGEST
_NEAR, _FOLDERS_BEFORE = 32, 8  # additional inodes read: cheaper than another search
_MOST_REMEMBERED = 16 << 20  # bytes of cached search results
_NO_GENERATION = bytes(8)
_NAMED_BY = (ctree.INODE_REF_KEY, ctree.INODE_EXTREF_KEY)


@dataclass(frozen=True, slots=True)
class LinkedInode:
    """An inode with more than one name."""

    ino: int
    """The inode number."""
    nlink: int
    """Number of its names."""
    mode: int
    """Its type and mode, as in stat(2)."""
    names: tuple[tuple[int, bytes], ...]
    """All its names: the inode number of the folder, and the name in it."""


def linked_inodes(fd: int, buffer_size: int = BUFFER_SIZE, *, since: int = 0) -> Iterator[LinkedInode]:
    """Yields every inode of the open subvolume of `fd` that has more than one link and is not a folder, with all its names.

    In order of inode numbers, as a stream: the caller may change an inode that was yielded. Commit before: see the module. Raises
    OSError (EPERM without CAP_SYS_ADMIN). With `since`, a generation, only inodes whose item is in a leaf that was written then or
    later: all that got a link since, and their neighbours. Names in older leaves are missing then; those that were added since are
    included.

    The chain of headers is walked item by item, two numbers each: 0.14 s for the 512,000 items of 100,000 files, 1.1 ms for 1,000
    files; half of this is the kernel's copying. A regular expression for the constant part of an INODE_ITEM's header would halve
    the other half, but a host chooses the content of inline files and can put such bytes there, and the last key of a buffer, from
    which the next one continues, cannot be found without the walk. NumPy does not help, because every item has another length, and
    takes 0.1 s to import.
    """
    search = TreeSearch(fd, since=since, buffer_size=buffer_size)
    buffer, type_and_len = search.buffer, TYPE_AND_LEN.unpack_from
    inode_item = ctree.INODE_ITEM_KEY
    nlink, nlink_end = _INODE_NLINK_AT - TYPE_AND_LEN_AT, _INODE_NLINK_AT - TYPE_AND_LEN_AT + 4
    linked: tuple[int, int, int] | None = None
    names: list[tuple[int, bytes]] = []
    while count := search.fill():
        type_at, size = search.first_header + TYPE_AND_LEN_AT, 0
        for _ in range(count):  # runs half a million times for 100,000 files: avoid every operation
            kind, size = type_and_len(buffer, type_at)
            if kind == inode_item:
                if linked:
                    yield LinkedInode(*linked, tuple(names))
                    linked = None
                if buffer[type_at + nlink : type_at + nlink_end] != _ONE_LINK:
                    linked, names = _linked(buffer, type_at - TYPE_AND_LEN_AT), []
            elif linked and kind in _NAMED_BY and HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1] == linked[0]:
                names.extend(_names(buffer, type_at - TYPE_AND_LEN_AT))
            type_at += size + 32
        search.resume_after(type_at - size - 32 - TYPE_AND_LEN_AT)
    if linked:
        yield LinkedInode(*linked, tuple(names))


def _linked(buffer: bytearray, header: int) -> tuple[int, int, int] | None:
    """(inode number, links, mode), or None: a deleted file that is still open has no links."""
    objectid = HEADER.unpack_from(buffer, header)[1]
    nlink, mode = _INODE_LINKS_AND_MODE.unpack_from(buffer, header + _INODE_NLINK_AT)
    return (objectid, nlink, mode) if nlink > 1 and not stat.S_ISDIR(mode) else None


def _names(buffer: bytearray | memoryview, header: int) -> Iterator[tuple[int, bytes]]:
    """(folder, name) of each name in an INODE_REF (names of one folder, as many as fit) or INODE_EXTREF (the others)."""
    _, _, offset, kind, size = HEADER.unpack_from(buffer, header)
    position, end = header + HEADER.size, header + HEADER.size + size
    while position < end:
        if kind == ctree.INODE_REF_KEY:
            folder, (_, length) = offset, _INODE_REF.unpack_from(buffer, position)
            position += _INODE_REF.size
        else:
            folder, _, length = _INODE_EXTREF.unpack_from(buffer, position)
            position += _INODE_EXTREF.size
        yield folder, bytes(buffer[position : position + length])
        position += length


class FolderPaths:
    """Paths of a subvolume's folders, by inode number, as components relative to its root.

    INO_LOOKUP would return a path in one call, but only up to 4,080 bytes, and paths in a backup may be longer. So each folder is
    looked up and remembered.
    """

    def __init__(self, fd: int) -> None:
        self._search = TreeSearch(fd, buffer_size=_LARGEST)
        self._parent: Callable[[int], tuple[int, bytes]] = lru_cache(_PARENTS_REMEMBERED)(self._look_up_parent)

    def of(self, ino: int) -> tuple[bytes, ...]:
        """Returns the components of the path of folder `ino`; () for the root. Raises FileNotFoundError if it has no name."""
        path = []
        while ino != _ROOT_FOLDER:
            ino, name = self._parent(ino)
            path.append(name)
        return tuple(reversed(path))

    def _look_up_parent(self, ino: int) -> tuple[int, bytes]:
        self._search.restart(0, (ino, ctree.INODE_REF_KEY, 0), (ino, ctree.INODE_REF_KEY, numbers.ULLONG_MAX))
        if not self._search.fill():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"folder with inode {ino}")
        return next(_names(self._search.buffer, self._search.first_header))


_Names = dict[int, list[tuple[int, bytes]]]
"""(inode of the folder, name in it) of each name, by inode."""


class _SearchResult(NamedTuple):
    """The result of one search. `image`: its buffer without the generations of the leaves, with which the headers at `headers`
    start. `last`: the position of the last item's header; None if there are no more items.
    """

    headers: tuple[int, ...]
    image: bytes
    names: _Names
    last: int | None


class InodeNames:
    """Paths of the inodes of any subvolume, without opening it: the kernel searches the tree with a given id.

    Snapshots of one subvolume usually have the same items around an inode. So the result of a search is compared with that of the
    last one for these inodes, in any subvolume, and only parsed if it differs.
    """

    def __init__(self, fd: int) -> None:
        """`fd` is any folder of the filesystem."""
        self._search = TreeSearch(fd, buffer_size=_ONE_INODE)
        self._folders: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._before: dict[tuple[int, int, int], _SearchResult] = {}
        self._remembered = 0  # bytes
        self._last: tuple[list[int], _Names, dict[int, list[bytes]]] = [], {}, {}

    def of(self, subvolume: int, ino: int) -> Sequence[bytes]:
        """Returns all paths of an inode, relative to the subvolume's root, as of the last commit; empty if it has none. Raises
        OSError.
        """
        return self.of_many(subvolume, (ino,)).get(ino, ())

    def of_many(self, subvolume: int, inodes: Iterable[int]) -> Mapping[int, Sequence[bytes]]:
        """Returns the paths of several inodes, by inode: with one search for inodes that are near each other, and often for their
        folders.

        It is the same object as before if the previous subvolume had the same paths.
        """
        paths_by_inode: dict[int, list[bytes]] = {}
        wanted = sorted(set(inodes))
        try:
            names_by_inode = self._names(subvolume, wanted)
        except FileNotFoundError:  # the subvolume was just deleted
            return paths_by_inode
        if (wanted, names_by_inode) == self._last[:2]:
            return self._last[2]
        paths, is_alone = dict[int, tuple[bytes, ...] | None](), True
        for ino in wanted:
            with suppress(FileNotFoundError):  # or a folder was
                for folder, name in names_by_inode.get(ino, ()):
                    if folder not in paths:
                        paths[folder] = _path_within(names_by_inode, folder)
                    is_alone = is_alone and paths[folder] is not None
                    above = paths[folder]
                    path = self._folder(subvolume, folder, names_by_inode) if above is None else above
                    paths_by_inode.setdefault(ino, []).append(b"/".join((*path, name)))
        if is_alone:
            self._last = wanted, names_by_inode, paths_by_inode
        return paths_by_inode

    def _folder(self, subvolume: int, ino: int, names_by_inode: _Names) -> tuple[bytes, ...]:
        """Returns the path of a folder. `names_by_inode`: names that are already known."""
        if (before := self._folders.get((subvolume, ino))) is not None:
            return before
        path, above = list[bytes](), ino
        while above != _ROOT_FOLDER:
            names = names_by_inode.get(above) or self._names(subvolume, (above,)).get(above)
            if not names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"folder with inode {above}")
            above, name = names[0]
            path.append(name)
        if len(self._folders) >= _PARENTS_REMEMBERED:
            self._folders.clear()
        self._folders[subvolume, ino] = folder_path = tuple(reversed(path))
        return folder_path

    def _names(self, subvolume: int, wanted: Sequence[int]) -> _Names:
        """Returns the names of these inodes, which are in order; and of some others between them. Not to be changed."""
        parts = [search.names for cluster in _near_each_other(wanted) for search in self._searches(subvolume, cluster)]
        if len(parts) == 1:
            return parts[0]
        merged: _Names = {}
        for part in parts:
            for ino, names in part.items():
                merged.setdefault(ino, []).extend(names)
        return merged

    def _searches(self, subvolume: int, cluster: Sequence[int]) -> Iterator[_SearchResult]:
        first = max(_ROOT_FOLDER + 1, cluster[0] - _FOLDERS_BEFORE) if len(cluster) > 1 else cluster[0]
        self._search.restart(subvolume, (first, ctree.INODE_REF_KEY, 0), _last_name_of(cluster[-1]))
        for number in count():
            yield (filled := self._fill((first, cluster[-1], number)))
            if filled.last is None:
                break
            _, ino, _, kind, _ = HEADER.unpack_from(self._search.buffer, filled.last)
            if kind <= ctree.INODE_EXTREF_KEY:
                self._search.resume_after(filled.last)
            elif following := cluster[bisect_right(cluster, ino) :]:  # skips the extents of a large file
                self._search.restart(subvolume, (following[0], ctree.INODE_REF_KEY, 0), _last_name_of(cluster[-1]))
            else:
                break

    def _fill(self, place: tuple[int, int, int]) -> _SearchResult:
        """Searches on. `place`: identifies the search for the next time."""
        number, buffer, before = self._search.fill(), self._search.buffer, self._before.get(place)
        if before and len(before.headers) == number and _image(buffer, before.headers, len(before.image)) == before.image:
            return before
        headers, names, header, size = list[int](), _Names(), self._search.first_header, 0
        for _ in range(number):
            kind, size = TYPE_AND_LEN.unpack_from(buffer, header + TYPE_AND_LEN_AT)
            if kind in _NAMED_BY:
                names.setdefault(HEADER.unpack_from(buffer, header)[1], []).extend(_names(buffer, header))
            headers.append(header)
            header += HEADER.size + size
        is_last = not number or header + _LARGEST < len(buffer)  # any other item would have fitted
        image = _image(buffer, headers, header - self._search.first_header)
        filled = _SearchResult(tuple(headers), image, names, None if is_last else headers[-1])
        if self._remembered > _MOST_REMEMBERED:
            self._before.clear()
            self._remembered = 0
        self._before[place] = filled
        self._remembered += len(image)
        return filled


def _image(buffer: bytearray, headers: Sequence[int], size: int) -> bytes:
    """Returns the items without their generations: the topmost block of a snapshot is written again, with the same items.

    If they are equal to other items with the same positions of headers, then these positions are correct: the first one is, and
    each length leads to the next.
    """
    if not headers:
        return b""
    image = buffer[headers[0] : headers[0] + size]
    for header in headers:
        at = header - headers[0]
        image[at : at + 8] = _NO_GENERATION
    return bytes(image)


def _path_within(names_by_inode: _Names, folder: int) -> tuple[bytes, ...] | None:
    """Returns the path of a folder, if `names_by_inode` has all names up to the root."""
    path = list[bytes]()
    while folder != _ROOT_FOLDER:
        if not (names := names_by_inode.get(folder)):
            return None
        folder, name = names[0]
        path.append(name)
    return tuple(reversed(path))


def _near_each_other(inodes: Sequence[int]) -> Iterator[list[int]]:
    """Yields inode numbers in order, in groups between which there are many others."""
    group = list(inodes[:1])
    for ino in inodes[1:]:
        if ino - group[-1] > _NEAR:
            yield group
            group = []
        group.append(ino)
    if group:
        yield group


def _last_name_of(ino: int) -> Key:
    return ino, ctree.INODE_EXTREF_KEY, numbers.ULLONG_MAX


Reference = tuple[int, int, int]
"""(inode, offset in the file, subvolume)."""
_ARGS = Struct("=QQ24xQQ")  # logical, size of the buffer, flags, address of the buffer
_COUNTS = Struct("=LLLL")  # bytes left, bytes missing, elements, elements missed
_WHOLE_EXTENT = 1  # finds references to any part of the extent, not only to the byte at the address
_SMALL, _LARGE = 64 << 10, 16 << 20  # the largest that the kernel takes
_NOTHING_THERE = (errno.ENOENT, errno.EINVAL)  # free space; a tree block


class Owners:
    """Searches for one address after the other, with one buffer. `fd` is any folder of the filesystem."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = ctypes.create_string_buffer(_SMALL)

    def of(self, vaddr: int) -> frozenset[int] | None:
        """Returns the ids of the subvolumes that refer to the data extent containing `vaddr`; None if there is no data.

        As of the last commit. Empty if the extent is no longer referenced. Raises OSError (EPERM without CAP_SYS_ADMIN). For an
        extent with more than 700,000 references the kernel returns only a part.
        """
        missing = self._ask(vaddr)
        if missing:
            self._buffer = ctypes.create_string_buffer(_LARGE)
            missing = self._ask(vaddr)
        if missing is None:
            return None
        return frozenset(self._values()[2::3])

    def references(self, vaddr: int) -> list[Reference] | None:
        """Returns (inode, offset in the file, subvolume) of each reference to the byte at `vaddr`; None if there is no data.

        For a compressed extent the offset is the start of the file's extent. Otherwise like `of`.
        """
        missing = self._ask(vaddr, 0)
        if missing:
            self._buffer = ctypes.create_string_buffer(_LARGE)
            missing = self._ask(vaddr, 0)
        if missing is None:
            return None
        values = self._values()
        return list(zip(values[::3], values[1::3], values[2::3], strict=True))

    def _values(self) -> "array[int]":
        """inode, offset, root, and so on."""
        count = _COUNTS.unpack_from(self._buffer)[2]
        return array("Q", memoryview(self._buffer).cast("B")[_COUNTS.size : _COUNTS.size + 8 * count].tobytes())

    def _ask(self, vaddr: int, flags: int = _WHOLE_EXTENT) -> int | None:
        """Number of references that did not fit into the buffer; None if there is no data."""
        arguments = _ARGS.pack(vaddr, len(self._buffer), flags, ctypes.addressof(self._buffer))
        try:
            ioctl(self._fd, numbers.IOC_LOGICAL_INO_V2, arguments)
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return None
            raise
        return int(_COUNTS.unpack_from(self._buffer)[3])
