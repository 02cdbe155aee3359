"""The two charts as files: those of the pages, one below the other, with a title, on white."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from btrkeep.charts.day import day_panels
from btrkeep.charts.day import words as day_words
from btrkeep.charts.svg import ChartStyle, file_of
from btrkeep.charts.trend import TrendContext, trend_panels
from btrkeep.charts.trend import words as trend_words
from btrkeep.decisions.day_phases import DayData
from btrkeep.decisions.trend import Point
from btrkeep.fs.output_file import whole_file
from btrkeep.units import format_size

_STYLE = ChartStyle(960)


@dataclass(frozen=True, slots=True)
class TrendData:
    """The data of the charts over months."""

    name: str
    """The pool's name, safe to show."""
    since: datetime
    """The start of the charts."""
    until: datetime
    """The end of the charts."""
    zone: ZoneInfo
    """The time zone of the labels."""
    points: Sequence[Point]
    """From `since` to `until`, oldest first."""
    context: TrendContext = field(default_factory=TrendContext)
    """The limit, the level of a year before, and the forecast."""


def trend_picture(trend: TrendData) -> bytes:
    """Draws allocated and used, the difference, and the score if there is one. At least one point."""
    headings = {
        "allocated": "",
        "unused": "Allocated, not used: balance can free this space",
        "score": "Score of the free space: lower means fewer small pieces",
    }
    panels = trend_panels(trend, trend.zone, _STYLE, headings, trend.context)
    return file_of(f"{trend.name}: allocated and used", panels, trend_words("allocated", trend))


def day_picture(day: DayData) -> bytes:
    """Draws the bytes that the disks wrote and read over a day, with the jobs above, one line for each kind, and as
    shades behind.
    """
    panels = day_panels(day, day.zone, _STYLE, {"written": "Written to the disks", "read": "Read from the disks"})
    title = f"{day.name}: the disks, {_span(day)}, {day.zone.key}"
    return file_of(title, panels, day_words("written", day, day.zone), _sum_words(day))


def save(picture: bytes, path: Path) -> None:
    """Writes the file at `path`, completely or not at all. Raises OperatorError."""
    with whole_file(str(path)) as file:
        file.write(picture)


def _sum_words(day: DayData) -> str:
    """Formats the written bytes, and their purpose."""
    whole = day.sums[0]
    words = (
        f"{format_size(whole.written)} written, {format_size(whole.data)} of it data"
        if whole.data
        else f"{format_size(whole.written)} written"
    )
    ratios = [f"{each.kind or 'all day'} {each.ratio:.1f}" for each in day.sums if each.ratio is not None]
    return words + (f". Metadata written for each byte of data: {', '.join(ratios)}" if ratios else "")


def _span(day: DayData) -> str:
    first, last = day.start.astimezone(day.zone), (day.end - timedelta(seconds=1)).astimezone(day.zone)
    if first.date() == last.date():
        return f"{first:%A}, {first.day} {first:%B %Y}"
    return f"{first.day} {first:%B %Y} {first:%H:%M} to {last.day} {last:%B %Y} {day.end.astimezone(day.zone):%H:%M}"
