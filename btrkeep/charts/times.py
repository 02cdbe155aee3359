"""Charts over months: areas and lines, with a gap where nothing is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from zoneinfo import ZoneInfo

from btrkeep.charts.frame import AxisScale, Frame, begin_of, dates, frame, legend
from btrkeep.charts.svg import ChartStyle, Sheet

_GAP = 3.0
"""A gap between two points is so many times the usual distance."""
AREA, LINE, DASHED = "area", "line", "dashed"
_DASHES = {LINE: "", DASHED: "4 3"}
_HEIGHT = 260


@dataclass(frozen=True, slots=True)
class Series:
    """Values, one for each moment; None: not known. An area reaches down to `base`, or to zero."""

    name: str
    colour: str
    values: Sequence[float | None]
    kind: str = LINE
    base: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class TimesChart:
    """The data of a chart: `title` is for screen readers."""

    title: str
    moments: Sequence[datetime]
    start: datetime
    end: datetime
    zone: ZoneInfo
    scale: AxisScale
    series: Sequence[Series]
    height: int = _HEIGHT
    beside: float = 0
    """Pixels to leave on its left for labels, as others have them that stand above or below."""


def draw(chart: TimesChart, look: ChartStyle) -> Sheet:
    """Draws the chart, without its title."""
    sheet = Sheet(look, chart.height)
    above = legend(sheet, [(one.name, one.colour, _DASHES.get(one.kind)) for one in chart.series]) if len(chart.series) > 1 else 0
    begin = begin_of(chart.moments, chart.start, chart.end)
    inside = frame(sheet, begin, chart.end, chart.scale, above, chart.beside)
    for series in chart.series:
        for run in _runs(chart.moments, series.values):
            _draw(sheet, inside, chart.moments, series, run)
    dates(sheet, inside, chart.zone)
    return sheet


def _draw(sheet: Sheet, inside: Frame, moments: Sequence[datetime], series: Series, run: Sequence[int]) -> None:
    points = [(inside.x(moments[at]), inside.y(series.values[at] or 0)) for at in run]
    if len(points) == 1:
        sheet.dot(*points[0], series.colour)
    elif series.kind == AREA:
        base = [(inside.x(moments[at]), inside.y((series.base[at] or 0) if series.base else 0)) for at in run]
        sheet.area([*points, *base[::-1]], series.colour, 0.75)
    else:
        sheet.curve(points, series.colour, "5 4" if series.kind == DASHED else "")


def _runs(moments: Sequence[datetime], values: Sequence[float | None]) -> list[list[int]]:
    """Indices of values that are known and follow each other without a gap."""
    steps = sorted(after - before for before, after in pairwise(moments))
    widest = steps[len(steps) // 2] * _GAP if steps else None
    number, numbered = 0, []
    for at, value in enumerate(values):
        if value is None or (at and widest and moments[at] - moments[at - 1] > widest):
            number += 1
        if value is not None:
            numbered.append((number, at))
    return [[at for _, at in some] for _, some in groupby(numbered, key=lambda pair: pair[0])]
