"""The order in which the pixels of a square picture are filled: along a Hilbert curve, or line by line.

A picture of order n has 2**n lines of 2**n pixels. `laid_out` puts what lies along the curve into its place, in whole arrays.

The Hilbert curve begins in the lower left corner and ends in the lower right one:

    order 1:  1 2    order 2:  5  6  9 10     A quarter is the whole curve of the order below, turned or mirrored. Four ways
              0 3              4  7  8 11     of doing so come up; each is named for the moves between its quarters, and made of
                               3  2 13 12     the four that stand beside it.
                               0  1 14 15
"""

from functools import cache

import numpy as np

from btrkeep.choices import CURVES
from heatmap.state import Array

HILBERT, LINEAR, SNAKE = CURVES

_BOTTOM_LEFT, _BOTTOM_RIGHT, _TOP_LEFT, _TOP_RIGHT = (1, 0), (1, 1), (0, 0), (0, 1)  # lower, right
# Up right down, right up left, left down right, down left up: where each begins and goes, and the ways of its quarters.
_URD, _RUL, _LDR, _DLU = range(4)
_QUARTERS = {
    _URD: (_BOTTOM_LEFT, _TOP_LEFT, _TOP_RIGHT, _BOTTOM_RIGHT),
    _RUL: (_BOTTOM_LEFT, _BOTTOM_RIGHT, _TOP_RIGHT, _TOP_LEFT),
    _LDR: (_TOP_RIGHT, _TOP_LEFT, _BOTTOM_LEFT, _BOTTOM_RIGHT),
    _DLU: (_TOP_RIGHT, _BOTTOM_RIGHT, _BOTTOM_LEFT, _TOP_LEFT),
}
_WAYS = {
    _URD: (_RUL, _URD, _URD, _LDR),
    _RUL: (_URD, _RUL, _RUL, _DLU),
    _LDR: (_DLU, _LDR, _LDR, _URD),
    _DLU: (_LDR, _DLU, _DLU, _RUL),
}
_LOWER = np.array([[quarter[0] for quarter in _QUARTERS[way]] for way in range(4)])
_RIGHT = np.array([[quarter[1] for quarter in _QUARTERS[way]] for way in range(4)])
_NEXT = np.array([_WAYS[way] for way in range(4)])
_TILE_ORDER = 7  # 16,384 pixels


def laid_out(curve: str, order: int, along: Array) -> Array:
    """T[2**order, 2**order, ...]: the picture of `along`, T[4**order, ...], which may be a view of it."""
    edge = 1 << order
    if curve == HILBERT:
        return _hilbert(order, along)
    picture = along.reshape(edge, edge, *along.shape[1:])
    if curve == SNAKE:
        picture = picture.copy()
        picture[1::2] = picture[1::2, ::-1]
    return picture


def _hilbert(order: int, along: Array) -> Array:
    """Computes the curve tile by tile: four tables say where the pixels of each go, so that the work stays in the processor's
    cache.
    """
    low = min(order, _TILE_ORDER)
    edge, size = 1 << low, 4**low
    tables = _tables(low)
    picture = np.empty((1 << order, 1 << order, *along.shape[1:]), along.dtype)
    for number, (line, column, way) in enumerate(zip(*_tiles(order - low), strict=True)):
        tile = along[number * size : (number + 1) * size]
        picture[line * edge : (line + 1) * edge, column * edge : (column + 1) * edge] = tile[tables[way]]
    return picture


def _tiles(order: int) -> tuple[list[int], list[int], list[int]]:
    """Line, column and way of each of 4**order tiles along the curve: each level divides all tiles of the one above."""
    line, column, way = np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, _URD)
    for _ in range(order):
        line = (line[:, None] * 2 + _LOWER[way]).ravel()
        column = (column[:, None] * 2 + _RIGHT[way]).ravel()
        way = _NEXT[way].ravel()
    return line.tolist(), column.tolist(), way.tolist()


@cache
def _tables(order: int) -> list[Array]:
    """i64[2**order, 2**order] for each way: at which place along the curve each pixel of a tile is."""
    tables = [np.zeros((1, 1), np.int64)] * 4
    for level in range(order):
        tables = [_joined(way, tables, 4**level) for way in range(4)]
    return tables


def _joined(way: int, tables: list[Array], size: int) -> Array:
    edge = len(tables[0])
    table = np.empty((2 * edge, 2 * edge), np.int64)
    for number, ((lower, right), quarter) in enumerate(zip(_QUARTERS[way], _WAYS[way], strict=True)):
        table[lower * edge : (lower + 1) * edge, right * edge : (right + 1) * edge] = tables[quarter] + number * size
    return table
