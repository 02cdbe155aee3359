"""Charts of a rehearsal as SVG, to stand in its page: their colours are the page's, so they fit light and dark.

Each variant has a colour and a kind of line, and nothing is told by colour alone. A line is the median over the seeds, the shade
behind it reaches from the least to the most of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from btrkeep.charts.frame import decimal_scale, labels, nice_step, size_scale
from btrkeep.charts.nights import NightLine, draw_nights
from btrkeep.charts.svg import VARIANTS, ChartStyle, Sheet

COLOURS = 6
DASHES = ("", "6 4", "8 3 2 3", "2 3", "6 2 2 2 2 2", "1 2")
_BORDERS = (
    "solid",
    "dashed",
    "dotted",
    "double",
    "dashed",
    "dotted",
)  # neighbours differ, since a colour that comes again has the next
_MARKS = ("circle", "square", "diamond", "up", "down", "plus")
_LOOK, _HEIGHT = ChartStyle(400, VARIANTS), 230  # in a page three stand side by side, and text stays as large as it is meant
_WIDE, _NARROW = ChartStyle(800, VARIANTS), ChartStyle(360, VARIANTS)
_ROW = 16


class VariantLook(NamedTuple):
    """How a variant is drawn. `colour`: its number; `dash`: of its lines; `border`: the same of CSS; `mark`: a shape."""

    colour: int
    dash: str
    border: str
    mark: str

    @property
    def ink(self) -> str:
        """Returns the name of its colour on a sheet."""
        return f"c{self.colour}"


def look_of(number: int) -> VariantLook:
    """Returns the look of the variant with that number. Where colours come again, lines and marks are others."""
    colour = number % COLOURS
    other = (number + number // COLOURS) % COLOURS
    return VariantLook(colour, DASHES[other], _BORDERS[other], _MARKS[other])


Band = Sequence[tuple[float, float, float]]
"""Of each night the least, the median and the most."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of `intervals`: a relative change, its range, and which variant it is of, by number."""

    name: str
    least: float
    median: float
    most: float
    variant: int


def curves(
    bands: Mapping[str, Band], described: str, words: Callable[[float], str] | None = None, faint: Mapping[str, Band] | None = None
) -> str:
    """A line for each variant over the nights. `faint`: thin lines of the same variants. `words` writes a number of the axis; None:
    they are bytes.
    """
    lines = []
    for number, (name, band) in enumerate(bands.items()):
        look = look_of(number)
        middle = [median for _, median, _ in band]
        lines.append(NightLine(name, look.ink, look.dash, middle, 1.9, [(least, most) for least, _, most in band]))
        if faint:
            lines.append(NightLine(name, look.ink, look.dash, [median for _, median, _ in faint[name]], 0.8))
    most = max((most for many in (bands, faint or {}) for band in many.values() for *_, most in band), default=0.0)
    scale = decimal_scale(most, words) if words else size_scale(most)
    return draw_nights(lines, scale, _LOOK, _HEIGHT).markup(described)


def intervals(
    rows: Sequence[Interval], names: Sequence[str], words: Callable[[float], str], described: str, *, narrow: bool = False
) -> str:
    """Changes against the first variant, a row for each measure: the median, and the least to the most of all pairs. `narrow`: the
    names of measures stand above their rows, for a screen as wide as a telephone's.
    """
    look = _NARROW if narrow else _WIDE
    groups = [(name, list(of_name)) for name, of_name in groupby(rows, lambda row: row.name)]
    head = _legend(Sheet(look, 0), rows, names)
    between = _ROW * (1.6 if narrow else 0.8)
    bottom = head + sum(between + _ROW * len(of_name) for _, of_name in groups) + 6
    sheet = Sheet(look, round(bottom + look.font + 12))
    _legend(sheet, rows, names)
    left = 8.0 if narrow else max((look.width_of(name) for name, _ in groups), default=0) + 16
    right = look.width - 8.0
    end = max((max(abs(row.least), abs(row.most)) for row in rows), default=0.1)
    end = max(end, 0.02) * 1.08

    def x(value: float) -> float:
        return (left + right) / 2 + value / end * (right - left) / 2

    step = nice_step(end / (3 if narrow else 4))
    values = [step * number for number in range(-int(end / step), int(end / step) + 1)]
    for value in values:
        sheet.line(x(value), head, x(value), bottom, "ink" if value == 0 else "grid")
    y = float(head)
    for name, of_name in groups:
        y += between
        if narrow:
            sheet.text(left, y - 4, name, colour="ink")
        else:
            sheet.text(left - 8, y + _ROW / 2 + 4, name, anchor="end", colour="ink")
        for row in of_name:
            _interval(sheet, x, y + _ROW / 2, row)
            y += _ROW
    labels(sheet, bottom, ((x(value), words(value)) for value in values if abs(value) < 1))
    return sheet.markup(described)


def _legend(sheet: Sheet, rows: Sequence[Interval], names: Sequence[str]) -> int:
    """Names with their marks, above; returns the pixels that they take."""
    left, y = 8.0, 14
    for number in sorted({row.variant for row in rows}):
        wide = sheet.look.width_of(names[number]) + 46
        if left > 8 and left + wide > sheet.look.width:
            left, y = 8.0, y + 20
        look = look_of(number)
        sheet.line(left, y - 4, left + 24, y - 4, look.ink, 1.8)
        sheet.mark(left + 12, y - 4, look.mark, look.ink)
        sheet.text(left + 30, y, names[number], colour="ink")
        left += wide
    return y + 8


def _interval(sheet: Sheet, x: Callable[[float], float], y: float, row: Interval) -> None:
    look = look_of(row.variant)
    sheet.line(x(row.least), y, x(row.most), y, look.ink, 1.8)
    sheet.mark(x(row.median), y, look.mark, look.ink)
