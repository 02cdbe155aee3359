"""Reads btrfs trees in bulk: TREE_SEARCH_V2 into one large buffer, without a Python object per item.

A search reads the trees in memory. Changes since the last commit may still be delayed (delayed inodes, delayed references), so
callers that need the present state commit first, by creating a snapshot or with the SYNC ioctl (`btrfs filesystem sync`).

`links` needs no NumPy and is what a backup imports. `free_space`, `block_groups` and `extents` return NumPy arrays.
"""

from btrkeep.treescan.changed import (
    ChangedInode,
    SubvolumeGrowth,
    changed_inodes,
    growth,
    has_readable_tree,
    last_changes,
    written_bytes,
    written_files,
)
from btrkeep.treescan.links import FolderPaths, LinkedInode, linked_inodes
from btrkeep.treescan.search import BUFFER_SIZE

__all__ = [
    "BUFFER_SIZE",
    "ChangedInode",
    "FolderPaths",
    "LinkedInode",
    "SubvolumeGrowth",
    "changed_inodes",
    "growth",
    "has_readable_tree",
    "last_changes",
    "linked_inodes",
    "written_bytes",
    "written_files",
]
