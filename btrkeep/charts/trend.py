"""Charts over months or nights: areas and lines, with gaps for unknown values; and the charts of a trend, which has allocated and
used space, the difference between them, the score, and subvolumes that wait for the cleaner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

from markupsafe import Markup

from btrkeep.charts.frame import (
    AxisScale,
    Frame,
    NumberFrame,
    begin_of,
    dates,
    frame,
    legend,
    number_frame,
    number_scale,
    size_scale,
)
from btrkeep.charts.svg import IN_PAGE, MARGIN, ChartStyle, Panel, Sheet
from btrkeep.units import format_size

_GAP = 3.0
"""Two points are a gap if their distance is that many times the usual one."""
AREA, LINE, DASHED = "area", "line", "dashed"
_DASHES = {LINE: "", DASHED: "4 3"}
_HEIGHT_OF_TIMES = 260


@dataclass(frozen=True, slots=True)
class Series:
    """A value for each moment."""

    name: str
    """Its name in the legend."""
    colour: str
    """A colour of SVG."""
    values: Sequence[float | None]
    """None: unknown, a gap."""
    kind: str = LINE
    """A line or an area."""
    base: Sequence[float | None] | None = None
    """The lower edge of an area; None: zero."""


@dataclass(frozen=True, slots=True)
class TimesChart:
    """The data of a chart over time."""

    title: str
    """Its title for screen readers."""
    moments: Sequence[datetime]
    """The times of the values."""
    start: datetime
    """The left end of the x axis."""
    end: datetime
    """The right end of the x axis."""
    zone: ZoneInfo
    """The time zone of its labels."""
    scale: AxisScale
    """The values of the y axis."""
    series: Sequence[Series]
    """What is drawn."""
    height: int = _HEIGHT_OF_TIMES
    """Its height in pixels."""
    beside: float = 0
    """Width in pixels reserved on the left for labels, so that the chart is aligned with those above or below."""


def draw(chart: TimesChart, style: ChartStyle) -> Sheet:
    """Draws the chart, without its title."""
    sheet = Sheet(style, chart.height)
    above = (
        legend(sheet, [(series.name, series.colour, _DASHES.get(series.kind)) for series in chart.series])
        if len(chart.series) > 1
        else 0
    )
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
    """Returns the indices of values that are known and follow each other without a gap."""
    steps = sorted(after - before for before, after in pairwise(moments))
    widest = steps[len(steps) // 2] * _GAP if steps else None
    number, numbered = 0, []
    for at, value in enumerate(values):
        if value is None or (at and widest and moments[at] - moments[at - 1] > widest):
            number += 1
        if value is not None:
            numbered.append((number, at))
    return [[at for _, at in pairs] for _, pairs in groupby(numbered, key=lambda pair: pair[0])]


NAMES = ("allocated", "unused", "score", "orphans")


class TrendMoment(Protocol):
    """The state of a filesystem at a time; sizes are bytes of the devices. That of a page also has `most_orphans`."""

    @property
    def taken(self) -> datetime: ...
    @property
    def size(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def unused(self) -> int: ...
    @property
    def score(self) -> float | None: ...


class TrendSpan(Protocol):
    """Points from `since` to `until`, oldest first."""

    @property
    def since(self) -> datetime: ...
    @property
    def until(self) -> datetime: ...
    @property
    def points(self) -> Sequence[TrendMoment]: ...


def trend_chart(name: str, trend: TrendSpan, zone: ZoneInfo, style: ChartStyle) -> bytes:
    """Returns the chart of that name, as SVG."""
    chart = _CHARTS[name](trend, zone)
    return draw(chart, style).document(chart.title)


def trend_panels(trend: TrendSpan, zone: ZoneInfo, style: ChartStyle, headings: Mapping[str, str]) -> list[Panel]:
    """Returns those charts with these names that have data, with their headings, one above the other."""
    charts = {name: _CHARTS[name](trend, zone) for name in headings if has(name, trend)}
    beside = max(chart.scale.width(style) for chart in charts.values()) + MARGIN
    return [Panel(headings[name], draw(replace(chart, beside=beside), style)) for name, chart in charts.items()]


def small_chart(trend: TrendSpan, zone: ZoneInfo) -> Markup | None:
    """Returns allocated and used space as a part of a page; None with fewer than two points."""
    if len(trend.points) <= 1:
        return None
    chart = replace(_allocated(trend, zone), height=220)
    return draw(chart, IN_PAGE).markup(chart.title)


def words(name: str, trend: TrendSpan) -> str:
    """Describes the chart of that name for screen readers, with the first and the last value."""
    if not trend.points:
        return "no samples"
    first, last = trend.points[0], trend.points[-1]
    when = f"from {first.taken:%Y-%m-%d} to {last.taken:%Y-%m-%d}"
    if name == "allocated":
        return (
            f"allocated went from {format_size(first.allocated)} to {format_size(last.allocated)} and used from "
            f"{format_size(first.used)} to {format_size(last.used)}, of {format_size(last.size)}, {when}"
        )
    if name == "unused":
        return f"allocated but not used went from {format_size(first.unused)} to {format_size(last.unused)}, {when}"
    noun, field = _NUMBERS[name]
    values = [value for point in trend.points if (value := getattr(point, field)) is not None]
    return f"{noun} went from {values[0]:,.0f} to {values[-1]:,.0f}, {max(values):,.0f} at most, {when}" if values else f"no {noun}"


_NUMBERS = {
    "score": ("the score of the free space", "score"),
    "orphans": ("the number of deleted subvolumes that wait for the cleaner", "most_orphans"),
}


def has(name: str, trend: TrendSpan) -> bool:
    """Returns True if there is something to draw."""
    if name in _NUMBERS:
        return any(getattr(point, _NUMBERS[name][1]) is not None for point in trend.points)
    return bool(trend.points)


def _allocated(trend: TrendSpan, zone: ZoneInfo) -> TimesChart:
    points = trend.points
    used = [point.used for point in points]
    series = (
        Series("used", "blue", used, AREA),
        Series("allocated, not used", "orange", [point.allocated for point in points], AREA, used),
        Series("size of the devices", "ink", [point.size for point in points], DASHED),
    )
    return _chart(trend, zone, words("allocated", trend), max((point.size for point in points), default=0), series)


def _unused(trend: TrendSpan, zone: ZoneInfo) -> TimesChart:
    values = [point.unused for point in trend.points]
    return _chart(trend, zone, words("unused", trend), max(values, default=0), (Series("unused", "orange", values, AREA),), 170)


def _score(trend: TrendSpan, zone: ZoneInfo) -> TimesChart:
    return _numbers(trend, zone, "score", "green", LINE)


def _orphans(trend: TrendSpan, zone: ZoneInfo) -> TimesChart:
    return _numbers(trend, zone, "orphans", "purple", AREA)


def _numbers(trend: TrendSpan, zone: ZoneInfo, name: str, colour: str, kind: str) -> TimesChart:
    values = [getattr(point, _NUMBERS[name][1]) for point in trend.points]
    scale = number_scale(max((value for value in values if value is not None), default=0))
    series = (Series(name, colour, values, kind),)
    return TimesChart(words(name, trend), _moments(trend.points), trend.since, trend.until, zone, scale, series, 170)


_CHARTS = {"allocated": _allocated, "unused": _unused, "score": _score, "orphans": _orphans}


def _chart(trend: TrendSpan, zone: ZoneInfo, title: str, most: float, series: tuple[Series, ...], height: int = 280) -> TimesChart:
    return TimesChart(title, _moments(trend.points), trend.since, trend.until, zone, size_scale(most), series, height)


def _moments(points: Sequence[TrendMoment]) -> list[datetime]:
    return [point.taken for point in points]


@dataclass(frozen=True, slots=True)
class NightLine:
    """A value for each night."""

    name: str
    """Its name in the legend."""
    colour: str
    """A colour of SVG."""
    dash: str
    """The dashes of the line; "" for a plain one."""
    values: Sequence[float | None]
    """None: unknown, a gap."""
    width: float = 1.6
    """Width of the line, in pixels."""
    band: Sequence[tuple[float, float]] = ()
    """The minimum and the maximum of each night, drawn as a shade."""


def draw_nights(
    lines: Sequence[NightLine],
    scale: AxisScale,
    style: ChartStyle,
    height: int,
    *,
    first: int = 1,
    beside: float = 0,
    named: bool = False,
) -> Sheet:
    """Draws the lines. `first`: the number of the first night; `named`: with a legend above."""
    sheet = Sheet(style, height)
    above = legend(sheet, [(line.name, line.colour, line.dash) for line in lines]) if named else 0
    last = first + max((len(line.values) for line in lines), default=1) - 1
    inside = number_frame(sheet, first, last, scale, above, beside, "night")
    for line in lines:
        if len(line.band) > 1:
            upper = [(inside.x(first + at), inside.y(most)) for at, (_, most) in enumerate(line.band)]
            lower = [(inside.x(first + at), inside.y(least)) for at, (least, _) in enumerate(line.band)]
            sheet.area([*upper, *lower[::-1]], line.colour, 0.14)
    for line in lines:
        _draw_line(sheet, inside, line, first)
    return sheet


def _draw_line(sheet: Sheet, inside: NumberFrame, line: NightLine, first: int) -> None:
    for is_known, run in groupby(enumerate(line.values), lambda pair: pair[1] is not None):
        points = [(inside.x(first + at), inside.y(value)) for at, value in run if value is not None]
        if is_known and len(points) == 1:
            sheet.dot(*points[0], line.colour)
        elif is_known:
            sheet.curve(points, line.colour, line.dash, line.width)
