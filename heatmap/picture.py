"""Writes a picture file atomically, and makes its name; and shows a picture in the terminal."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO, cast

import numpy as np
from PIL import Image

from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import require_own_links, whole_file
from heatmap.filesystem_state import Array
from heatmap.grid import HILBERT, Grid, Runs

_LEVEL = 4
"""Compression level of zlib: docs/decisions/0012 compares them."""


def image_of(runs: Runs, grid: Grid) -> Image.Image:
    """Returns the picture of 2**size lines, enlarged if its order is lower: each pixel becomes a square."""
    # Pillow stores RGB pixels in four bytes too, so they are copied unchanged.
    image = Image.frombytes("RGB", (grid.edge, grid.edge), cast(bytes, runs.words(grid)), "raw", "RGBX", 0, 1)
    if grid.scale == 1:
        return image
    edge = grid.edge * grid.scale
    return image.resize((edge, edge), Image.Resampling.NEAREST)


def save(image: Image.Image, name: str, form: str = "png") -> None:
    """Writes a file, or "-", standard output. `form`: one of PICTURE_FORMATS. Raises OperatorError."""
    with whole_file(name) as file:
        if form == "png":
            image.save(file, "PNG", compress_level=_LEVEL)
        else:
            image.save(file, "WEBP", lossless=True, quality=0)


def name_parts(
    fsid: str,
    curve: str,
    *,
    virtual: bool = False,
    block_group: int | None = None,
    extents: bool = False,
    devices: Sequence[int] = (),
    colour: str = "usage",
) -> list[str]:
    """Returns the parts of a file's name: first the parts of knorrie's btrfs-heatmap, in its order, then our own."""
    parts = ["fsid", fsid]
    if curve != HILBERT:
        parts.append(curve)
    if virtual:
        parts.append("chunks")
    if block_group is not None:
        parts += ["blockgroup", str(block_group)]
    if extents:
        parts.append("extents")
    for devid in devices:
        parts += ["device", str(devid)]
    if colour != "usage":
        parts.append(colour)
    return parts


def output_name(chosen: str | None, parts: Sequence[str], taken: datetime, form: str) -> str:
    """Returns `chosen` if it names a file or "-"; else a name made of `parts` and the time, in the folder that it names or in the
    current one.

    A missing folder is made if its name ends with a slash. Raises OperatorError if that fails.
    """
    if chosen is not None and chosen.endswith("/"):
        require_own_links(Path(chosen))
        try:
            Path(chosen).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"the folder {chosen} could not be made: {error.strerror}", "name another folder with -o") from None
    if chosen is not None and not Path(chosen).is_dir():
        return chosen
    name = "_".join([*parts, "at", str(int(taken.timestamp()))]) + f".{form}"
    return str(Path(chosen, name)) if chosen else name


_UPPER = "\N{UPPER HALF BLOCK}"
_RESET = "\x1b[0m"
_CUBE = np.array([0, 95, 135, 175, 215, 255])  # of xterm's 256 colours: 16 to 231 are all mixtures of these, 232 to 255 greys
_LEAST_LINES = 32


def show(image: Image.Image, out: TextIO | None = None) -> None:
    """Draws into the terminal, in the largest size that fits. Raises OperatorError if it is not a terminal, or has no colours or
    half blocks.
    """
    out = out or sys.stdout
    true_colour = _colours(out, os.environ)
    columns, lines = shutil.get_terminal_size()
    out.write("".join(drawn(image, edge_for(columns, lines), true_colour)))
    out.flush()


def edge_for(columns: int, lines: int) -> int:
    """Returns the largest edge of a picture in pixels: a power of two, so that pixels stay squares; two of them are one line of
    text.
    """
    return 1 << (max(2, min(columns, max(2 * (lines - 2), _LEAST_LINES * 2))).bit_length() - 1)


def _colours(out: TextIO, environment: Mapping[str, str]) -> bool:
    """True if the terminal has true colour; otherwise it has 256 colours. Raises OperatorError."""
    kind = environment.get("TERM", "")
    if not out.isatty() or kind in ("", "dumb"):
        raise OperatorError("--show needs a terminal", "write a file with -o instead")
    if "utf" not in (out.encoding or "").lower():
        raise OperatorError(f"--show needs a terminal for UTF-8; this one is for {out.encoding}", "write a file with -o instead")
    if environment.get("COLORTERM", "") in ("truecolor", "24bit") or kind.endswith("-direct"):
        return True
    if "256" in kind or kind.startswith(("xterm", "tmux", "screen", "foot", "alacritty")):
        return False
    raise OperatorError(f"--show needs a terminal of 256 colours or more; TERM is {kind}", "write a file with -o instead")


def drawn(image: Image.Image, edge: int, true_colour: bool) -> Iterator[str]:
    """Yields lines of characters for a picture that is made `edge` pixels wide; an odd last line of pixels has black below it."""
    height = max(1, round(image.height * edge / image.width))
    way: Image.Resampling = Image.Resampling.BOX if image.width > edge else Image.Resampling.NEAREST
    pixels = np.asarray(image.resize((edge, height), way).convert("RGB"))
    if height % 2:
        pixels = np.concatenate((pixels, np.zeros((1, edge, 3), np.uint8)))
    codes = [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()] if true_colour else _of_256(pixels)
    for upper, lower in zip(codes[0::2], codes[1::2], strict=True):
        yield _line(upper, lower)


def _line(upper: list[str], lower: list[str]) -> str:
    """Returns a line of characters; a colour is set only when it changes."""
    last_colours, parts = ("", ""), []
    for top, two in zip(upper, lower, strict=True):
        if (top, two) != last_colours:
            parts.append(f"\x1b[38;{top};48;{two}m")
            last_colours = (top, two)
        parts.append(_UPPER)
    return "".join(parts) + _RESET + "\n"


def _of_256(pixels: Array) -> list[list[str]]:
    rgb = pixels.astype(np.int64)
    cube = np.abs(rgb[..., None] - _CUBE).argmin(-1)
    grey = np.clip(np.rint((rgb.mean(-1) - 8) / 10), 0, 23).astype(np.int64)
    off_cube = ((_CUBE[cube] - rgb) ** 2).sum(-1)
    off_grey = ((8 + 10 * grey[..., None] - rgb) ** 2).sum(-1)
    codes = np.where(off_grey < off_cube, 232 + grey, 16 + cube @ np.array([36, 6, 1]))
    return [[f"5;{code}" for code in row] for row in codes.tolist()]
