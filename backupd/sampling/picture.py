"""The two graphs as pictures, by matplotlib, which is imported for nothing else: it takes half a second to load.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people tell apart who do not see all colours. Nothing
is told by colour alone: areas and lines have their names beside them, and each kind of job its own line.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from backupd.sampling.picture_data import DayData
from btrkeep.decisions.day_phases import kinds_of, unknown_spans
from btrkeep.decisions.time_ticks import date_ticks, hour_ticks
from btrkeep.decisions.trend import Point
from btrkeep.fs.output_file import whole_file
from btrkeep.units import format_size, size_short

BLUE, SKY, ORANGE, GREEN, RED, PURPLE, INK, GREY = (
    "#0072B2",
    "#56B4E9",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#222222",
    "#777777",
)
JOBS = {"backup": SKY, "expire": ORANGE, "balance": GREEN, "scrub": PURPLE}
_SIZE = (10.0, 6.2)  # inches
_DPI = 120
_GAP = 3.0
"""So many times the usual distance between two points is a gap in the line."""


def trend_figure(points: Sequence[Point], name: str, start: datetime, end: datetime) -> Figure:
    """Draws allocated against used, and the space between. `points`: at least one, oldest first."""
    figure = _figure()
    has_scores = any(point.score is not None for point in points)
    heights = [3.4, 1.2, 1.2] if has_scores else [3.4, 1.4]
    whole, gap, *rest = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    broken = _with_gaps(points)
    times = [_number(moment) for moment, _ in broken]
    _draw_whole(whole, times, [point for _, point in broken], name)
    unused = [_value(point.unused if point else None) for _, point in broken]
    gap.fill_between(times, unused, color=ORANGE, alpha=0.35, linewidth=0)
    _line(gap, times, unused, RED)
    _titled(gap, "Allocated, not used: what balance can give back")
    _scale_of_sizes(gap, max(point.unused for point in points))
    for axes in rest:
        _line(axes, times, [_value(point.score if point else None) for _, point in broken], GREEN)
        axes.set_ylim(0, (max(point.score or 0 for point in points) or 1) * 1.15)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.get_major_locator().set_params(nbins=4)
        _plain(axes)
        _titled(axes, "Score of the free space: the lower, the less of it is in small pieces")
    _dates(whole, start, end, points)
    return figure


def _draw_whole(axes: Axes, times: list[float], points: list[Point | None], name: str) -> None:
    used, allocated, size = (
        [_value(getattr(point, what) if point else None) for point in points] for what in ("used", "allocated", "size")
    )
    axes.fill_between(times, used, color=BLUE, alpha=0.75, linewidth=0, label="used")
    axes.fill_between(times, used, allocated, color=ORANGE, alpha=0.55, linewidth=0, label="allocated, not used")
    _line(axes, times, allocated, RED)
    _line(axes, times, size, INK, linestyle="--", label="size of the devices")
    _scale_of_sizes(axes, max(point.size for point in points if point), room=1.1)
    axes.set_title(f"{name}: allocated and used", loc="left", fontsize=15, color=INK, pad=30)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=11, borderaxespad=0.2, handlelength=1.4)


def _line(axes: Axes, times: list[float], values: list[float], colour: str, **more: Any) -> None:
    """Draws a line; a single point is a dot."""
    axes.plot(times, values, color=colour, linewidth=1.6, marker="o" if len(times) == 1 else "", **more)


def day_figure(day: DayData) -> Figure:
    """Draws what the disks wrote and read over a day, with the jobs above, one line per kind, and as shades behind."""
    figure = _figure()
    kinds = kinds_of(day.phases)
    heights = [0.26 + 0.3 * len(kinds), 2.6, 2.0]
    top, written, read = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    _draw_jobs(top, day, kinds)
    unknown = unknown_spans(day.slots)
    for axes, what, colour, words in (
        (written, "written", RED, "Written to the disks"),
        (read, "read", BLUE, "Read from the disks"),
    ):
        rates = [_value(getattr(slot, what)) for slot in day.slots]
        edges = [*(slot.start for slot in day.slots), day.end]
        axes.stairs(rates, [_number(edge) for edge in edges], color=colour, fill=True, linewidth=0, zorder=2)
        for phase in day.phases:
            axes.axvspan(
                _number(phase.start), _number(phase.end), color=JOBS.get(phase.kind, GREY), alpha=0.16, linewidth=0, zorder=0
            )
        for begin, end in unknown:
            axes.axvspan(_number(begin), _number(end), facecolor="none", edgecolor="#c8c8c8", hatch="///", linewidth=0, zorder=1)
        _titled(axes, words + (" (hatched: no samples)" if unknown else ""))
        _scale_of_sizes(axes, max((getattr(slot, what) or 0 for slot in day.slots), default=0), suffix="/s")
    _ticks(read, hour_ticks(day.start, day.end, day.zone))
    read.set_xlim(_number(day.start), _number(day.end))
    read.set_xlabel(f"{_span(day)}, {day.zone.key}", fontsize=11, color=INK)
    figure.text(0.012, 0.006, _day_words(day), fontsize=10.5, color=INK, va="bottom")
    figure.get_layout_engine().set(rect=(0, 0.045, 1, 0.955))  # type: ignore[union-attr, call-arg]
    return figure


def _draw_jobs(axes: Axes, day: DayData, kinds: list[str]) -> None:
    for row, kind in enumerate(reversed(kinds)):
        spans = [(_number(phase.start), _number(phase.end) - _number(phase.start)) for phase in day.phases if phase.kind == kind]
        axes.broken_barh(spans, (row - 0.33, 0.66), color=JOBS.get(kind, GREY))
    axes.set_yticks(range(len(kinds)), list(reversed(kinds)), fontsize=11)
    axes.set_ylim(-0.6, len(kinds) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{day.name}: the disks, and what ran", loc="left", fontsize=15, color=INK, pad=8)


def _day_words(day: DayData) -> str:
    """Formats what was written, and for which purpose."""
    whole = day.sums[0]
    words = (
        f"{format_size(whole.written)} written, {format_size(whole.data)} of it data"
        if whole.data
        else f"{format_size(whole.written)} written"
    )
    ratios = [f"{one.kind or 'all day'} {one.ratio:.1f}" for one in day.sums if one.ratio is not None]
    return words + (f".   Metadata written for each byte of data:  {',  '.join(ratios)}" if ratios else "")


def _span(day: DayData) -> str:
    first, last = day.start.astimezone(day.zone), (day.end - timedelta(seconds=1)).astimezone(day.zone)
    if first.date() == last.date():
        return f"{first:%A}, {first.day} {first:%B %Y}"
    return f"{first.day} {first:%B %Y} {first:%H:%M} to {last.day} {last:%B %Y} {day.end.astimezone(day.zone):%H:%M}"


def save(figure: Figure, path: Path) -> None:
    """A PNG at `path`: whole, or not at all. Raises OperatorError."""
    with whole_file(str(path)) as file:
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})


def _figure() -> Figure:
    figure = Figure(figsize=_SIZE, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.03)  # type: ignore[union-attr, call-arg]
    return figure


def _titled(axes: Axes, words: str) -> None:
    axes.set_title(words, loc="left", fontsize=12, color=INK, pad=6)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=11)


def _scale_of_sizes(axes: Axes, most: float, *, room: float = 1.15, suffix: str = "") -> None:
    """Returns a scale from zero, with three to six numbers that are round in a binary unit."""
    _plain(axes)
    top = max(most, 1) * room
    power = 1024 ** min(int(len(bin(int(top))) - 3) // 10, 5)
    parts = 4 if axes.get_position().height < 0.2 else 5
    rough = top / power / parts
    step = next((nice for nice in _nice_steps() if nice >= rough), rough) * power
    axes.set_yticks([step * number for number in range(int(top / step) + 1)])
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size_short(round(value)) + suffix if value else "0"))


def _nice_steps() -> list[float]:
    return [nice * 10.0**power for power in range(-2, 4) for nice in (1, 2, 2.5, 5)]


def _dates(axes: Axes, start: datetime, end: datetime, points: Sequence[Point]) -> None:
    """Starts the time axis at the first point, because a mostly empty axis hides the data."""
    first = points[0].taken
    begin = max(start, first - max((end - first) / 50, timedelta(minutes=5)))
    _ticks(axes, date_ticks(begin, end))
    axes.set_xlim(_number(begin), _number(end))


def _ticks(axes: Axes, named: Sequence[tuple[datetime, str]]) -> None:
    axes.set_xticks([_number(moment) for moment, _ in named], [words for _, words in named])


def _number(moment: datetime) -> float:
    """Returns the time as these axes count it: days."""
    return moment.timestamp() / 86400


def _value(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _with_gaps(points: Sequence[Point]) -> list[tuple[datetime, Point | None]]:
    """With a None where no samples were taken, so that no line is drawn through."""
    steps = sorted(after.taken - before.taken for before, after in pairwise(points))
    usual = steps[len(steps) // 2] if steps else timedelta(0)
    found: list[tuple[datetime, Point | None]] = []
    for before, point in zip([None, *points], points, strict=False):
        if before and point.taken - before.taken > usual * _GAP:
            found.append((before.taken + usual, None))
        found.append((point.taken, point))
    return found
