"""Charts over time: areas and lines, with gaps for unknown values; and those of a trend: allocated and used space with its limit,
its forecast and the level of a year before; the difference between the two; the score; and subvolumes that wait for the cleaner.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

from markupsafe import Markup

from btrkeep.charts.frame import (
    AxisScale,
    Frame,
    NumberFrame,
    begin_of,
    frame,
    legend,
    number_frame,
    number_scale,
    size_scale,
    times,
)
from btrkeep.charts.svg import IN_PAGE, MARGIN, ChartStyle, Panel, Readings, Sheet
from btrkeep.decisions.trend import LEAST_DAYS, FullForecast, range_ahead
from btrkeep.units import format_share, format_size

_GAP = 3.0
"""Two points are a gap if their distance is that many times the usual one."""
AREA, LINE, DASHED = "area", "line", "dashed"
_DASHES = {LINE: "", DASHED: "4 3"}
_HEIGHT_OF_TIMES = 260
_AHEAD = 16
"""Points of a forecast."""


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
    reading: str = ""
    """The name of the value, if it is not that of the shape."""


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
    exact: Callable[[int], str] = format_size
    """Formats a value in words."""
    limit: tuple[float, str] | None = None
    """A value with a line of its own, and the name of that line."""
    ahead: "Ahead | None" = None
    """What is expected; None: unknown."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The values that are expected after the last one."""

    name: str
    """Its name in the legend."""
    colour: str
    """A colour of SVG."""
    moments: Sequence[datetime]
    """The times; the first one is that of the last known value."""
    values: Sequence[tuple[float, float, float]]
    """The usual, the lowest and the highest value at each of them."""


def draw(chart: TimesChart, style: ChartStyle) -> Sheet:
    """Draws the chart, without its title."""
    sheet, ahead = Sheet(style, chart.height), chart.ahead
    named = [(series.name, series.colour, _DASHES.get(series.kind)) for series in chart.series]
    named += [(chart.limit[1], "red", "")] if chart.limit else []
    named += [(ahead.name, ahead.colour, _DASHES[DASHED])] if ahead else []
    above = legend(sheet, named) if len(named) > 1 else 0
    end = max(chart.end, ahead.moments[-1]) if ahead else chart.end
    begin = begin_of(chart.moments, chart.start, chart.end)
    inside = frame(sheet, begin, end, chart.scale, above, chart.beside)
    if chart.limit:
        y = inside.y(chart.limit[0])
        sheet.line(inside.left, y, inside.right, y, "red")
    for series in chart.series:
        for run in _runs(chart.moments, series.values):
            _draw(sheet, inside, chart.moments, series, run)
    if ahead:
        xs = [inside.x(moment) for moment in ahead.moments]
        upper, lower = ([(x, inside.y(value[at])) for x, value in zip(xs, ahead.values, strict=True)] for at in (2, 1))
        sheet.area([*upper, *lower[::-1]], ahead.colour, 0.16)
        usual = [(x, inside.y(value[0])) for x, value in zip(xs, ahead.values, strict=True)]
        sheet.curve(usual, ahead.colour, _DASHES[DASHED])
    times(sheet, inside, chart.zone)
    sheet.readings = _readings(chart, inside)
    return sheet


def _readings(chart: TimesChart, inside: Frame) -> Readings:
    names = [series.reading or series.name for series in chart.series]
    rows = [
        (inside.x(moment), (_time_words(moment, chart.zone), *(_exact(chart, series.values[at]) for series in chart.series)))
        for at, moment in enumerate(chart.moments)
    ]
    if ahead := chart.ahead:
        names.append(ahead.name)
        unknown = ("",) * len(chart.series)
        for moment, (usual, least, most) in zip(ahead.moments[1:], ahead.values[1:], strict=True):
            words = f"{_exact(chart, usual)} ({_exact(chart, least)} to {_exact(chart, most)})"
            rows.append((inside.x(moment), (_time_words(moment, chart.zone), *unknown, words)))
    return Readings((inside.left, inside.top, inside.right, inside.bottom), names, rows, (inside.start, inside.end))


def _exact(chart: TimesChart, value: float | None) -> str:
    return "" if value is None else chart.exact(round(value))


def _time_words(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


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


@dataclass(frozen=True, slots=True)
class TrendContext:
    """What the chart of allocated and used space has in addition to its points."""

    limit: float | None = None
    """The share of the size above which there is an alarm; None: not drawn."""
    year_before: Sequence[int | None] = ()
    """The used bytes a year before each point; empty, or None: unknown."""
    forecast: FullForecast | None = None
    """The forecast of the used bytes; None: unknown, or not drawn."""


_NO_CONTEXT = TrendContext()


def trend_chart(name: str, trend: TrendSpan, zone: ZoneInfo, context: TrendContext = _NO_CONTEXT) -> Markup:
    """Returns the chart of that name as a part of a page."""
    chart = _CHARTS[name](trend, zone, context)
    return draw(chart, IN_PAGE).markup(chart.title)


def trend_panels(
    trend: TrendSpan, zone: ZoneInfo, style: ChartStyle, headings: Mapping[str, str], context: TrendContext = _NO_CONTEXT
) -> list[Panel]:
    """Returns those charts with these names that have data, with their headings, one above the other."""
    charts = {name: _CHARTS[name](trend, zone, context) for name in headings if has(name, trend)}
    beside = max(chart.scale.width(style) for chart in charts.values()) + MARGIN
    return [Panel(headings[name], draw(replace(chart, beside=beside), style)) for name, chart in charts.items()]


def small_chart(trend: TrendSpan, zone: ZoneInfo, context: TrendContext = _NO_CONTEXT) -> Markup | None:
    """Returns allocated and used space as a part of a page; None without a point."""
    if not trend.points:
        return None
    chart = replace(_allocated(trend, zone, context), height=260)
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


def _allocated(trend: TrendSpan, zone: ZoneInfo, context: TrendContext) -> TimesChart:
    points = trend.points
    used, size = [point.used for point in points], max((point.size for point in points), default=0)
    series = [
        Series("used", "blue", used, AREA),
        Series("allocated, not used", "orange", [point.allocated for point in points], AREA, used, "allocated"),
        Series("size of the devices", "ink", [point.size for point in points], DASHED),
    ]
    if any(value is not None for value in context.year_before):
        series.append(Series("used a year before", "ink", context.year_before, LINE))
    chart = _chart(trend, zone, words("allocated", trend), size, tuple(series), 320)
    limit = (points[-1].size * context.limit, f"limit {format_share(context.limit)}") if points and context.limit else None
    return replace(chart, limit=limit, ahead=_ahead(trend, context.forecast))


def _ahead(trend: TrendSpan, forecast: FullForecast | None) -> Ahead | None:
    """Returns the forecast for a quarter of the shown time; None if less time is shown than a forecast needs."""
    if forecast is None or not trend.points:
        return None
    last = trend.points[-1]
    length = trend.until - max(trend.since, trend.points[0].taken)
    if length < timedelta(days=LEAST_DAYS):
        return None
    moments = [last.taken + number * length / _AHEAD / 4 for number in range(_AHEAD + 1)]
    return Ahead("forecast of used", "purple", moments, range_ahead(forecast, last.taken, last.used, moments))


def _unused(trend: TrendSpan, zone: ZoneInfo, _context: TrendContext) -> TimesChart:
    values = [point.unused for point in trend.points]
    return _chart(trend, zone, words("unused", trend), max(values, default=0), (Series("unused", "orange", values, AREA),), 200)


def _score(trend: TrendSpan, zone: ZoneInfo, _context: TrendContext) -> TimesChart:
    return _numbers(trend, zone, "score", "green", LINE)


def _orphans(trend: TrendSpan, zone: ZoneInfo, _context: TrendContext) -> TimesChart:
    return _numbers(trend, zone, "orphans", "purple", AREA)


def _numbers(trend: TrendSpan, zone: ZoneInfo, name: str, colour: str, kind: str) -> TimesChart:
    values = [getattr(point, _NUMBERS[name][1]) for point in trend.points]
    scale = number_scale(max((value for value in values if value is not None), default=0))
    series = (Series(name, colour, values, kind),)
    chart = TimesChart(words(name, trend), _moments(trend.points), trend.since, trend.until, zone, scale, series, 200)
    return replace(chart, exact=lambda value: f"{value:,}")


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
