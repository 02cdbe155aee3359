"""Colours of extents: the tree to which their blocks belong. test_same_picture.py compares whole pictures with the peer's."""

import numpy as np
import pytest

from btrkeep.treescan.extents import SHARED, Extents
from heatmap.state_reader import FS_TREE, TREES, WHITE, by_tree

SUBVOLUME = TREES[FS_TREE][1]
CHECKSUMS = TREES[7][1]


@pytest.mark.parametrize(
    ("refs", "is_tree_block", "owner", "colour"),
    [
        (1, True, 7, CHECKSUMS),
        (2, True, 7, SUBVOLUME),  # only subvolumes share
        (1, True, SHARED, SUBVOLUME),
        (1, True, 5, SUBVOLUME),
        (1, True, 256, SUBVOLUME),
        (1, True, 2**64 - 256, SUBVOLUME),
        (1, True, 2**64 - 255, WHITE),
        (1, True, 255, WHITE),
        (1, True, 2**64 - 9, TREES[2**64 - 9][1]),
        (1, True, 11, WHITE),
        (1, False, 7, WHITE),
        (5, False, 256, WHITE),
    ],
)
def test_an_extent_has_the_colour_of_its_tree(refs: int, is_tree_block: bool, owner: int, colour: tuple[int, int, int]) -> None:
    """The peer decides in the same way: for the peer, 0 is not a tree, but a reference that names no tree."""
    one_group = np.ones(1, np.uint64)
    batch = Extents(
        one_group, one_group, one_group * np.uint64(refs), one_group, np.array([is_tree_block]), np.array([owner], np.uint64)
    )
    paint = by_tree(batch)
    assert tuple(paint.rgb[0].tolist()) == colour
    assert paint.share.tolist() == [1.0]
