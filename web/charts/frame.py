"""The frame that a chart is drawn in: where a value and a moment lie, and the axes. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.decisions.time_ticks import date_ticks, hour_ticks
from btrkeep.units import size_short
from web.charts.svg import Sheet

_RIGHT, _TOP = 10, 14
_WIDER = 1.15  # the letters of another machine may be wider than ours
_BETWEEN = 10
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


def size_scale(most: float, suffix: str = "") -> AxisScale:
    """Returns a scale of bytes: round in a binary unit."""
    top = max(most, 1) * 1.08
    power = 1024 ** min(int(math.log(max(top, 1), 1024)), 5)
    step = _nice(top / power / 4) * power
    return AxisScale(top, max(step, 1), lambda value: size_short(round(value)) + suffix if value else "0")


def number_scale(most: float) -> AxisScale:
    """Returns a scale of counts."""
    top = max(most, 1) * 1.12
    step = max(_nice(top / 4), 1)
    return AxisScale(top, step, lambda value: f"{value:,.0f}")


def time_scale(most: float) -> AxisScale:
    """Returns a scale of seconds: round in seconds, minutes, hours or days."""
    top = max(most, 1) * 1.08
    step = next((step for step in _STEPS_OF_TIME if step >= top / 4), math.ceil(top / 4 / 86400) * 86400)
    return AxisScale(top, step, _time_words)


def _time_words(seconds: float) -> str:
    """Formats seconds: "20 s", "5 min", "2 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:g} min" if seconds < 3600 else f"{seconds / 3600:g} h"


def _nice(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= rough * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class Frame:
    """A rectangle of a sheet with time on its x axis, from `start` on its left to `end` on its right."""

    left: float
    top: float
    right: float
    bottom: float
    start: datetime
    end: datetime
    scale: AxisScale

    def x(self, moment: datetime) -> float:
        """Returns the x coordinate of a moment; a moment outside is placed at the edge."""
        share = (moment - self.start) / (self.end - self.start) if self.end > self.start else 0.0
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Returns the y coordinate of a value."""
        return self.bottom - min(max(value / self.scale.top, 0.0), 1.0) * (self.bottom - self.top)


def frame(sheet: Sheet, start: datetime, end: datetime, scale: AxisScale, above: float = 0, beside: float = 0) -> Frame:
    """Draws the largest frame that fits on the sheet, with lines and their values; leaves `above` free, and at least `beside`
    on its left.
    """
    look = sheet.look
    left = max(beside, *(look.width_of(scale.words(mark)) for mark in scale.marks())) + 8
    found = Frame(left, _TOP + above, look.width - _RIGHT, sheet.height - look.font - 10, start, end, scale)
    for mark in scale.marks():
        y = found.y(mark)
        sheet.line(found.left, y, found.right, y)
        sheet.text(found.left - 6, y + look.font / 3, scale.words(mark), anchor="end")
    return found


def dates(sheet: Sheet, inside: Frame, zone: ZoneInfo) -> None:
    """Draws days, months or years below a frame."""
    named = date_ticks(inside.start.astimezone(zone), inside.end.astimezone(zone))
    _labels(sheet, inside, named)


def hours(sheet: Sheet, inside: Frame, zone: ZoneInfo) -> None:
    """Hours below a frame."""
    _labels(sheet, inside, hour_ticks(inside.start, inside.end, zone))


def _labels(sheet: Sheet, inside: Frame, named: Sequence[tuple[datetime, str]]) -> None:
    """Draws the labels that have room, each with its mark."""
    taken = -math.inf
    for moment, words in named:
        x, half = inside.x(moment), sheet.look.width_of(words) / 2 * _WIDER
        if not inside.start <= moment <= inside.end or x - half < max(taken, 0) or x + half > sheet.look.width:
            continue
        sheet.line(x, inside.bottom, x, inside.bottom + 4, "faint")
        sheet.text(x, inside.bottom + 5 + sheet.look.font, words, anchor="middle")
        taken = x + half + _BETWEEN


def begin_of(moments: Sequence[datetime], start: datetime, end: datetime) -> datetime:
    """Returns a start of the axis shortly before the first moment, because a mostly empty axis hides the data."""
    if not moments:
        return start
    return max(start, moments[0] - max((end - moments[0]) / 50, timedelta(minutes=5)))
