"""What small charts have in common: scales, round numbers on their axes, paths. Pure; the templates draw what comes out as SVG.

They are drawn in the page itself, without a library: so they follow the page's colours, light and dark, and a phone's letters, cost
under a millisecond, and each point has its words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from zoneinfo import ZoneInfo

from btrkeep.decisions.time_ticks import date_ticks
from btrkeep.units import format_size

WIDTH, HEIGHT = 640.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 98.0, 12.0, 10.0, 26.0
"""Margins, for the letters."""
_TICKS = 4
_DATES = 5  # at most; more do not fit beside each other on a phone
_STEPS_OF_SIZE = (1, 2, 5, 10, 20, 50, 128, 256, 512)
_MINUTE, _HOUR = 60.0, 3600.0
_STEPS_OF_TIME = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in the picture's own units, and what stands there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class PlotArea:
    """Where a chart is: from moments and values to places in the picture."""

    first: datetime
    last: datetime
    top: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def left(self) -> float:
        return LEFT

    @property
    def right(self) -> float:
        return self.width - RIGHT

    @property
    def base(self) -> float:
        """The height of zero."""
        return self.height - BOTTOM

    def x(self, moment: datetime) -> float:
        """Where a moment is, from left to right."""
        span = (self.last - self.first).total_seconds()
        share = (moment - self.first).total_seconds() / span if span > 0 else 0.5
        return round(LEFT + share * (self.width - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Where a value is; the larger, the higher, which in SVG is the smaller."""
        return round(self.base - value / self.top * (self.base - TOP), 1)


def frame(
    moments: Sequence[datetime], most: float, zone: ZoneInfo, steps: Callable[[float], float], words: Callable[[float], str]
) -> PlotArea:
    """A frame for these moments, at least one, oldest first, and values from zero to `most`.

    `steps` gives a round distance for a raw one, `words` says a value.
    """
    first, last = moments[0].astimezone(zone), moments[-1].astimezone(zone)
    step = steps(max(most, 1e-9) / _TICKS)
    count = max(1, ceil(most / step - 1e-9))
    bare = PlotArea(moments[0], moments[-1], step * count, (), ())
    return PlotArea(
        moments[0],
        moments[-1],
        step * count,
        _dates(bare, first, last),
        tuple(Tick(bare.y(step * number), words(step * number)) for number in range(count + 1)),
    )


def _dates(bare: PlotArea, first: datetime, last: datetime) -> tuple[Tick, ...]:
    found = date_ticks(first, last) or [(first, f"{first:%-d %b}")]
    return tuple(Tick(bare.x(moment), text) for moment, text in found[:: -(-len(found) // _DATES)])


def size_steps(raw: float) -> float:
    """1, 2, 5, 10, 20, 50, 128, 256 or 512 of a binary unit: sums of them are round in the next larger unit too."""
    unit = 1.0
    while raw > _STEPS_OF_SIZE[-1] * unit:
        unit *= 1024
    return next(step * unit for step in _STEPS_OF_SIZE if step * unit >= raw)


def size_words(value: float) -> str:
    """ "20 GiB", "1.5 TiB": what stands at an axis."""
    number, unit = format_size(round(value)).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def time_steps(raw: float) -> float:
    """A round number of seconds, minutes, hours or days."""
    return float(next((step for step in _STEPS_OF_TIME if step >= raw), ceil(raw / 86400) * 86400))


def time_words(seconds: float) -> str:
    """ "20 s", "5 min", "2 h": what stands at an axis."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:g} min"
    return f"{seconds / _HOUR:g} h"


def line(places: Sequence[tuple[float, float]]) -> str:
    """The path of a line through places."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""


def bars(places: Sequence[tuple[float, float]], base: float, width: float) -> str:
    """The path of upright bars on `base`, each with its middle at x and its top at y. At least a hair high, so that it is seen."""
    half = width / 2
    return "".join(f"M{x - half:.1f} {base:g}V{min(y, base - 1):g}h{width:g}V{base:g}z" for x, y in places)
