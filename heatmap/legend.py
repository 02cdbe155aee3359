"""The text below a picture: filesystem, time, how it was drawn, numbers, and the meaning of the colours.

Uses Pillow's own font. The size of the letters is proportional to the picture, so that a large one can be read when it is shown
small.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any
from unicodedata import combining, normalize

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from btrkeep.units import counted, format_size, local_time, printable
from heatmap.colourings import Colour, ColourKey, ColourScheme
from heatmap.filesystem_state import Array, FilesystemState
from heatmap.grid import Grid
from heatmap.state_reader import TREES, WHITE
from heatmap.whole_filesystem import VIRTUAL

GROUND, INK, FAINT = (0x18, 0x18, 0x18), (0xF2, 0xF2, 0xF2), (0xA8, 0xA8, 0xA8)
_SMALLEST, _LARGEST, _PER_WIDTH = 11, 44, 62
"""Height of letters in pixels: minimum, maximum, and the number of letters across the picture."""


@dataclass(frozen=True, slots=True)
class _Type:
    """A font, and its sizes in pixels."""

    font: Any
    """Pillow's font."""
    line: int
    """The height of a line."""
    edge: int
    """The margin."""

    def width(self, text: str) -> int:
        return int(np.ceil(self.font.getlength(text)))


@cache
def _type(width: int) -> _Type:
    """Returns the letters for a picture of that width."""
    size = max(_SMALLEST, min(_LARGEST, round(width / _PER_WIDTH)))
    return _Type(ImageFont.load_default(size), round(size * 1.45), max(4, size // 2))


def add_below(image: Image.Image, lower: Array) -> Image.Image:
    """Returns the picture with a band, u8[k, w, 3], below it."""
    larger = Image.new("RGB", (image.width, image.height + len(lower)))
    larger.paste(image, (0, 0))
    larger.paste(Image.fromarray(lower), (0, image.height))
    return larger


def legend(state: FilesystemState, grid: Grid, sort: str, scheme: ColourScheme, width: int) -> Array:
    """u8[h, width, 3]: the band for a picture of a whole filesystem, `width` pixels wide."""
    lines = [title(state), *numbers(state), pixel_words(grid, sort)]
    return band(lines, scheme.key(state), width)


def extents_legend(fsid: str, taken: datetime, grid: Grid, scope: str, width: int) -> Array:
    """u8[h, width, 3]: the band for a picture at extent level."""
    trees = tuple((colour, name) for name, colour in TREES.values())
    about = f"{scope.replace('_', ' ')}, {format_size(grid.total_bytes)}, at extent level"
    lines = [f"{fsid}  {local_time(taken)}", about, pixels(grid)]
    return band(lines, ColourKey("the kind of data", np.zeros((0, 3), np.uint8), (), ((WHITE, "data"), *trees)), width)


def title(state: FilesystemState) -> str:
    """Returns the filesystem's name and the time."""
    named = f"{_drawable(printable(state.label))}  " if state.label else ""
    return f"{named}{state.fsid}  {local_time(state.taken)}"


def _drawable(text: str) -> str:
    """Reduces text to ASCII, which the font has: without accents, other letters as "?"."""
    apart = normalize("NFKD", text)
    return "".join(char if char.isascii() else "?" for char in apart if not combining(char))


def numbers(state: FilesystemState) -> list[str]:
    """Returns two lines: sizes and usage. Devices count raw bytes, including copies; block groups count bytes of content, each
    once.
    """
    total, allocated = int(state.total_bytes.sum()), int(state.de_length.sum())
    length, used = int(state.bg_length.sum()), int(state.bg_used.sum())
    devices, free = counted(len(state.devid), "device"), max(0, total - allocated)
    return [
        f"{devices}, {format_size(total)}: {format_size(allocated)} allocated, {format_size(free)} unallocated",
        f"{counted(len(state.bg_vaddr), 'block group')}, {format_size(length)}: {format_size(used)} used",
    ]


def pixel_words(grid: Grid, sort: str) -> str:
    """Returns a line with the meaning of a pixel."""
    order = "by virtual address" if sort == VIRTUAL else "by position on the device"
    return f"{pixels(grid)}; {order}"


def pixels(grid: Grid) -> str:
    """Returns how bytes become pixels, as text."""
    return f"{grid.curve} curve of order {grid.order}; one pixel is {format_size(round(grid.bytes_per_pixel))}"


def band(lines: Sequence[str], key: ColourKey | None, width: int) -> Array:
    """u8[h, width, 3]: lines of text, the first one brightest, long ones wrapped; and the key to the colours."""
    letters = _type(width)
    room = width - 2 * letters.edge
    rows = [(piece, INK if number == 0 else FAINT) for number, line in enumerate(lines) for piece in _wrapped(line, room, letters)]
    placed = list(_flow(key.swatches, room, letters)) if key else []
    height = letters.edge * 2 + letters.line * (len(rows) + _key_lines(key, placed))
    image = Image.new("RGB", (width, height), GROUND)
    draw = ImageDraw.Draw(image)
    y = letters.edge
    for text, ink in rows:
        draw.text((letters.edge, y), text, ink, letters.font)
        y += letters.line
    if key:
        _draw_key(image, draw, key, placed, y, letters)
    return np.asarray(image)


def strip(width: int, left: str, right: str) -> Array:
    """u8[h, width, 3]: one line, as below the frames of an animation; h is even. `right` is left out if it does not fit."""
    letters = _type(width)
    image = Image.new("RGB", (width, (letters.line + letters.edge + 1) // 2 * 2), GROUND)
    draw = ImageDraw.Draw(image)
    y = letters.edge // 2
    draw.text((letters.edge, y), left, INK, letters.font)
    start = width - letters.edge - letters.width(right)
    if start > letters.edge + letters.width(left) + letters.line:
        draw.text((start, y), right, FAINT, letters.font)
    return np.asarray(image)


def _wrapped(line: str, room: int, letters: _Type) -> Iterator[str]:
    """Yields pieces of the line that fit, split at spaces; a word that is too long is split anywhere."""
    piece = ""
    for word in line.split(" "):
        longer = f"{piece} {word}" if piece else word
        if letters.width(longer) <= room:
            piece = longer
            continue
        if piece.strip():
            yield piece.strip()
        while letters.width(word) > room and len(word) > 1:
            fits = max(1, next(n for n in range(len(word), 0, -1) if n == 1 or letters.width(word[:n]) <= room))
            yield word[:fits]
            word = word[fits:]
        piece = word
    if piece.strip():
        yield piece.strip()


@dataclass(frozen=True, slots=True)
class _Swatch:
    """A swatch and its label, with their position."""

    line: int
    """Its line, from 0."""
    x: int
    """The column, pixels."""
    colour: Colour
    """Its colour."""
    word: str
    """Its label."""


def _flow(swatches: Sequence[tuple[Colour, str]], room: int, letters: _Type) -> Iterator[_Swatch]:
    line = x = 0
    for colour, word in swatches:
        wide = letters.line + letters.edge + letters.width(word)
        if x and x + wide > room:
            line, x = line + 1, 0
        yield _Swatch(line, x, colour, word)
        x += wide + letters.line


def _key_lines(key: ColourKey | None, placed: Sequence[_Swatch]) -> int:
    if key is None:
        return 0
    return 1 + (2 if len(key.ramp) else 0) + (placed[-1].line + 1 if placed else 0)


def _draw_key(
    image: Image.Image, draw: ImageDraw.ImageDraw, key: ColourKey, placed: Sequence[_Swatch], y: int, letters: _Type
) -> None:
    draw.text((letters.edge, y), key.title, INK, letters.font)
    y += letters.line
    if len(key.ramp):
        _draw_ramp(image, draw, key, y, letters)
        y += 2 * letters.line
    box = letters.line * 3 // 4
    for swatch in placed:
        left, top = letters.edge + swatch.x, y + swatch.line * letters.line
        draw.rectangle((left, top + 1, left + box, top + box), swatch.colour, FAINT)
        draw.text((left + letters.line, top), swatch.word, FAINT, letters.font)


def _draw_ramp(image: Image.Image, draw: ImageDraw.ImageDraw, key: ColourKey, y: int, letters: _Type) -> None:
    """Draws the colours as a bar, with marks below it. Labels that would overlap the previous one are left out."""
    left, wide = letters.edge, image.width - 2 * letters.edge
    tall = letters.line * 3 // 4
    steps = np.arange(wide) * len(key.ramp) // wide
    image.paste(Image.fromarray(np.repeat(key.ramp[steps][None], tall, 0)), (left, y))
    taken = -1
    last = key.ticks[-1]
    end = left + wide - letters.width(last[1])
    for share, word in key.ticks:
        at = left + round(share * (wide - 1))
        start = max(left, min(at - letters.width(word) // 2, left + wide - letters.width(word)))
        if start <= taken or ((share, word) != last and start + letters.width(word) + letters.edge > end):
            continue
        draw.line((at, y, at, y + tall + letters.edge // 2), INK)
        draw.text((start, y + tall + letters.edge // 4), word, FAINT, letters.font)
        taken = start + letters.width(word) + letters.edge
