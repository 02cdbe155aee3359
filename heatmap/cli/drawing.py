"""Reads, draws and writes what the words of the command line ask for."""

from datetime import UTC, datetime

import numpy as np
from PIL import Image

from btrkeep.errors import OperatorError
from btrkeep.treescan.chunks import chunks
from btrkeep.treescan.devices import filesystem
from btrkeep.treescan.extents import Extents
from btrkeep.units import printable
from heatmap.cli import words
from heatmap.cli.request import Extras, PictureRequest
from heatmap.extents import by_tree, draw_extents
from heatmap.grid import MIN_BRIGHTNESS
from heatmap.mounted import opened
from heatmap.naming import name_parts, output_name
from heatmap.overview import VIRTUAL, CellColours, Colouring, Drawing, overview, usage
from heatmap.picture import image_of, save
from heatmap.reading import read_state
from heatmap.state import Array, FilesystemState


def draw(wish: PictureRequest) -> None:
    """One picture. Raises OperatorError."""
    if wish.extents or wish.blockgroup is not None:
        _draw_extents(wish)
    else:
        _draw_filesystem(wish)


def _draw_filesystem(wish: PictureRequest) -> None:
    with opened(wish.path) as fd:
        scores = wish.colour == "score" or wish.extras.record or wish.extras.map is not None
        state = _read(fd, scores, wish.colour == "age")
    draw_state(wish, state)


def _read(fd: int, scores: bool, generations: bool) -> FilesystemState:
    if not generations:
        return read_state(fd, scores=scores)
    from heatmap.cli.meter import Meter

    meter = Meter("reading extents")
    try:
        return read_state(fd, scores=scores, generations=True, progress=meter)
    finally:
        meter.end()


def draw_state(wish: PictureRequest, state: FilesystemState) -> None:
    """The picture of a state, however it was read. Raises OperatorError."""
    _require_devices(wish, state)
    paint, least = (usage, MIN_BRIGHTNESS) if wish.colour == "usage" else _colouring(wish.colour)
    drawn = overview(
        state,
        sort=wish.sort,
        order=wish.order,
        size=wish.size,
        curve=wish.curve,
        colouring=paint,
        devices=wish.device or None,
        min_brightness=least,
    )
    wish.say(*words.about(drawn))
    if wish.verbosity > 0:
        wish.say(*words.cells(state, drawn, wish.sort))
    parts = name_parts(state.fsid, wish.curve, virtual=wish.sort == VIRTUAL, devices=wish.device, colour=wish.colour)
    _save(wish, drawn, parts, state.taken, state.fsid, state)


def _colouring(name: str) -> tuple[Colouring, float]:
    from heatmap.colourings import COLOUR_SCHEMES

    return COLOUR_SCHEMES[name].paint, COLOUR_SCHEMES[name].min_brightness


def _require_devices(wish: PictureRequest, state: FilesystemState) -> None:
    there = state.devid.tolist()
    if missing := [devid for devid in wish.device if devid not in there]:
        raise OperatorError(f"there is no device {missing[0]}", f"the filesystem has {', '.join(map(str, there))}")


def _draw_extents(wish: PictureRequest) -> None:
    def told(batch: Extents) -> CellColours:
        wish.say(*words.extents(batch))
        return by_tree(batch)

    with opened(wish.path) as fd:
        taken, about_it, chunk = datetime.now(UTC), filesystem(fd), chunks(fd)
        chosen = slice(None) if wish.blockgroup is None else _one(chunk.vaddr, chunk.length, wish.blockgroup)
        drawn = draw_extents(
            fd,
            chunk.vaddr[chosen],
            chunk.length[chosen],
            about_it.sectorsize,
            order=wish.order,
            size=wish.size,
            curve=wish.curve,
            colouring=told if wish.verbosity > 0 else by_tree,
        )
    wish.say(*words.about(drawn))
    parts = name_parts(about_it.uuid, wish.curve, block_group=wish.blockgroup, extents=wish.blockgroup is None)
    _save(wish, drawn, parts, taken, about_it.uuid)


def _one(vaddr: Array, length: Array, wanted: int) -> slice:
    """Where the block group is. Raises OperatorError with the nearest ones."""
    at = int(np.searchsorted(vaddr, wanted))
    if at < len(vaddr) and vaddr[at] == wanted:
        return slice(at, at + 1)
    inside = at > 0 and wanted < int(vaddr[at - 1]) + int(length[at - 1])
    near = ", ".join(map(str, vaddr[max(0, at - 2) : at + 2].tolist()))
    where = f": it lies inside of the one at {vaddr[at - 1]}" if inside else ""
    raise OperatorError(f"no block group begins at {wanted}{where}", f"the nearest are at {near}" if near else "")


def _save(
    wish: PictureRequest, drawn: Drawing, parts: list[str], taken: datetime, fsid: str, state: FilesystemState | None = None
) -> None:
    extras, image = wish.extras, image_of(drawn.runs, drawn.grid)
    if extras == Extras():
        _write(wish, image, output_name(wish.output, parts, taken, wish.form))
        return
    from heatmap.cli import companions as beside

    if extras.show:
        beside.show(image)
    name = None if extras.show and wish.output is None else output_name(wish.output, parts, taken, wish.form)
    if state is not None and extras.record:
        beside.record(wish, name, parts, state)
    if state is not None and extras.map is not None:
        beside.write_map(wish, drawn, state)
    if name is not None:
        _write(wish, beside.with_legend(wish, image, drawn, fsid, taken, state) if extras.legend else image, name)


def _write(wish: PictureRequest, image: Image.Image, name: str) -> None:
    wish.say(f"pngfile {printable(name)}" if wish.form == "png" else f"{wish.form}file {printable(name)}")
    save(image, name, wish.form)
