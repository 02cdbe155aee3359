"""`backupd trend`: shows allocated and used space over months, as a chart as wide as the terminal, and a summary."""

import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.command_context import opened, pass_context
from backupd.observe.chart import ASCII, BLOCKS, ChartCharacters, axis_for, filled, labelled, under
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.output import print_wrapped, text_width
from btrkeep.decisions.trend import (
    MOST_POINTS,
    YEAR,
    FullForecast,
    Point,
    forecasts,
    point_of,
    points,
    step_for,
    time_ticks,
    year_before,
)
from btrkeep.errors import Exit
from btrkeep.units import format_share, format_size, in_zone, local_day, printable

if TYPE_CHECKING:
    from backupd.repo.pool_context import PoolContext


_OTHER_FORMATS = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"))


def _named_svg(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuses a name with the ending of another format."""
    if path and path.suffix.lower() in _OTHER_FORMATS:
        raise click.BadParameter(f"the picture is written as SVG: name it {printable(path.with_suffix('.svg').name)}")
    return path


svg_option = click.option(
    "--svg",
    type=GivenPath(path_type=Path, dir_okay=False),
    callback=_named_svg,
    metavar="FILE",
    help="Write a picture, as SVG, instead of text.",
)


@click.command("trend")
@click.option("--days", type=click.IntRange(1, 36500), default=180, show_default=True, metavar="N", help="How many days back.")
@svg_option
@json_option
@pass_context
def command(ctx: click.Context, days: int, svg: Path | None, as_json: bool) -> int:
    """Show allocated and used space over months.

    A balance can free space that is allocated but not used; when the allocated space reaches the size of the devices, nothing more
    can be allocated. Sizes are raw bytes of the devices: with raid1 or dup everything counts twice.
    """
    with opened(ctx) as context:
        until = context.clock.now()
        trend_points = _points(context, until - timedelta(days=days), until, days)
        name = str(context.pool.path)
        picture = _picture(context, until - timedelta(days=days), until, trend_points) if svg and trend_points else b""
    if svg and picture:
        from backupd.observe.graph_pictures import save

        save(picture, svg)

    def show() -> None:
        if not trend_points:
            print_wrapped(_how_to_begin(days))
        elif not svg:
            click.echo("\n".join(lines(trend_points, printable(name))))

    print_answer(
        {"since": until - timedelta(days=days), "points": [_fields(point) for point in trend_points]}, show, as_json=as_json
    )
    return Exit.OK if trend_points or as_json or not svg else Exit.ATTENTION


def _points(context: "PoolContext", since: datetime, until: datetime, days: int) -> list[Point]:
    samples = context.catalogue.samples(context.pool.filesystem, since, until + timedelta(seconds=1))
    if len(samples) <= MOST_POINTS:  # so even the first three, five minutes apart, give a chart
        return [point_of(sample) for sample in samples]
    return points(samples, since, step_for(timedelta(days=days)))


def _picture(context: "PoolContext", since: datetime, until: datetime, trend_points: Sequence[Point]) -> bytes:
    """Draws the points with the limit, the level of a year before, and the forecast."""
    from backupd.observe.graph_pictures import TrendData, trend_picture
    from btrkeep.charts.trend import TrendContext

    of, config = context.pool.filesystem, context.config
    day, half_a_year = timedelta(days=1), until - timedelta(days=180)
    old = context.catalogue.samples(of, since - YEAR - day, until - YEAR)
    daily = points(context.catalogue.samples(of, half_a_year, until + timedelta(seconds=1)), half_a_year, day)
    used = forecasts(daily)[1]
    around = TrendContext(
        config.notify.used_limit,
        year_before(old, [point.taken for point in trend_points]),
        used if isinstance(used, FullForecast) else None,
    )
    return trend_picture(TrendData(printable(str(context.pool.path)), since, until, config.pool.zone, trend_points, around))


def _fields(point: Point) -> dict[str, Any]:
    return {
        "taken": point.taken,
        "size": point.size,
        "allocated": point.allocated,
        "used": point.used,
        "unallocated": point.unallocated,
        "metadata_share": round(point.metadata_share, 4),
        "orphans": point.orphans,
        "score": round(point.score, 3) if point.score is not None else None,
    }


def _how_to_begin(days: int) -> str:
    return (
        f"There are no samples of the last {days} days. `backupd sample` takes one sample. To take a sample every five minutes, "
        "run `systemctl enable --now btrkeep-sample@POOL.timer`, or add `backupd sample` to cron."
    )


_HEIGHT = 12
_SCALE = 9  # columns of "12.3 TiB"
_WIDEST = 120
_EVERY = 4


def width() -> int:
    """Returns the columns to fill."""
    return min(text_width(), _WIDEST)


def chart_characters() -> ChartCharacters:
    """Block characters, if the locale has them."""
    try:
        "█░▁━".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return BLOCKS


def lines(trend_points: Sequence[Point], name: str) -> list[str]:
    """Returns the whole text, oldest on the left."""
    if len(trend_points) == 1:
        return [
            *textwrap.wrap(f"{name}: there is one sample so far.", width()),
            *textwrap.wrap(_now(trend_points[0]), min(width(), 100)),
        ]
    room, drawn = max(width() - _SCALE - 2, 10), chart_characters()
    columns = _columns(trend_points, room)
    axis = axis_for([point.used for point in trend_points], [point.allocated for point in trend_points])
    chart = filled([(point.used, point.allocated) if point else None for point in columns], axis, _HEIGHT, drawn)
    key = f"{drawn.used} used   {drawn.unused} allocated, not used"
    return [
        *textwrap.wrap(f"{name}: allocated and used, in bytes of the devices", width()),
        key + ("   (the scale begins above zero)" if axis.least and width() >= len(key) + 34 else ""),
        "",
        *labelled(chart, axis, _EVERY, _SCALE),
        " " * (_SCALE + 1) + under(_dates(trend_points[0].taken, trend_points[-1].taken, room), room),
        "",
        *textwrap.wrap(_change(trend_points[0], trend_points[-1]), min(width(), 100)),
        *textwrap.wrap(_now(trend_points[-1]), min(width(), 100)),
    ]


def _columns(trend_points: Sequence[Point], room: int) -> list[Point | None]:
    """Returns for each column the nearest earlier point, None in a gap of more than three steps."""
    first, last = trend_points[0].taken, trend_points[-1].taken
    step = (last - first) / room
    gap = max(sorted(b.taken - a.taken for a, b in pairwise(trend_points))[len(trend_points) // 2] * 3, step * 1.01)
    columns: list[Point | None] = []
    at = 0
    for column in range(room):
        moment = first + step * (column + 1)
        while at + 1 < len(trend_points) and trend_points[at + 1].taken <= moment:
            at += 1
        columns.append(trend_points[at] if moment - trend_points[at].taken <= gap else None)
    return columns


def _dates(first: datetime, last: datetime, room: int) -> list[tuple[int, str]]:
    """Columns and names."""
    return [(int((moment - first) / (last - first) * room), words) for moment, words in time_ticks(in_zone(first), in_zone(last))]


def _change(first: Point, last: Point) -> str:
    return (
        f"From {local_day(first.taken)} to {local_day(last.taken)}, allocated space went from {format_size(first.allocated)} to "
        f"{format_size(last.allocated)}, used space from {format_size(first.used)} to {format_size(last.used)}, and allocated but "
        f"unused space from {format_size(first.unused)} to {format_size(last.unused)}."
    )


def _now(last: Point) -> str:
    score = f" Score of the free space: {last.score:,.0f}." if last.score is not None else ""
    return (
        f"{format_size(last.unallocated)} of {format_size(last.size)} "
        f"({format_share(last.unallocated / last.size if last.size else 0)}) are unallocated; "
        f"{format_share(last.metadata_share)} of the used space is metadata.{score}"
    )
