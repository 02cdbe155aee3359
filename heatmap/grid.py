"""How bytes become pixels: the order of the pixels, and the content of each, mixed according to its share of the pixel.

The arithmetic is that of knorrie's btrfs-heatmap, operation by operation in double precision, so that no pixel differs:

* A pixel represents `bytes_per_pixel` bytes. A fill, `length` bytes from `first_byte` on, covers a part of its first pixel, a part
  of its last one, and all between them.
* A pixel's colour is the sum of the fills' colours, and its share the sum of their shares, each weighted by the part that it
  covers; in the order of the fills, because sums of floats depend on it. Pixels without a fill stay black.
* Its brightness is 0.1 + share * 0.9, and colour times brightness is rounded, half to even.

A picture of order n has 2**n lines of 2**n pixels. `laid_out` moves the pixels along the curve to their places, in whole arrays.

The Hilbert curve starts in the lower left corner and ends in the lower right one:

    order 1:  1 2    order 2:  5  6  9 10     A quarter is the whole curve of the order below, turned or mirrored. There are
              0 3              4  7  8 11     four ways of doing so; each is named after the moves between its quarters, and
                               3  2 13 12     consists of the four that are listed with it.
                               0  1 14 15
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from btrkeep.choices import CURVES
from btrkeep.errors import OperatorError
from heatmap.filesystem_state import Array

HILBERT, LINEAR, SNAKE = CURVES

_BOTTOM_LEFT, _BOTTOM_RIGHT, _TOP_LEFT, _TOP_RIGHT = (1, 0), (1, 1), (0, 0), (0, 1)  # lower, right
# The four curves (up right down, right up left, left down right, down left up): order of the quarters, and curve of each.
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
    """Computes the curve tile by tile: four tables have the positions of the pixels of each, so that the work stays in the
    processor's cache.
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
    """Line, column and way of each of 4**order tiles along the curve: each level divides all tiles of the level above."""
    line, column, way = np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, _URD)
    for _ in range(order):
        line = (line[:, None] * 2 + _LOWER[way]).ravel()
        column = (column[:, None] * 2 + _RIGHT[way]).ravel()
        way = _NEXT[way].ravel()
    return line.tolist(), column.tolist(), way.tolist()


@cache
def _tables(order: int) -> list[Array]:
    """i64[2**order, 2**order] for each way: the position along the curve of each pixel of a tile."""
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


MIN_BRIGHTNESS = 0.1
OVERVIEW_GRANULARITY = 32 << 20
"""Approximate bytes of a pixel if the order of the picture is not given: for a whole filesystem."""
_AUTOMATIC = 10


@dataclass(frozen=True, slots=True)
class Grid:
    """A square of 2**order pixels in a picture of 2**size, along a curve, that represents `total_bytes`."""

    curve: str
    order: int
    size: int
    total_bytes: int

    @property
    def edge(self) -> int:
        """Number of lines, and of pixels of a line, before they are enlarged."""
        return 1 << self.order

    @property
    def scale(self) -> int:
        """Number of lines, and of columns, of the picture for one pixel."""
        return 1 << (self.size - self.order)

    @property
    def bytes_per_pixel(self) -> float:
        """Returns the bytes of a pixel, usually not an integer."""
        return float(self.total_bytes / 4**self.order)


def choose_grid(order: int | None, size: int | None, curve: str, total_bytes: int, granularity: int) -> Grid:
    """Returns the grid: without an order one whose pixels are `granularity` bytes or less, with order 10 at most; size is 10 or
    more.

    Raises OperatorError: `size` below `order`.
    """
    chosen = order
    if chosen is None:
        chosen = max(0, min(_AUTOMATIC, math.ceil(math.log2(math.sqrt(total_bytes / granularity)))))
    if size is None:
        size = max(chosen, _AUTOMATIC)
    if size < chosen:
        if order is not None:
            raise OperatorError(
                f"size ({size}) cannot be smaller than order ({order})", "a picture has 2^size lines, 2^order of them differ"
            )
        chosen = size
    return Grid(curve, chosen, size, total_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A picture along its curve, as k runs of pixels with the same colour."""

    begin: Array
    """i64[k]: the position at which each run begins; it ends where the next run begins."""
    rgb: Array
    """u8[k, 3]: its colour."""
    count: int
    """Number of pixels of the picture."""

    def pixels(self) -> Array:
        """u8[count, 3]: each pixel."""
        return np.repeat(self.rgb, self._lengths(), axis=0)

    def words(self, grid: Grid) -> Array:
        """u32[edge, edge]: each pixel at its position, with the bytes red, green, blue and zero. One number is copied faster than
        three.
        """
        words = np.zeros((len(self.rgb), 4), np.uint8)
        words[:, :3] = self.rgb
        return laid_out(grid.curve, grid.order, np.repeat(words.view(np.uint32)[:, 0], self._lengths()))

    def _lengths(self) -> Array:
        return np.diff(self.begin, append=self.count)


_Parts = tuple[Array, Array, Array, Array]


class Canvas:
    """Takes fills in increasing order, in batches of any size, and keeps only what the picture needs."""

    def __init__(self, grid: Grid, min_brightness: float = MIN_BRIGHTNESS) -> None:
        self._grid, self._count = grid, 4**grid.order
        self._min_brightness = min_brightness
        # The last pixel may not be full yet: its place, part, share and colour are kept for the next fills.
        self._held: _Parts = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros((0, 3), np.uint8))
        nothing = np.zeros((0, 3), np.uint8)
        self._pixels = [(np.zeros(0, np.int64), nothing)]
        self._spans = [(np.zeros(0, np.int64), np.zeros(0, np.int64), nothing)]

    def fill(self, first_byte: Array, length: Array, share: Array, colour: Array) -> None:
        """Paints n fills: `first_byte`, `length` i64[n], `share` f64[n] from 0 to 1, `colour` u8[n, 3]."""
        size = self._grid.bytes_per_pixel
        end = first_byte + length
        first, last = (np.minimum(at / size, self._count - 1).astype(np.int64) for at in (first_byte, end - 1))
        in_one = first == last
        part_of_first = np.where(in_one, length / size, (size - np.fmod(first_byte, size)) / size)
        part_of_last = np.fmod(end, size) / size
        part_of_last[part_of_last == 0] = 1
        # First pixel, last pixel, first pixel of the next fill ...: the order in which they are added.
        counted = np.column_stack((np.ones(len(first), bool), ~in_one)).ravel()
        fill = np.repeat(np.arange(len(first)), 2)[counted]
        place, part = (np.column_stack(pair).ravel()[counted] for pair in ((first, last), (part_of_first, part_of_last)))
        self._mix((place, part, share[fill], colour[fill]))
        inner = last - first > 1
        bright = _bright(colour[inner].astype(np.float64), share[inner], self._min_brightness)
        self._spans.append((first[inner] + 1, last[inner], bright))

    def _mix(self, new: _Parts) -> None:
        place, part, share, colour = (np.concatenate((held, more)) for held, more in zip(self._held, new, strict=True))
        place = np.maximum.accumulate(place)  # a tree that changes while it is read may return a place twice
        held = int(np.searchsorted(place, place[-1:])[0]) if len(place) else 0
        self._held = (place[held:], part[held:], share[held:], colour[held:])
        self._finish(place[:held], part[:held], share[:held], colour[:held])

    def _finish(self, place: Array, part: Array, share: Array, colour: Array) -> None:
        """Finishes the pixels that are complete."""
        begins = np.concatenate(([True], place[1:] != place[:-1]))[: len(place)]
        pixel, count = np.cumsum(begins) - 1, int(begins.sum())
        # bincount adds sequentially, like a loop; other sums of NumPy add in pairs.
        sums = [np.bincount(pixel, weights * part, count) for weights in (colour[:, 0], colour[:, 1], colour[:, 2], share)]
        self._pixels.append((place[begins], _bright(np.column_stack(sums[:3]), sums[3], self._min_brightness)))

    def finish(self) -> Runs:
        """Returns the picture. Nothing may be painted afterwards."""
        self._finish(*self._held)
        at, mixed = (np.concatenate(column) for column in zip(*self._pixels, strict=True))
        begin, end, whole = (np.concatenate(column) for column in zip(*self._spans, strict=True))
        bounds = np.unique(np.concatenate(([0], at, at + 1, begin, end)))
        bounds = bounds[bounds < self._count]
        rgb = np.zeros((len(bounds), 3), np.uint8)
        rgb[np.searchsorted(bounds, begin)] = whole
        rgb[np.searchsorted(bounds, at)] = mixed
        return Runs(bounds, rgb, self._count)


def _bright(colour: Array, share: Array, min_brightness: float) -> Array:
    brightness = min_brightness + share * (1 - min_brightness)
    return np.clip(np.rint(colour * brightness[:, None]), 0, 255).astype(np.uint8)
