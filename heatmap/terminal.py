"""A picture in the terminal: two pixels for each character, the upper half block in the one's colour on the other's."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO

import numpy as np
from PIL import Image

from btrkeep.errors import OperatorError
from heatmap.state import Array

_UPPER = "\N{UPPER HALF BLOCK}"
_RESET = "\x1b[0m"
_CUBE = np.array([0, 95, 135, 175, 215, 255])  # of xterm's 256 colours: 16 to 231 are all mixtures of these, 232 to 255 greys
_LEAST_LINES = 32


def show(image: Image.Image, out: TextIO | None = None) -> None:
    """Draws into the terminal, as large as fits. Raises OperatorError: it is no terminal, or has no colours or half blocks."""
    out = out or sys.stdout
    true_colour = _colours(out, os.environ)
    columns, lines = shutil.get_terminal_size()
    out.write("".join(drawn(image, edge_for(columns, lines), true_colour)))
    out.flush()


def edge_for(columns: int, lines: int) -> int:
    """Returns the largest edge of a picture in pixels: a power of two, so that pixels stay squares; two of them are a line."""
    return 1 << (max(2, min(columns, max(2 * (lines - 2), _LEAST_LINES * 2))).bit_length() - 1)


def _colours(out: TextIO, environment: Mapping[str, str]) -> bool:
    """True if the terminal has true colour; otherwise it has 256. Raises OperatorError."""
    kind = environment.get("TERM", "")
    if not out.isatty() or kind in ("", "dumb"):
        raise OperatorError("--show needs a terminal, and there is none", "write a file with -o instead")
    if "utf" not in (out.encoding or "").lower():
        raise OperatorError(f"--show needs a terminal for UTF-8; this one is for {out.encoding}", "write a file with -o instead")
    if environment.get("COLORTERM", "") in ("truecolor", "24bit") or kind.endswith("-direct"):
        return True
    if "256" in kind or kind.startswith(("xterm", "tmux", "screen", "foot", "alacritty")):
        return False
    raise OperatorError(f"--show needs a terminal of 256 colours or more; TERM is {kind}", "write a file with -o instead")


def drawn(image: Image.Image, edge: int, true_colour: bool) -> Iterator[str]:
    """Lines of characters for a picture that is made `edge` pixels wide; an odd last line of pixels has black below it."""
    height = max(1, round(image.height * edge / image.width))
    way: Image.Resampling = Image.Resampling.BOX if image.width > edge else Image.Resampling.NEAREST
    pixels = np.asarray(image.resize((edge, height), way).convert("RGB"))
    if height % 2:
        pixels = np.concatenate((pixels, np.zeros((1, edge, 3), np.uint8)))
    codes = _true(pixels) if true_colour else _of_256(pixels)
    for upper, lower in zip(codes[0::2], codes[1::2], strict=True):
        yield _line(upper, lower)


def _line(upper: list[str], lower: list[str]) -> str:
    """Returns a line of characters; a colour is set only where it changes."""
    said, parts = ("", ""), []
    for one, two in zip(upper, lower, strict=True):
        if (one, two) != said:
            parts.append(f"\x1b[38;{one};48;{two}m")
            said = (one, two)
        parts.append(_UPPER)
    return "".join(parts) + _RESET + "\n"


def _true(pixels: Array) -> list[list[str]]:
    return [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()]


def _of_256(pixels: Array) -> list[list[str]]:
    rgb = pixels.astype(np.int64)
    cube = np.abs(rgb[..., None] - _CUBE).argmin(-1)
    grey = np.clip(np.rint((rgb.mean(-1) - 8) / 10), 0, 23).astype(np.int64)
    off_cube = ((_CUBE[cube] - rgb) ** 2).sum(-1)
    off_grey = ((8 + 10 * grey[..., None] - rgb) ** 2).sum(-1)
    codes = np.where(off_grey < off_cube, 232 + grey, 16 + cube @ np.array([36, 6, 1]))
    return [[f"5;{code}" for code in row] for row in codes.tolist()]
