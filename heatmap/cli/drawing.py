"""Reads, draws and writes what the command line requests, and reports it like knorrie's program: in two lines, more with -v."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image

from btrkeep.cli.arguments import show_times_of_pool_on
from btrkeep.cli.output import ProgressLine
from btrkeep.errors import OperatorError
from btrkeep.pool.mounts import open_btrfs
from btrkeep.treescan.block_groups import chunks, filesystem
from btrkeep.treescan.extents import Extents
from btrkeep.units import format_size, printable
from heatmap.cli.request import STDOUT, PictureRequest
from heatmap.filesystem_state import DATA, METADATA, PROFILES, SYSTEM, Array, FilesystemState
from heatmap.grid import MIN_BRIGHTNESS, Grid
from heatmap.picture import image_of, name_parts, output_name, save, show
from heatmap.state_reader import by_tree, draw_extents, read_state
from heatmap.whole_filesystem import PHYSICAL, VIRTUAL, CellColours, Colouring, Drawing, overview, save_pixel_map, usage


def draw(request: PictureRequest) -> None:
    """Draws one picture. Raises OperatorError."""
    if request.extents or request.blockgroup is not None:
        _draw_extents(request)
    else:
        _draw_filesystem(request)


def _draw_filesystem(request: PictureRequest) -> None:
    with open_btrfs(request.path, OperatorError) as fd:
        scores = request.colour == "score" or request.extras.record or request.extras.map is not None
        state = _read(fd, scores, request.colour == "age")
    draw_state(request, state)


def _read(fd: int, scores: bool, generations: bool) -> FilesystemState:
    if not generations:
        return read_state(fd, scores=scores)
    with ProgressLine() as line:
        return read_state(
            fd, scores=scores, generations=True, progress=lambda share: line.go_on(lambda: f"reading extents: {share:4.0%}")
        )


def draw_state(request: PictureRequest, state: FilesystemState) -> None:
    """Draws a state that was read from a filesystem or a file, and writes the picture. Raises OperatorError."""
    _require_devices(request, state)
    paint, least = (usage, MIN_BRIGHTNESS) if request.colour == "usage" else _colouring(request.colour)
    drawn = overview(
        state,
        sort=request.sort,
        order=request.order,
        size=request.size,
        curve=request.curve,
        colouring=paint,
        devices=request.device or None,
        min_brightness=least,
    )
    request.say(*about_lines(drawn))
    if request.verbosity > 0:
        request.say(*cell_lines(state, drawn, request.sort))
    parts = name_parts(state.fsid, request.curve, virtual=request.sort == VIRTUAL, devices=request.device, colour=request.colour)
    _save(request, drawn, parts, state.taken, state.fsid, state)


def _colouring(name: str) -> tuple[Colouring, float]:
    from heatmap.colourings import COLOUR_SCHEMES

    return COLOUR_SCHEMES[name].paint, COLOUR_SCHEMES[name].min_brightness


def _require_devices(request: PictureRequest, state: FilesystemState) -> None:
    devids = state.devid.tolist()
    if missing := [devid for devid in request.device if devid not in devids]:
        raise OperatorError(f"the filesystem has no device {missing[0]}", f"its devices: {', '.join(map(str, devids))}")


def _draw_extents(request: PictureRequest) -> None:
    def report_and_colour(batch: Extents) -> CellColours:
        request.say(*extent_lines(batch))
        return by_tree(batch)

    with open_btrfs(request.path, OperatorError) as fd:
        taken, about_it, chunk = datetime.now(UTC), filesystem(fd), chunks(fd)
        chosen = slice(None) if request.blockgroup is None else _block_group_at(chunk.vaddr, chunk.length, request.blockgroup)
        drawn = draw_extents(
            fd,
            chunk.vaddr[chosen],
            chunk.length[chosen],
            about_it.sectorsize,
            order=request.order,
            size=request.size,
            curve=request.curve,
            colouring=report_and_colour if request.verbosity > 0 else by_tree,
        )
    request.say(*about_lines(drawn))
    parts = name_parts(about_it.uuid, request.curve, block_group=request.blockgroup, extents=request.blockgroup is None)
    _save(request, drawn, parts, taken, about_it.uuid)


def _block_group_at(vaddr: Array, length: Array, wanted: int) -> slice:
    """Returns the index of the block group, as a slice. Raises OperatorError, which names the nearest block groups."""
    at = int(np.searchsorted(vaddr, wanted))
    if at < len(vaddr) and vaddr[at] == wanted:
        return slice(at, at + 1)
    inside = at > 0 and wanted < int(vaddr[at - 1]) + int(length[at - 1])
    near = ", ".join(map(str, vaddr[max(0, at - 2) : at + 2].tolist()))
    where = f": it is inside the block group at {vaddr[at - 1]}" if inside else ""
    raise OperatorError(f"no block group begins at {wanted}{where}", f"the nearest begin at {near}" if near else "")


def _save(
    request: PictureRequest, drawn: Drawing, parts: list[str], taken: datetime, fsid: str, state: FilesystemState | None = None
) -> None:
    """Writes the picture and its extra files."""
    show_times_of_pool_on(fsid)
    extras, image = request.extras, image_of(drawn.runs, drawn.grid)
    name = None if extras.show and request.output is None else output_name(request.output, parts, taken, request.form)
    if extras.show:
        show(image)
    if state is not None and extras.record:
        _record(request, name, parts, state)
    if state is not None and extras.map is not None:
        save_pixel_map(state, drawn, extras.map)
        _say_written(request, "mapfile", extras.map)
    if name is not None:
        request.say(f"{request.form}file {printable(name)}")
        save(_with_legend(request, image, drawn, fsid, taken, state) if extras.legend else image, name, request.form)


def _with_legend(
    request: PictureRequest, image: Image.Image, drawn: Drawing, fsid: str, taken: datetime, state: FilesystemState | None
) -> Image.Image:
    from heatmap.colourings import COLOUR_SCHEMES
    from heatmap.legend import add_below, extents_legend, legend

    if state is None:
        return add_below(image, extents_legend(fsid, taken, drawn.grid, drawn.scope, image.width))
    return add_below(image, legend(state, drawn.grid, request.sort, COLOUR_SCHEMES[request.colour], image.width))


def _record(request: PictureRequest, picture: str | None, parts: list[str], state: FilesystemState) -> None:
    """Records the state in a file: --record-to, otherwise beside the picture, otherwise in the current folder."""
    from heatmap.recorded import SUFFIX, automatic_name, save

    if request.extras.record_to is None and picture not in (None, STDOUT):
        name = str(automatic_name(Path(picture or "")))
    else:
        name = output_name(request.extras.record_to, parts, state.taken, SUFFIX.removeprefix("."))
    save(state, name)
    _say_written(request, "recorded", name)


def _say_written(request: PictureRequest, action: str, name: str) -> None:
    if name != STDOUT:
        request.say(f"{action} {printable(name)}")


_TYPES = {DATA: "DATA", SYSTEM: "SYSTEM", METADATA: "METADATA"}


def about_lines(drawn: Drawing) -> list[str]:
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


def cell_lines(state: FilesystemState, drawn: Drawing, sort: str) -> Iterator[str]:
    """Yields a line for each device extent, or for each block group."""
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
        yield block_group_line(vaddr[group], length[group], flags[group], used[group])
        yield f"allocated physical space for chunk at {vaddr[group]}: {format_size(size)}"


def block_group_line(vaddr: int, length: int, flags: int, used: int) -> str:
    """Returns a line for a block group."""
    pct = round(used * 100 / length)
    return f"block group vaddr {vaddr} length {length} flags {flags_text(flags)} used {used} used_pct {pct}"


def extent_lines(batch: Extents) -> Iterator[str]:
    """Yields a line for each extent."""
    for vaddr, length, is_tree_block in zip(batch.vaddr.tolist(), batch.length.tolist(), batch.is_tree_block.tolist(), strict=True):
        yield f"extent vaddr {vaddr} type {'tree block' if is_tree_block else 'data'} length {length}"
