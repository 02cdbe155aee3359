"""A host over time: the size of its backups, the duration and new data of its runs, and its last nights as a strip. Pure; each
chart is part of its page.

In the strip the shape of a cell shows its meaning, as well as its colour: solid for complete, split for failed, an exclamation mark
for suspect, half for partial, a line for skipped, a dot for no run, two dots for unknown, nothing for nights before the host
existed. The cell of a complete backup that has expired is paler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from statistics import median
from zoneinfo import ZoneInfo

from markupsafe import Markup

from btrkeep.backup_states import GOING
from btrkeep.charts.frame import AxisScale, Frame, frame, size_scale, time_scale, times
from btrkeep.charts.svg import IN_PAGE, Sheet
from btrkeep.units import counted, format_duration, format_size
from web.hosts.backup_rows import BackupRow
from web.hosts.nights import KEPT, HostNight
from web.log import LogRun

_HEIGHT = 190
_WIDEST, _THINNEST = 12.0, 1.5
_MARGIN = 0.015  # share of the time, on both sides: half of the widest bar
_COLOURS = {"failed": "red", "suspect": "purple", "complete": "green"}


@dataclass(frozen=True, slots=True)
class HostChart:
    """A chart and its heading."""

    title: str
    """Its heading."""
    svg: Markup
    """The chart."""


def size_chart(backups: Sequence[BackupRow], zone: ZoneInfo) -> HostChart | None:
    """Draws the sizes of the existing backups; None with fewer than two."""
    backups = sorted((backup for backup in backups if backup.name and backup.size is not None), key=lambda backup: backup.started)
    if len(backups) <= 1:
        return None
    sizes = [row.size or 0 for row in backups]
    sheet, inside = _begun([row.started for row in backups], size_scale(max(sizes)), zone)
    places = [(inside.x(row.started), inside.y(row.size or 0)) for row in backups]
    sheet.curve([place for place, row in zip(places, backups, strict=True) if row.state not in ("failed", "suspect")], "blue")
    for place, row in zip(places, backups, strict=True):
        colour = "blue" if row.state == "complete" else _COLOURS.get(row.state, "blue")
        words = f"{_day(row.started, zone)}: {format_size(row.size)}, {row.state}"
        sheet.dot(*place, colour, words, hollow=row.state in GOING)
    return HostChart(
        "Size of each backup",
        sheet.markup(
            f"Size of {counted(len(backups), 'backup')} from {_day(backups[0].started, zone)} "
            f"to {_day(backups[-1].started, zone)}: "
            f"{format_size(sizes[0])} at first, {format_size(sizes[-1])} now, {format_size(min(sizes))} at least, "
            f"{format_size(max(sizes))} at most."
        ),
    )


def duration_chart(runs: Sequence[LogRun], zone: ZoneInfo) -> HostChart | None:
    """Draws the duration of the runs, the oldest first; None with fewer than two."""
    pairs = [(run, run.seconds) for run in runs if run.seconds is not None]
    return _run_chart("Duration of each run", pairs, zone, time_scale, format_duration)


def new_chart(runs: Sequence[LogRun], zone: ZoneInfo) -> HostChart | None:
    """Draws the new data of the runs; None with fewer than two."""
    pairs = [(run, float(run.literal_bytes)) for run in runs if run.literal_bytes is not None]
    return _run_chart("New data of each run", pairs, zone, size_scale, lambda value: format_size(round(value)))


def _run_chart(
    title: str,
    pairs: Sequence[tuple[LogRun, float]],
    zone: ZoneInfo,
    scale: Callable[[float], AxisScale],
    exact: Callable[[float], str],
) -> HostChart | None:
    """Draws a value for each run; `exact` formats a value in words."""
    if len(pairs) <= 1:
        return None
    values = [value for _, value in pairs]
    moments = [run.started for run, _ in pairs]
    margin = (moments[-1] - moments[0]) * _MARGIN
    sheet, inside = _begun([moments[0] - margin, *moments, moments[-1] + margin], scale(max(values)), zone)
    apart = min(later - earlier for earlier, later in pairwise(inside.x(run.started) for run, _ in pairs))
    width = max(_THINNEST, min(_WIDEST, apart * 0.7))
    for kind in dict.fromkeys(run.outcome for run, _ in pairs):
        places = [(inside.x(run.started), inside.y(value)) for run, value in pairs if run.outcome == kind]
        sheet.bars(places, inside.bottom, width, _COLOURS.get(kind, "ink"))
    return HostChart(
        title,
        sheet.markup(
            f"{title}, {counted(len(pairs), 'run')} from {_day(pairs[0][0].started, zone)} to {_day(pairs[-1][0].started, zone)}: "
            f"{exact(median(values))} usually, {exact(min(values))} at least, {exact(max(values))} at most, "
            f"{exact(values[-1])} the last time."
        ),
    )


def _begun(moments: Sequence[datetime], scale: AxisScale, zone: ZoneInfo) -> tuple[Sheet, Frame]:
    """Returns a sheet with its axes, from the first to the last of these times, oldest first."""
    sheet = Sheet(IN_PAGE, _HEIGHT)
    inside = frame(sheet, moments[0], moments[-1], scale)
    times(sheet, inside, zone)
    return sheet, inside


def _day(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).date().isoformat()


STEP, WIDE = 5, 4
_SHAPES: dict[str, tuple[tuple[float, float], ...]] = {  # (top, height) of the pieces
    "complete": ((0, 16),),
    "past": ((0, 16),),
    "running": ((4, 12),),
    "suspect": ((0, 10), (13, 3)),
    "failed": ((0, 6), (10, 6)),
    "partial": ((8, 8),),
    "skipped": ((7, 2),),
    "none": ((13, 2),),
    "unknown": ((4, 2), (10, 2)),
    "before": (),
}


def strip_paths(nights: Sequence[HostNight]) -> tuple[tuple[str, str], ...]:
    """Returns a path for each kind of cell."""
    cells_by_kind: dict[str, list[str]] = {}
    for place, night in enumerate(nights):
        kind = "past" if night.outcome == "complete" and night.now not in (KEPT, None) else night.outcome
        cells_by_kind.setdefault(kind, []).append(_cell(kind, place))
    return tuple((kind, "".join(cells)) for kind, cells in cells_by_kind.items())


@cache
def _cell(kind: str, place: int) -> str:
    return "".join(f"M{place * STEP} {top:g}h{WIDE}v{height:g}h-{WIDE}z" for top, height in _SHAPES[kind])


def shape(kind: str) -> str:
    """Returns one cell of a kind, for the legend."""
    return _cell(kind, 0)


def width(nights: Sequence[HostNight]) -> int:
    """Returns the width of the whole strip, in the strip's units."""
    return max(len(nights) * STEP - (STEP - WIDE), 1)
