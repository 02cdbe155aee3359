"""The distribution of scores and of the sizes of free extents: vertical bars, each with its label below."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from btrkeep.charts.frame import AxisScale, number_scale, size_scale
from btrkeep.charts.svg import FONT, ChartStyle, Sheet
from btrkeep.units import counted, format_size, size_short
from web.pool.scores import Distribution, ScoreClass, SizeClass

_HEIGHT, _TOP, _BOTTOM, _RIGHT = 190, 14, 24, 6
_WIDEST = 90
"""The maximum width in pixels of a bar with its gap: three bars take less of the sheet than thirty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `label` is below it; `strong`: drawn in another colour, to draw attention."""

    label: str
    value: float
    strong: bool = False


def bar_chart(title: str, bars: Sequence[Bar], scale: AxisScale, look: ChartStyle, colour: str = "blue") -> bytes:
    """Returns the bars as SVG. If not all labels have room, draws each second or third one."""
    left = max(look.width_of(scale.words(mark)) for mark in scale.marks()) + 8
    right = min(look.width, round(left) + _RIGHT + _WIDEST * max(len(bars), 2)) - _RIGHT
    sheet = Sheet(look, _HEIGHT)
    bottom, tall = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    for mark in scale.marks():
        y = bottom - mark / scale.top * tall
        sheet.line(left, y, right, y)
        sheet.text(left - 6, y + FONT / 3, scale.words(mark), anchor="end")
    step = (right - left) / max(len(bars), 1)
    every = ceil(max((look.width_of(bar.label) + 4 for bar in bars), default=0) / step)
    for number, bar in enumerate(bars):
        x, height = left + number * step, max(bar.value / scale.top * tall, 1.0 if bar.value else 0.0)
        sheet.rect(x + step * 0.08, bottom - height, step * 0.84, height, "red" if bar.strong else colour)
        if number % every == 0:
            half = look.width_of(bar.label) / 2
            sheet.text(min(max(x + step / 2, half), look.width - half), bottom + 5 + FONT, bar.label, anchor="middle")
    return sheet.document(title)


def class_words(one: ScoreClass) -> str:
    """Names a class of scores: "50 to 100", "250 and more"."""
    return f"{one.least:g} and more" if one.most is None else f"{one.least:g} to {one.most:g}"


def score_words(found: Distribution) -> str:
    """Describes the chart of scores, for screen readers."""
    parts = [f"{one.block_groups:,} score {class_words(one)}" for one in found.classes if one.block_groups]
    return f"data block groups by their score: {', '.join(parts) or 'none'}"


def score_chart(found: Distribution, look: ChartStyle) -> bytes:
    """Draws block groups by their score; the bad ones in another colour."""
    bars = [
        Bar(f"{one.least:g}+" if one.most is None else f"{one.least:g}-{one.most:g}", one.block_groups, one.most is None)
        for one in found.classes
    ]
    return bar_chart(score_words(found), bars, number_scale(max(bar.value for bar in bars)), look)


def size_words(sizes: Sequence[SizeClass]) -> str:
    """Describes the chart of sizes, for screen readers."""
    whole = sum(size.bytes for size in sizes)
    large = sum(size.bytes for size in sizes if size.least >= 16 << 20)
    count = sum(size.extents for size in sizes)
    return f"{format_size(whole)} are free in {counted(count, 'extent')}; {format_size(large)} of it in extents of 16 MiB and more"


def size_chart(sizes: Sequence[SizeClass], look: ChartStyle) -> bytes:
    """Bytes that are free, by the size of the free extents."""
    bars = [Bar(size_short(size.least), size.bytes) for size in sizes]
    return bar_chart(size_words(sizes), bars, size_scale(max((size.bytes for size in sizes), default=0)), look, "green")
