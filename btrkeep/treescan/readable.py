"""Whether the disk gives back the metadata of a subvolume. Needs no NumPy."""

from struct import Struct

from btrkeep.errors import DAMAGED
from btrkeep.treescan.search import HEADER, HEADER_SIZE, TYPE_AND_LEN_AT, Key, TreeSearch

_LEN = Struct("=L")
_LEN_AT = TYPE_AND_LEN_AT + 4
_LEAF = 16 * 1024  # bytes: with more, what lies between two changed leaves would be read as well


def has_readable_tree(fd: int, since: int = 0) -> bool:
    """Returns False if the disk cannot give back some of the metadata of the subvolume of `fd`: names, owners, where data lies.

    Reads all that was written in that generation or later, 16 KiB for some 30 files, and no data. Raises OSError for an error that
    is no damage.
    """
    return _is_readable(TreeSearch(fd, since=since))


def has_readable_where_changed(fd: int, descendant: int, since: int) -> bool:
    """Returns the same of what a subvolume that was made of it has changed since that generation, and so no longer shares with it.

    What has gone there without a trace, as leaves whose files were all removed, is not found.
    """
    changed, own = TreeSearch(descendant, since=since, buffer_size=_LEAF), TreeSearch(fd)
    try:
        while count := changed.fill():
            last = _last(changed, count)
            own.restart(0, _key(changed, changed.first_header), _key(changed, last))
            if not _is_readable(own):
                return False
            changed.resume_after(last)
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        return has_readable_tree(fd)  # what the other one has changed cannot be known
    return True


def _is_readable(search: TreeSearch) -> bool:
    try:
        while count := search.fill():
            search.resume_after(_last(search, count))
    except OSError as error:
        if error.errno in DAMAGED:
            return False
        raise
    return True


def _last(search: TreeSearch, count: int) -> int:
    """Returns where the last of the buffer's items begins."""
    at = search.first_header
    for _ in range(count - 1):
        at += HEADER_SIZE + _LEN.unpack_from(search.buffer, at + _LEN_AT)[0]
    return at


def _key(search: TreeSearch, at: int) -> Key:
    _, objectid, offset, kind, _ = HEADER.unpack_from(search.buffer, at)
    return objectid, kind, offset
