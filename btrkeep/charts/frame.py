"""The frame of a chart: the positions of values and times, the axes, and the legend above. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.charts.svg import ChartStyle, Sheet
from btrkeep.decisions.trend import time_ticks
from btrkeep.units import size_short

_RIGHT, _TOP = 10, 14
_WIDER = 1.15  # another machine's font may be wider
_BETWEEN = 10
_MOST_NUMBERS = 7
_STEPS_OF_TIME = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Values from zero to `top`, with a line at each multiple of `step`. `words` formats the label of a value."""

    top: float
    step: float
    words: Words

    def marks(self) -> list[float]:
        """Returns the values of the lines."""
        return [self.step * number for number in range(int(self.top / self.step + 1e-9) + 1)]

    def width(self, style: ChartStyle) -> float:
        """Returns the approximate width of the longest label in pixels."""
        return max(style.width_of(self.words(mark)) for mark in self.marks())


def size_scale(most: float, suffix: str = "") -> AxisScale:
    """Returns a scale of bytes, with round numbers of a binary unit."""
    top = max(most, 1) * 1.08
    power = 1024 ** min(int(math.log(max(top, 1), 1024)), 5)
    step = nice_step(top / power / 4) * power
    return AxisScale(top, max(step, 1), lambda value: size_short(round(value)) + suffix if value else "0")


def number_scale(most: float) -> AxisScale:
    """Returns a scale of counts."""
    top = max(most, 1) * 1.12
    step = max(nice_step(top / 4), 1)
    return AxisScale(top, step, lambda value: f"{value:,.0f}")


def decimal_scale(most: float, words: Words) -> AxisScale:
    """Returns a scale of any numbers, also below one."""
    top = most * 1.12 or 1.0
    return AxisScale(top, nice_step(top / 4), words)


def time_scale(most: float) -> AxisScale:
    """Returns a scale of seconds, with round numbers of seconds, minutes, hours or days."""
    top = max(most, 1) * 1.08
    step = next((step for step in _STEPS_OF_TIME if step >= top / 4), math.ceil(top / 4 / 86400) * 86400)
    return AxisScale(top, step, _time_words)


def _time_words(seconds: float) -> str:
    """Formats seconds: "20 s", "5 min", "2 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:g} min" if seconds < 3600 else f"{seconds / 3600:g} h"


def nice_step(rough: float) -> float:
    """Returns the next larger of 1, 2, 2.5, 5, 10, or these times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= rough * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Plot:
    """A rectangle of a sheet with values on its y axis. Coordinates are pixels."""

    left: float
    """Its left edge."""
    top: float
    """Its upper edge."""
    right: float
    """Its right edge."""
    bottom: float
    """Its lower edge."""
    scale: AxisScale
    """The values of the y axis."""

    def at(self, share: float) -> float:
        """Returns the x coordinate of a share of the width, from 0 to 1; other values are placed at the edge."""
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Returns the y coordinate of a value."""
        return self.bottom - min(max(value / self.scale.top, 0.0), 1.0) * (self.bottom - self.top)


@dataclass(frozen=True, slots=True)
class Frame(Plot):
    """A plot with time on its x axis, from `start` on its left to `end` on its right."""

    start: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        """Returns the x coordinate of a time; a time outside of the axis is placed at the edge."""
        return self.at((moment - self.start) / (self.end - self.start) if self.end > self.start else 0.0)


@dataclass(frozen=True, slots=True)
class NumberFrame(Plot):
    """A plot with whole numbers on its x axis, from `first` on its left to `last` on its right."""

    first: int
    last: int

    def x(self, number: float) -> float:
        """Returns the x coordinate of a number."""
        return self.at((number - self.first) / (self.last - self.first) if self.last > self.first else 0.5)


def plot(sheet: Sheet, scale: AxisScale, above: float = 0, beside: float = 0, below: float = 0) -> Plot:
    """Draws the largest plot that fits on the sheet, with lines and their values. Leaves `above` and `below` free, and at least
    `beside` on its left.
    """
    style = sheet.style
    left = max(beside, scale.width(style) * 1.1) + 8  # digits are wider than letters are on average
    area = Plot(left, _TOP + above, style.width - _RIGHT, sheet.height - style.font - 10 - below, scale)
    for mark in scale.marks():
        y = area.y(mark)
        sheet.line(area.left, y, area.right, y)
        sheet.text(area.left - 6, y + style.font / 3, scale.words(mark), anchor="end")
    return area


def frame(sheet: Sheet, start: datetime, end: datetime, scale: AxisScale, above: float = 0, beside: float = 0) -> Frame:
    """Draws a plot over time; see `plot`."""
    area = plot(sheet, scale, above, beside)
    return Frame(area.left, area.top, area.right, area.bottom, scale, start, end)


def number_frame(
    sheet: Sheet, first: int, last: int, scale: AxisScale, above: float = 0, beside: float = 0, name: str = ""
) -> NumberFrame:
    """Draws a plot over whole numbers, with these and the `name` of their axis below it; see `plot`."""
    style = sheet.style
    area = plot(sheet, scale, above, beside, style.font + 6 if name else 0)
    if name:
        sheet.text((area.left + area.right) / 2, sheet.height - 6, name, anchor="middle")
    inside = NumberFrame(area.left, area.top, area.right, area.bottom, scale, first, last)
    step = max(round(nice_step(max((last - first) / (_MOST_NUMBERS - 1), 0.1))), 1)
    begin = -(-first // step) * step
    labels(sheet, inside.bottom, ((inside.x(number), f"{number:,}") for number in range(begin, last + 1, step)))
    return inside


def times(sheet: Sheet, inside: Frame, zone: ZoneInfo) -> None:
    """Draws minutes, hours, days, months or years below a frame."""
    ticks = time_ticks(inside.start.astimezone(zone), inside.end.astimezone(zone))
    labels(sheet, inside.bottom, ((inside.x(moment), words) for moment, words in ticks if inside.start <= moment <= inside.end))


def labels(sheet: Sheet, bottom: float, named: Iterable[tuple[float, str]]) -> None:
    """Draws the labels of an x axis that fit, each with its mark."""
    taken = -math.inf
    for x, words in named:
        half = sheet.style.width_of(words) / 2 * _WIDER
        if x - half < max(taken, 0) or x + half > sheet.style.width:
            continue
        sheet.line(x, bottom, x, bottom + 4, "faint")
        sheet.text(x, bottom + 5 + sheet.style.font, words, anchor="middle")
        taken = x + half + _BETWEEN


def begin_of(moments: Sequence[datetime], start: datetime, end: datetime) -> datetime:
    """Returns a start of the axis shortly before the first time, because a mostly empty axis hides the data."""
    if not moments:
        return start
    return max(start, moments[0] - max((end - moments[0]) / 50, timedelta(minutes=5)))


def legend(sheet: Sheet, entries: Sequence[tuple[str, str, str | None]]) -> int:
    """Draws names with their colours, and returns their width in pixels. Each entry: the name, the colour, and the dash of a line
    ("" for a plain one) or None for an area.
    """
    x, row, font = 4.0, 0, sheet.style.font
    for name, colour, dash in entries:
        wide = sheet.style.width_of(name) + 34
        if x > 4 and x + wide > sheet.style.width:
            x, row = 4.0, row + 1
        y = row * (font + 10) + 4
        if dash is None:
            sheet.rect(x, y, 14, font, colour, 0.75)
        else:
            sheet.curve([(x, y + font / 2), (x + 14, y + font / 2)], colour, dash)
        sheet.text(x + 20, y + font - 1, name, colour="ink")
        x += wide
    return (row + 1) * (font + 10)
