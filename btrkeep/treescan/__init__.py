"""Reads btrfs trees in bulk: TREE_SEARCH_V2 into one large buffer, and no Python object per item.

A search sees what is in the tree. What was changed since the last commit of a transaction may still wait outside of it (delayed
inodes, delayed references), so who needs the state of this moment commits first: the creation of a snapshot does, and so does the
SYNC ioctl (`btrfs filesystem sync`).

`links` needs no NumPy and is what a backup imports. `free_space`, `block_groups`, `chunks` and `extents` give NumPy arrays.
"""

from btrkeep.treescan.changed import ChangedInode, changed_inodes
from btrkeep.treescan.links import FolderPaths, LinkedInode, linked_inodes
from btrkeep.treescan.search import BUFFER_SIZE
from btrkeep.treescan.written import SubvolumeGrowth, growth, written_bytes, written_files

__all__ = [
    "BUFFER_SIZE",
    "ChangedInode",
    "FolderPaths",
    "LinkedInode",
    "SubvolumeGrowth",
    "changed_inodes",
    "growth",
    "linked_inodes",
    "written_bytes",
    "written_files",
]
