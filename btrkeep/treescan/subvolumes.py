"""How many subvolumes there are."""

from btrfs import ctree

from btrkeep.treescan.items import headers, positions
from btrkeep.treescan.search import TreeSearch


def count_subvolumes(fd: int) -> int:
    """Subvolumes and snapshots of the filesystem that `fd` is on, without the top one and those that are deleted already.

    Each has a ROOT_BACKREF, which its deletion takes away; `btrfs subvolume list` counts them too. Raises OSError (EPERM without
    CAP_SYS_ADMIN).
    """
    found = 0
    first, last = (ctree.FIRST_FREE_OBJECTID, 0, 0), (ctree.LAST_FREE_OBJECTID, 255, ctree.ULLONG_MAX)
    search = TreeSearch(fd, ctree.ROOT_TREE_OBJECTID, first, last)
    while count := search.fill():
        at = positions(search.buffer, search.first_header, count)
        found += int((headers(search.buffer, at)["type"] == ctree.ROOT_BACKREF_KEY).sum())
        search.resume_after(int(at[-1]))
    return found
