"""When each subvolume was last changed, from the root tree, and whether the metadata of one is readable. Without NumPy.

A ROOT_ITEM (struct btrfs_root_item) has the transaction of the last change to a file of its subvolume, ctransid. Setting or
clearing the read-only flag, a snapshot, a deletion or a balance do not change it; sharing of data (FIDEDUPERANGE) does.
"""

from collections.abc import Callable
from struct import Struct

from btrfs import ctree

from btrkeep.errors import DAMAGED
from btrkeep.treescan.search import HEADER, HEADER_SIZE, TYPE_AND_LEN_AT, TreeSearch

_TYPE_AND_LEN = Struct("=LL")
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
            kind, size = _TYPE_AND_LEN.unpack_from(buffer, type_at)
            if kind == ctree.ROOT_ITEM_KEY and size >= _CTRANSID.size:
                id_ = HEADER.unpack_from(buffer, type_at - TYPE_AND_LEN_AT)[1]
                changes[id_] = _CTRANSID.unpack_from(buffer, type_at + _TYPE_AND_LEN.size)[0]
            type_at += size + HEADER.size
        search.resume_after(type_at - size - HEADER.size - TYPE_AND_LEN_AT)
    return changes


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
