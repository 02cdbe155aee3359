"""What is under the pointer: which places along the curve each piece of a picture takes up, for a page to look up.

How a page finds what is at (x, y) of a picture, counted from 0, from the left and from above:

1. Divide both by 2**(size - order), rounding down: pixels were enlarged so much.
2. `step` of web/static/heatmap.js says which place along the curve that is. Line by line (linear) it is y * 2**order + x; snake
   goes back in every second line; for hilbert there is a loop of as many rounds as the order.
3. Entries are sorted by `start` and each takes the places from `start` up to, and without, `end`. Several can share a place: all
   with start <= place < end are in that pixel. None: nothing is allocated there.
"""

import json
from typing import Any

import numpy as np

from btrkeep.fs.output_file import whole_file
from btrkeep.units import format_time
from heatmap.overview import Drawing
from heatmap.state import Array, FilesystemState

FORMAT = 1


def pixel_map(state: FilesystemState, drawn: Drawing) -> dict[str, Any]:
    """The map of a picture of a whole filesystem, ready for JSON: about the picture, and `entries`, a list for each column.

    `start` and `end` are places; `vaddr`, `length`, `used`, `flags` and `score` the block group's. `devid` and `paddr` are the
    device extent's; sorted by virtual address, where an entry is all of a chunk's device extents, they are missing. `score` is null
    for what holds no data, and missing where no scores were read. All sizes are bytes.
    """
    grid, cells = drawn.grid, drawn.cells
    start, last = (places(at, grid.bytes_per_pixel, grid.order) for at in (cells.first_byte, cells.first_byte + cells.length - 1))
    columns: dict[str, Array | None] = {
        "start": start,
        "end": last + 1,
        "devid": cells.devid,
        "paddr": cells.paddr,
        **{name: getattr(state, f"bg_{name}")[cells.group] for name in ("vaddr", "length", "used", "flags")},
    }
    entries: dict[str, list[Any]] = {name: column.tolist() for name, column in columns.items() if column is not None}
    if state.score is not None:
        entries["score"] = [None if np.isnan(one) else round(one, 1) for one in state.score[cells.group].tolist()]
    return {
        "format": FORMAT,
        "filesystem": state.fsid,
        "label": state.label,
        "taken": format_time(state.taken),
        "curve": grid.curve,
        "order": grid.order,
        "size": grid.size,
        "total_bytes": grid.total_bytes,
        "entries": entries,
    }


def places(at: Array, bytes_per_pixel: float, order: int) -> Array:
    """i64[n]: in which pixel along the curve bytes lie; as `heatmap.grid` counts them."""
    return np.asarray(np.minimum(at / bytes_per_pixel, 4**order - 1), np.int64)


def save(state: FilesystemState, drawn: Drawing, name: str) -> None:
    """Writes the map, whole or not at all; without blanks, for it is some megabytes. Raises OperatorError."""
    with whole_file(name) as file:
        file.write(json.dumps(pixel_map(state, drawn), separators=(",", ":")).encode() + b"\n")
