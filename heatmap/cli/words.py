"""The messages of btrfs-heatmap while it draws, as in knorrie's program: two lines, and with -v a line for each drawn part."""

from collections.abc import Iterator

from btrkeep.treescan.extents import Extents
from btrkeep.units import format_size
from heatmap.grid import Grid
from heatmap.overview import PHYSICAL, Drawing
from heatmap.state import DATA, METADATA, PROFILES, SYSTEM, FilesystemState

_TYPES = {DATA: "DATA", SYSTEM: "SYSTEM", METADATA: "METADATA"}


def about(drawn: Drawing) -> list[str]:
    """Returns two lines: what is drawn, and how."""
    return [f"scope {drawn.scope}", _grid(drawn.grid)]


def _grid(grid: Grid) -> str:
    return (
        f"grid curve {grid.curve} order {grid.order} size {grid.size} height {grid.edge} width {grid.edge}"
        f" total_bytes {grid.total_bytes} bytes_per_pixel {grid.bytes_per_pixel}"
    )


def flags_text(flags: int) -> str:
    """Formats flags as btrfs-progs and python-btrfs do: DATA|RAID1; a single copy has no flag."""
    return "|".join(name for bit, name in (_TYPES | PROFILES).items() if flags & bit)


def cells(state: FilesystemState, drawn: Drawing, sort: str) -> Iterator[str]:
    """A line for each device extent, or for each block group."""
    used, length, flags, vaddr = (column.tolist() for column in (state.bg_used, state.bg_length, state.bg_flags, state.bg_vaddr))
    cell = drawn.cells
    if sort == PHYSICAL and cell.devid is not None and cell.paddr is not None:
        rows = zip(cell.devid.tolist(), cell.paddr.tolist(), cell.length.tolist(), cell.group.tolist(), strict=True)
        for devid, paddr, size, group in rows:
            yield (
                f"dev_extent devid {devid} paddr {paddr} length {size} pend {paddr + size - 1} type {flags_text(flags[group])}"
                f" used_pct {used[group] / length[group] * 100:.2f}"
            )
        return
    for size, group in zip(cell.length.tolist(), cell.group.tolist(), strict=True):
        yield block_group(vaddr[group], length[group], flags[group], used[group])
        yield f"allocated physical space for chunk at {vaddr[group]}: {format_size(size)}"


def block_group(vaddr: int, length: int, flags: int, used: int) -> str:
    """One block group."""
    pct = round(used * 100 / length)
    return f"block group vaddr {vaddr} length {length} flags {flags_text(flags)} used {used} used_pct {pct}"


def extents(batch: Extents) -> Iterator[str]:
    """A line for each extent."""
    for vaddr, length, is_tree_block in zip(batch.vaddr.tolist(), batch.length.tolist(), batch.is_tree_block.tolist(), strict=True):
        yield f"extent vaddr {vaddr} type {'tree block' if is_tree_block else 'data'} length {length}"
