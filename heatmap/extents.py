"""Block groups at extent level: where in them something lies, and whose the tree blocks are. One, or more in a row."""

from collections.abc import Callable

import numpy as np

from btrkeep.treescan.extents import SHARED, Extents, extents
from heatmap.grid import Canvas, choose
from heatmap.overview import CellColours, Cells, Drawing
from heatmap.state import Array

ExtentColouring = Callable[[Extents], CellColours]
"""How extents are coloured. What is free stays black."""

WHITE = (0xFF, 0xFF, 0xFF)
FS_TREE = 5
TREES = {
    1: ("root tree", (0xCA, 0x53, 0x5C)),
    2: ("extent tree", (0x9D, 0x54, 0x9C)),
    3: ("chunk tree", (0x81, 0x88, 0x3C)),
    4: ("device tree", (0x6A, 0x5A, 0x7F)),
    FS_TREE: ("subvolumes", (0xAA, 0xCC, 0xEB)),
    7: ("checksum tree", (0x6E, 0xA6, 0x34)),
    8: ("quota tree", (0xDE, 0x5D, 0x94)),
    9: ("uuid tree", (0x6F, 0x5E, 0x55)),
    10: ("free space tree", (0xDB, 0xC9, 0xEA)),
    2**64 - 9: ("data relocation tree", (0x75, 0x77, 0x7B)),
}
"""Name and colour of what tree blocks belong to, by the tree's id (btrfs_tree.h). Others are white, as data is."""

_NAMED = 16
_FIRST_SUBVOLUME, _LAST_SUBVOLUME = 256, 2**64 - 256


def by_tree(batch: Extents) -> CellColours:
    """Paints data white and tree blocks in the colour of their tree; all subvolumes, and shared blocks, have one colour."""
    owner = batch.owner.copy()
    is_subvolume = (owner >= np.uint64(_FIRST_SUBVOLUME)) & (owner <= np.uint64(_LAST_SUBVOLUME))
    owner[is_subvolume | (owner == SHARED) | (batch.refs > 1)] = FS_TREE
    rgb = np.full((len(owner), 3), WHITE, np.uint8)
    for tree, (_, colour) in TREES.items():
        rgb[batch.is_tree_block & (owner == np.uint64(tree))] = colour
    return CellColours(rgb, np.ones(len(owner)))


def draw_extents(
    fd: int,
    vaddr: Array,
    length: Array,
    sectorsize: int,
    *,
    order: int | None,
    size: int | None,
    curve: str,
    colouring: ExtentColouring,
) -> Drawing:
    """The picture of these block groups, u64[n] each, by address. Extents are read and drawn in batches, however many there are.

    Raises OSError, OperatorError: `size` below `order`.
    """
    grid = choose(order, size, curve, int(length.sum()), sectorsize)
    canvas = Canvas(grid)
    behind = (np.cumsum(length) - length).astype(np.int64)
    for batch in extents(fd, int(vaddr[0]), int(vaddr[-1] + length[-1]) - 1):
        paint = colouring(batch)
        group = np.maximum(np.searchsorted(vaddr, batch.vaddr, "right") - 1, 0)
        within = batch.vaddr - vaddr[group]
        inside = within < length[group]
        first_byte = (behind[group] + within.astype(np.int64))[inside]
        canvas.fill(first_byte, batch.length[inside].astype(np.int64), paint.share[inside], paint.rgb[inside])
    scope = f"block_group {' '.join(map(str, vaddr.tolist()))}" if len(vaddr) <= _NAMED else f"block_groups {len(vaddr)}"
    return Drawing(grid, scope, Cells(behind, length.astype(np.int64), np.arange(len(vaddr)), None, None), canvas.finish())
