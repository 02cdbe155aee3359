"""Charts of a rehearsal as SVG, by matplotlib, to stand in a page: its colours are the page's, so they fit light and dark.

Each variant has a colour and a kind of line, and nothing is told by colour alone. A line is the median over the seeds, the shade
behind it reaches from the least to the most of them.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

INK, LINE, GREY = "#222222", "#dddddd", "#777777"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_DASHES = (
    "solid",
    "dashed",
    "dotted",
    "double",
    "dashed",
    "dotted",
)  # neighbours differ, since a colour that comes again has the next
_MARKS = "osD^vP"
_IN_PAGE = {
    INK: "currentColor",
    LINE: "var(--line)",
    GREY: "var(--grey)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)},
}
_SIZE = (4.4, 2.5)  # inches, of 96 points: in a page three stand side by side, and text stays as large as it is meant
_ROW = 0.36
_WIDE, _NARROW = 7.6, 3.8
_CLOCK = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)


class VariantLook(NamedTuple):
    """How a variant is drawn. `colour`: its number in COLOURS; `style`: a line of matplotlib; `dash`: a border of CSS."""

    colour: int
    style: Any
    dash: str
    mark: str


def look_of(number: int) -> VariantLook:
    """Returns the look of the variant with that number. Where colours come again, lines and marks are others."""
    colour = number % len(COLOURS)
    other = (number + number // len(COLOURS)) % len(COLOURS)
    return VariantLook(colour, STYLES[other], _DASHES[other], _MARKS[other])


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
    bands: Mapping[str, Band],
    words: Callable[[float], str],
    described: str,
    faint: Mapping[str, Band] | None = None,
    *,
    binary: bool = False,
) -> str:
    """A line for each variant over the nights. `faint`: thin lines of the same variants. `words` writes a number of the axis, which
    has numbers that are round in a binary unit if it is `binary`.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for number, (name, band) in enumerate(bands.items()):
        look = look_of(number)
        colour, style = COLOURS[look.colour], look.style
        nights = range(1, len(band) + 1)
        mark = "o" if len(band) == 1 else ""
        axes.fill_between(
            nights, [least for least, _, _ in band], [most for *_, most in band], color=colour, alpha=0.14, linewidth=0
        )
        axes.plot(nights, [middle for _, middle, _ in band], color=colour, linestyle=style, linewidth=1.9, label=name, marker=mark)
        if faint:
            axes.plot(nights, [middle for _, middle, _ in faint[name]], color=colour, linestyle=style, linewidth=0.8)
    head = _head(bands, faint)
    axes.set_ylim(0, head)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.yaxis.set_major_locator(FixedLocator(_binary(head)) if binary else MaxNLocator(5))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("night", fontsize=9, color=INK)
    _plain(axes, "y")
    return _svg(figure, described)


def _head(*many: Mapping[str, Band] | None) -> float:
    return max((most for bands in many if bands for band in bands.values() for *_, most in band), default=0.0) * 1.12 or 1.0


def _binary(head: float) -> list[float]:
    """Three to six numbers."""
    unit = 1024.0 ** int(log(max(head, 1), 1024))
    steps = (nice * 10**power * unit for power in range(-1, 4) for nice in (1, 2, 2.5, 5))
    step = next(step for step in steps if step * 5 >= head)
    return [step * number for number in range(int(head / step) + 1)]


def intervals(
    rows: Sequence[Interval], names: Sequence[str], words: Callable[[float], str], described: str, *, narrow: bool = False
) -> str:
    """Changes against the first variant, a row for each measure: the median, and the least to the most of all pairs. `narrow`: the
    names of measures stand above their rows, for a screen as wide as a telephone's.
    """
    between = 3.0 if narrow else 1.6
    measures = len({row.name for row in rows})
    height = 0.8 + _ROW / 2.4 * (len(rows) + (between - 1) * measures + 1)
    figure = Figure(figsize=(_NARROW if narrow else _WIDE, height), layout="constrained")
    axes = figure.subplots()
    labels, at, before = [], 0.0, ""
    for row in rows:
        at -= 1.0 if row.name == before else between
        if row.name != before:
            labels.append((at, row.name))
        before = row.name
        look = look_of(row.variant)
        colour = COLOURS[look.colour]
        axes.plot([row.least, row.most], [at, at], color=colour, linewidth=1.8, solid_capstyle="butt")
        axes.plot([row.median], [at], color=colour, marker=look.mark, markersize=5, linestyle="")
    for number in sorted({row.variant for row in rows}):
        axes.plot([], [], color=COLOURS[look_of(number).colour], marker=look_of(number).mark, linewidth=1.8, label=names[number])
    axes.axvline(0, color=INK, linewidth=1)
    widest = max((max(abs(row.least), abs(row.most)) for row in rows), default=0.1)
    end = max(widest, 0.02) * 1.08
    axes.set_xlim(-end, end)
    axes.set_ylim(at - 1, 0)
    if narrow:
        axes.set_yticks([])
        for place, name in labels:
            axes.text(-end, place + 1.2, name, fontsize=9, color=INK, va="center")
    else:
        axes.set_yticks([place for place, _ in labels], [name for _, name in labels])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value) if abs(value) < 1 else ""))
    axes.xaxis.set_major_locator(MaxNLocator(5 if narrow else 7))
    columns = 2 if narrow else 4
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=9, labelcolor=INK)
    _plain(axes, "x")
    axes.spines["left"].set_visible(False)
    return _svg(figure, described, "narrow" if narrow else "")


def _plain(axes: Axes, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(axis=grid, color=LINE, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)


def _svg(figure: Figure, described: str, form: str = "") -> str:
    """The element alone, with a description for who does not see it. Text stays text. Two forms of a chart on one page share no
    definition: what is defined in a hidden one is not drawn.
    """
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": described + form, "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", transparent=True)
    text = _CLOCK.sub("", out.getvalue())
    text = text[text.index("<svg") :]
    for colour, name in _IN_PAGE.items():
        text = text.replace(colour, name)
    return text.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
