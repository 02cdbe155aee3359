"""Draws a whole filesystem, block group by block group, by position on devices or by address; and finds what is at a position of
the picture.

How a page finds what is at (x, y) of a picture, counted from 0, from the left and from above:

1. Divide both by 2**(size - order), rounding down: pixels were enlarged by that factor.

2. `step` of web/static/heatmap.js computes the position along the curve. Line by line (linear) it is y * 2**order + x; snake goes
back in every second line; for hilbert there is a loop with `order` rounds.

3. Entries are sorted by `start` and each takes the positions from `start` up to, but not including, `end`. Several can share a
position: all with start <= position < end are in that pixel. None: nothing is allocated there.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from btrkeep.choices import SORTS
from btrkeep.fs.output_file import whole_file
from btrkeep.units import format_time
from heatmap.filesystem_state import DATA, METADATA, SYSTEM, TYPE_MASK, Array, FilesystemState
from heatmap.grid import MIN_BRIGHTNESS, OVERVIEW_GRANULARITY, Canvas, Grid, Runs, choose_grid

PHYSICAL, VIRTUAL = SORTS

# Copies of each byte, and stripes of parity, by profile: a bit of BTRFS_BLOCK_GROUP_PROFILE_MASK (btrfs_raid_array in volumes.c).
_COPIES = {1 << 4: 2, 1 << 5: 2, 1 << 6: 2, 1 << 9: 3, 1 << 10: 4}  # RAID1, DUP, RAID10, RAID1C3, RAID1C4
_PARITY = {1 << 7: 1, 1 << 8: 2}  # RAID5, RAID6


@dataclass(frozen=True, slots=True, eq=False)
class CellColours:
    """Colour and brightness of each of n block groups: `rgb` u8[n, 3], `share` f64[n] from 0 (dark, not black) to 1."""

    rgb: Array
    share: Array


Colouring = Callable[[FilesystemState], CellColours]
"""How a state's block groups are coloured. Space outside of block groups stays black."""

_BY_TYPE = {DATA: (0xFF, 0xFF, 0xFF), METADATA: (0x00, 0x00, 0xFF), SYSTEM: (0xFF, 0x00, 0x33), DATA | METADATA: (0x99, 0xCC, 0xFF)}


def usage(state: FilesystemState) -> CellColours:
    """Data white, metadata blue, system red, mixed light blue; the fuller, the brighter."""
    table = np.full((TYPE_MASK + 1, 3), 0xFF, np.uint8)
    for kind, rgb in _BY_TYPE.items():
        table[kind] = rgb
    return CellColours(table[(state.bg_flags & np.uint64(TYPE_MASK)).astype(np.int64)], state.bg_used / state.bg_length)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The m drawn cells, in order: device extents, or in the order of virtual addresses chunks."""

    first_byte: Array
    """i64[m]: the position in the grid."""
    length: Array
    """i64[m]: the length in the grid."""
    group: Array
    """i64[m]: the index of the block group in the state."""
    devid: Array | None
    """u64[m]: the device; None for chunks."""
    paddr: Array | None
    """u64[m]: the position on the device; None for chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A picture."""

    grid: Grid
    """Its curve."""
    scope: str
    """A description in words."""
    cells: Cells
    """The values along the curve."""
    runs: Runs
    """Which part of the curve belongs to which device or block group."""

    @property
    def image(self) -> Array:
        """Makes the image, at each call."""
        words: Array = self.runs.words(self.grid).view(np.uint8).reshape(self.grid.edge, self.grid.edge, 4)[:, :, :3]
        return words


def overview(
    state: FilesystemState,
    *,
    sort: str = PHYSICAL,
    order: int | None = None,
    size: int | None = None,
    curve: str = "hilbert",
    colouring: Colouring = usage,
    devices: Collection[int] | None = None,
    min_brightness: float = MIN_BRIGHTNESS,
) -> Drawing:
    """Draws all devices, or the given ones. Raises OperatorError: `size` below `order`."""
    chosen = np.ones(len(state.devid), bool) if devices is None else np.isin(state.devid, np.array(list(devices), np.uint64))
    devid, total_bytes = state.devid[chosen], state.total_bytes[chosen]
    cells = _physical(state, devid, total_bytes) if sort == PHYSICAL else _virtual(state, devid)
    names = " ".join(map(str, devid.tolist()))
    scope = f"device {names}" if sort == PHYSICAL else "chunks" if devices is None else f"chunk stripes on devices {names}"
    paint = colouring(state)
    grid = choose_grid(order, size, curve, int(total_bytes.sum()), OVERVIEW_GRANULARITY)
    canvas = Canvas(grid, min_brightness)
    canvas.fill(cells.first_byte, cells.length, paint.share[cells.group], paint.rgb[cells.group])
    return Drawing(grid, scope, cells, canvas.finish())


def _physical(state: FilesystemState, devid: Array, total_bytes: Array) -> Cells:
    """Device extents, one device after the other."""
    group = _group_at(state, state.de_vaddr)
    device = np.searchsorted(devid, state.de_devid)
    device[device == len(devid)] = 0
    drawn = (group >= 0) & (devid[device] == state.de_devid)
    offset = np.cumsum(total_bytes) - total_bytes
    first_byte = (offset[device] + state.de_paddr)[drawn].astype(np.int64)
    return Cells(first_byte, state.de_length[drawn].astype(np.int64), group[drawn], state.de_devid[drawn], state.de_paddr[drawn])


def _virtual(state: FilesystemState, devid: Array) -> Cells:
    """Chunks, each with all of its pieces on these devices, one after the other."""
    group = _group_at(state, state.ch_vaddr)
    pieces = np.bincount(state.st_chunk[np.isin(state.st_devid, devid)], minlength=len(group))
    drawn = (group >= 0) & (pieces > 0)
    length = (piece_length(state.ch_type, state.ch_length, state.ch_stripes) * pieces)[drawn]
    return Cells(np.cumsum(length) - length, length, group[drawn], None, None)


def _group_at(state: FilesystemState, vaddr: Array) -> Array:
    """i64[n]: the index of the block group that starts at each address, or -1."""
    at = np.searchsorted(state.bg_vaddr, vaddr)
    at[at == len(state.bg_vaddr)] = 0
    return np.where(state.bg_vaddr[at] == vaddr, at, -1)


def piece_length(kind: Array, length: Array, stripes: Array) -> Array:
    """i64[n]: the length of the device extents of chunks with these flags, lengths and numbers of stripes."""
    copies, parity = np.ones(len(kind), np.int64), np.zeros(len(kind), np.int64)
    for numbers, profiles in ((copies, _COPIES), (parity, _PARITY)):
        for bit, number in profiles.items():
            numbers[kind & np.uint64(bit) != 0] = number
    piece: Array = length.astype(np.int64) * copies // (stripes - parity)
    return piece


class HasDevices(Protocol):
    """A state, or the header of a recorded one: `devid` and `total_bytes`, u64[d] each."""

    @property
    def devid(self) -> Array:
        """The ids."""

    @property
    def total_bytes(self) -> Array:
        """Returns the size of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """The common scale of states of several times, so that a position in the picture is always the same: u64[d] each, by devid.
    Every device that was ever present has its place, with the largest size that it ever had.
    """

    devid: Array
    total_bytes: Array

    def applied(self, state: FilesystemState) -> FilesystemState:
        """The state with the devices of the scale."""
        return replace(state, devid=self.devid, total_bytes=self.total_bytes)


def common_scale(moments: Sequence[HasDevices]) -> Scale:
    """Returns the common scale of states of several times."""
    devids, which = np.unique(np.concatenate([moment.devid for moment in moments]), return_inverse=True)
    largest = np.zeros(len(devids), np.uint64)
    np.maximum.at(largest, which, np.concatenate([moment.total_bytes for moment in moments]))
    return Scale(devids, largest)


FORMAT = 1


def pixel_map(state: FilesystemState, drawn: Drawing) -> dict[str, Any]:
    """Returns the map of a picture of a whole filesystem for JSON: data about the picture, and `entries`, a list for each column.

    `start` and `end` are positions; `vaddr`, `length`, `used`, `flags` and `score` are those of the block group. `devid` and
    `paddr` are those of the device extent; in the order of virtual addresses, in which an entry is all device extents of a chunk,
    they are missing. `score` is null without data, and missing if no scores were read. All sizes are bytes.
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
        entries["score"] = [None if np.isnan(score) else round(score, 1) for score in state.score[cells.group].tolist()]
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
    """i64[n]: the pixel along the curve for bytes, computed as in `heatmap.grid`."""
    return np.asarray(np.minimum(at / bytes_per_pixel, 4**order - 1), np.int64)


def save_pixel_map(state: FilesystemState, drawn: Drawing, name: str) -> None:
    """Writes the map as JSON without spaces, because it has some megabytes. Replaces the file atomically. Raises OperatorError."""
    with whole_file(name) as file:
        file.write(json.dumps(pixel_map(state, drawn), separators=(",", ":")).encode() + b"\n")
