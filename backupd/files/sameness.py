"""Decides whether a name in two backups has the same data: without reading it, if possible.

A snapshot shares unchanged data, so most equal files are the same inode or have the same extents.
"""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice

from backupd.files.tree import Entry, Tree
from btrkeep.fs.file_data import extents

# Files with more extents are read instead: for each extent the kernel searches for all references.
_MOST = 128
_LAST, _SHARED = 0x1, 0x2000
# unknown, delalloc, encoded, encrypted, not aligned, inline, tail: FIEMAP has no address for some of the data. For a
# compressed extent FIEMAP has the start, but not which part of it belongs to the file.
_UNSURE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
_INLINE = 4096  # bytes; such a file may be inline in the metadata, and is read as fast as its extents are compared
_PIECE = 1 << 20

Extents = tuple[tuple[int, int, int, int], ...]
Pulse = Callable[[], None]
"""Called before each name and each mebibyte that is read. It may raise, preferably `TimeBudgetUsedUp`, to end the work."""


class TimeBudgetUsedUp(Exception):
    """The time budget of the request is used up. Partial results are valid. This is not an error."""


def steady() -> None:
    """The pulse of a caller without a time limit."""


def untouched(entry: Entry, other: Entry) -> bool:
    """Returns True if it is the same inode and was not changed in between: neither data, mode, owner, ACL nor links.

    Inode numbers alone do not prove it, because a backup may have started from an empty subvolume. The inode's change time (ctime)
    in nanoseconds does: this server sets it, and no host can influence it.
    """
    return (entry.kind, entry.inode, entry.changed, entry.size) == (other.kind, other.inode, other.changed, other.size)


def same_data(tree: Tree, entry: Entry, other_tree: Tree, other: Entry) -> bool | None:
    """Returns True if two plain files of the same size have the same data; None if more than 4 KiB would have to be
    read to know.
    """
    if untouched(entry, other):
        return True
    if entry.size != other.size:
        return False
    if entry.size <= _INLINE:
        return read(tree, entry.path, _INLINE) == read(other_tree, other.path, _INLINE)
    places = extents_of(tree, entry.path)
    return True if places is not None and places == extents_of(other_tree, other.path) else None


def equal_data(tree: Tree, entry: Entry, other_tree: Tree, other: Entry, pulse: Pulse) -> bool:
    """Returns True if two plain files of the same size have the same data; reads them if necessary."""
    same = same_data(tree, entry, other_tree, other)
    if same is not None:
        return same
    pairs = zip(pieces(tree, entry.path, pulse), pieces(other_tree, other.path), strict=False)
    return all(piece == two for piece, two in pairs)


def sha256(tree: Tree, path: bytes, pulse: Pulse = steady) -> str:
    """The checksum of a plain file, as `sha256sum` writes it."""
    from hashlib import sha256 as new  # only needed to read contents

    digest = new()
    for piece in pieces(tree, path, pulse):
        digest.update(piece)
    return digest.hexdigest()


def read(tree: Tree, path: bytes, limit: int) -> bytes:
    """Returns the first bytes of a regular file, at most `limit`."""
    with os.fdopen(tree.open_file(path), "rb", buffering=0) as file:
        data = b""
        while len(data) < limit and (piece := file.read(limit - len(data))):
            data += piece
        return data


def pieces(tree: Tree, path: bytes, pulse: Pulse = steady) -> Iterator[bytes]:
    """Yields the data of a regular file, a mebibyte at a time."""
    with os.fdopen(tree.open_file(path), "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            pulse()
            yield piece


def extents_of(tree: Tree, path: bytes) -> Extents | None:
    """Returns the extents of a plain file: (offset, place on disk, length, flags) each; None if the kernel does not report them."""
    fd = tree.open_file(path)
    try:
        return _extents(fd)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY):
            return None
        raise
    finally:
        os.close(fd)


def _extents(fd: int) -> Extents | None:
    extent_list = list(islice(extents(fd, at_a_time=_MOST), _MOST))  # one call of the kernel
    if any(flags & _UNSURE for *_, flags in extent_list) or (extent_list and not extent_list[-1][3] & _LAST):
        return None
    return tuple((logical, physical, length, flags & ~(_LAST | _SHARED)) for logical, physical, length, flags in extent_list)
