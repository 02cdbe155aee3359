"""Finds the items of a search buffer and their headers, as an array."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from btrkeep.treescan.search import HEADER_SIZE, LEN, LEN_AT, TreeSearch

U64 = np.dtype("<u8")
U32 = np.dtype("<u4")
HEADER = np.dtype([("transid", U64), ("objectid", U64), ("offset", U64), ("type", U32), ("len", U32)])

Array = NDArray[Any]


def positions(buffer: bytearray, start: int, count: int) -> Array:
    """int64[count]: the positions of the items' headers. `start`: that of the first.

    Most trees have items of one size, which one comparison shows. Otherwise the chain is followed, with one number for each item,
    because an item's position depends on the size of the one before it.
    """
    size = HEADER_SIZE + LEN.unpack_from(buffer, start + LEN_AT)[0]
    if start + (count - 1) * size + HEADER_SIZE <= len(buffer):
        sizes = np.ndarray((count,), U32, buffer, start + LEN_AT, (size,))
        if (sizes[:-1] == size - HEADER_SIZE).all():
            return np.arange(start, start + count * size, size)
    return _walked(buffer, start, count)


def _walked(buffer: bytearray, start: int, count: int) -> Array:
    places, size_at, unpack = [], start + LEN_AT, LEN.unpack_from
    for _ in range(count):
        places.append(size_at)
        size_at += HEADER_SIZE + unpack(buffer, size_at)[0]
    return np.array(places) - LEN_AT


def batches(search: TreeSearch) -> Iterator[tuple[Array, Array]]:
    """Runs a search to its end, a buffer at a time: yields the positions of the items' headers, int64[n], and the headers,
    HEADER[n].

    The buffer contains the batch until the next one is requested. Raises OSError.
    """
    while count := search.fill():
        at = positions(search.buffer, search.first_header, count)
        yield at, headers(search.buffer, at)
        search.resume_after(int(at[-1]))


def headers(buffer: bytearray, at: Array) -> Array:
    """HEADER[n]: the headers at these positions."""
    return gathered(buffer, at, HEADER)


def gathered(buffer: bytearray, at: Array, layout: np.dtype[Any]) -> Array:
    """layout[n]: copies of the structures at these positions, which need not be aligned.

    They are taken from a view with one structure at each byte: this copies whole structures instead of indexing each byte. NumPy
    copies opaque bytes ten times as fast as fields.
    """
    if not len(at):
        return np.zeros(0, layout)
    every = np.ndarray((len(buffer) - layout.itemsize + 1,), f"V{layout.itemsize}", buffer, 0, (1,))
    taken: Array = every[at].view(layout)
    return taken
