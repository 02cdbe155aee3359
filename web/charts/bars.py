"""Bars beside each other, each with its label below: how something is distributed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from web.charts.frame import AxisScale
from web.charts.svg import FONT, ChartStyle, Sheet

_HEIGHT, _TOP, _BOTTOM, _RIGHT = 190, 14, 24, 6
_WIDEST = 90
"""Pixels of a bar with what is beside it: three take less of the sheet than thirty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """`label` stands below; `strong`: in another colour, since it is what to look at."""

    label: str
    value: float
    strong: bool = False


def bar_chart(title: str, bars: Sequence[Bar], scale: AxisScale, look: ChartStyle, colour: str = "blue") -> bytes:
    """The bars as SVG. Where not all labels have room, each second or third one is there."""
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
