"""Whether the disk gives back the metadata of a subvolume. Needs no NumPy."""

from collections.abc import Callable
from struct import Struct

from btrkeep.errors import DAMAGED
from btrkeep.treescan.search import HEADER_SIZE, TYPE_AND_LEN_AT, TreeSearch

_LEN = Struct("=L")
_LEN_AT = TYPE_AND_LEN_AT + 4


def has_readable_tree(fd: int, since: int = 0, pulse: Callable[[], None] = lambda: None) -> bool:
    """Returns False if the disk cannot give back some of the metadata of the subvolume of `fd`: names, owners, where data lies.

    Reads all that was written in that generation or later, 16 KiB for some 30 files, and no data. `pulse` is called after each 256
    KiB, and may raise. Raises OSError for an error that is no damage.
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
    """Returns where the last of the buffer's items begins."""
    at = search.first_header
    for _ in range(count - 1):
        at += HEADER_SIZE + _LEN.unpack_from(search.buffer, at + _LEN_AT)[0]
    return at
