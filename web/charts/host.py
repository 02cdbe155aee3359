"""A host over time: how large its backups are, how long its runs took and what they brought. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from zoneinfo import ZoneInfo

from btrkeep.units import counted, format_duration, format_size
from web.charts.plot import PlotArea, bars, frame, line, size_steps, size_words, time_steps, time_words
from web.data.host import BackupRow
from web.data.log import LogRun

_WIDEST, _THINNEST = 12.0, 1.5


@dataclass(frozen=True, slots=True)
class Dot:
    """A point, with what it says to who points at it."""

    x: float
    y: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class HostChart:
    """`alt` tells in words what can be seen. `lines` are paths; `bars`: a path for each kind of bar."""

    title: str
    alt: str
    frame: PlotArea
    lines: tuple[str, ...] = ()
    dots: tuple[Dot, ...] = ()
    bars: tuple[tuple[str, str], ...] = ()


def size_chart(backups: Sequence[BackupRow], zone: ZoneInfo) -> HostChart | None:
    """The sizes of the backups that there are; None with fewer than two."""
    known = sorted((one for one in backups if one.name and one.size is not None), key=lambda one: one.started)
    if len(known) <= 1:
        return None
    sizes = [one.size or 0 for one in known]
    where = frame([one.started for one in known], max(sizes), zone, size_steps, size_words)
    dots = tuple(
        Dot(
            where.x(one.started),
            where.y(one.size or 0),
            one.state,
            f"{_day(one.started, zone)}: {format_size(one.size)}, {one.state}",
        )
        for one in known
    )
    good = [(dot.x, dot.y) for dot, one in zip(dots, known, strict=True) if one.state not in ("failed", "suspect")]
    alt = (
        f"Size of {counted(len(known), 'backup')} from {_day(known[0].started, zone)} to {_day(known[-1].started, zone)}: "
        f"{format_size(sizes[0])} at first, {format_size(sizes[-1])} now, {format_size(min(sizes))} at least, "
        f"{format_size(max(sizes))} at most."
    )
    return HostChart("Size of each backup", alt, where, (line(good),), dots)


@dataclass(frozen=True, slots=True)
class _Scale:
    """How values of one kind are told: on the axis, and exactly."""

    title: str
    steps: Callable[[float], float]
    words: Callable[[float], str]
    exact: Callable[[float], str]


_DURATION = _Scale("Duration of each run", time_steps, time_words, format_duration)
_NEW = _Scale("New data of each run", size_steps, size_words, lambda value: format_size(round(value)))


def duration_chart(runs: Sequence[LogRun], zone: ZoneInfo) -> HostChart | None:
    """How long the runs took, the oldest first; None with fewer than two."""
    return _run_chart([(run, run.seconds) for run in runs if run.seconds is not None], zone, _DURATION)


def new_chart(runs: Sequence[LogRun], zone: ZoneInfo) -> HostChart | None:
    """How much new data the runs brought; None with fewer than two."""
    return _run_chart([(run, float(run.literal_bytes)) for run in runs if run.literal_bytes is not None], zone, _NEW)


def _run_chart(found: Sequence[tuple[LogRun, float]], zone: ZoneInfo, scale: _Scale) -> HostChart | None:
    if len(found) <= 1:
        return None
    values = [value for _, value in found]
    where = frame([run.started for run, _ in found], max(values), zone, scale.steps, scale.words)
    apart = min(later - earlier for earlier, later in pairwise(where.x(run.started) for run, _ in found))
    width = max(_THINNEST, min(_WIDEST, apart * 0.7))
    kinds = dict.fromkeys(run.outcome for run, _ in found)
    paths = tuple(
        (
            kind,
            bars(
                [(where.x(run.started), where.y(value)) for run, value in found if run.outcome == kind], where.base, round(width, 1)
            ),
        )
        for kind in kinds
    )
    alt = (
        f"{scale.title}, {counted(len(found), 'run')} from {_day(found[0][0].started, zone)} "
        f"to {_day(found[-1][0].started, zone)}: "
        f"{scale.exact(median(values))} usually, {scale.exact(min(values))} at least, {scale.exact(max(values))} at most, "
        f"{scale.exact(values[-1])} the last time."
    )
    return HostChart(scale.title, alt, where, bars=paths)


def _day(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).date().isoformat()
