"""A small map of a block group for the terminal: used and free space, in half blocks. Pure.

Addresses run from left to right, and each row of text is two lines of the map: the upper and the lower halves.
"""

from collections.abc import Callable

import numpy as np

from balancer.score import Array

HALVES = " ▄▀█"
"""By (upper is used) * 2 + (lower is used)."""
ASCII = " .'#"
_DARKEST, _GREYS = 234, 20  # of xterm's 256 colours: greys, from free to used

Paint = Callable[[str, int, int], str]
"""A character, the colour of its upper half and that of its lower one."""


def used_shares(vaddr: Array, length: Array, start: int, size: int, cells: int) -> Array:
    """f64[cells]: how much is used of each cell of a block group. `vaddr`, `length`: u64[n], its free extents, in order."""
    edges = np.array([start + size * number // cells for number in range(cells + 1)], np.uint64)
    before = np.concatenate((np.zeros(1, np.uint64), np.cumsum(length)))
    number = np.searchsorted(vaddr, edges, "right")
    end = np.concatenate((np.zeros(1, np.uint64), vaddr + length))[number]
    free_until = (before[number] - np.where(end > edges, end - edges, np.uint64(0))).astype(np.float64)
    shares: Array = 1 - np.diff(free_until) / np.diff(edges).astype(np.float64)
    return shares


def rows(shares: Array, width: int, paint: Paint | None = None, characters: str = HALVES) -> list[str]:
    """Returns the map as rows of text, `width` characters each; `shares`: f64[2 * width * rows].

    Without colours, a half block is drawn if more than half of its range is used. `paint` shows the share by brightness.
    """
    halves = shares.reshape(-1, 2, width)
    if paint:
        grey = _DARKEST + np.rint(halves * _GREYS).astype(np.int64)
        return ["".join(paint(HALVES[2], *pair) for pair in zip(*lines.tolist(), strict=True)) for lines in grey]
    numbers = (halves[:, 0] > 0.5) * 2 + (halves[:, 1] > 0.5)
    return ["".join(characters[number] for number in line) for line in numbers.tolist()]
