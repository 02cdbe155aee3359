"""`backupd trend`: how allocated and used went over months."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.context import opened, pass_context
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.given_path import GivenPath
from btrkeep.cli.progress import prose
from btrkeep.decisions.trend import MOST_POINTS, Point, point_of, points, step_for
from btrkeep.errors import Exit
from btrkeep.units import format_time, printable

if TYPE_CHECKING:
    from backupd.repo.context import PoolContext

_OTHER_FORMATS = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"))


def _named_svg(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuses a name that promises another format."""
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
        found = _points(context, until - timedelta(days=days), until, days)
        name, zone = str(context.pool.path), context.config.pool.zone
    if svg and found:
        from backupd.sampling.picture import save, trend_picture
        from backupd.sampling.picture_data import TrendData

        save(trend_picture(TrendData(printable(name), until - timedelta(days=days), until, zone, found)), svg)
    if as_json:
        echo_json({"since": format_time(until - timedelta(days=days)), "points": [_as_json(point) for point in found]})
    elif not found:
        prose(_how_to_begin(days))
    elif not svg:
        from backupd.sampling.cli.trend_view import lines

        click.echo("\n".join(lines(found, printable(name))))
    return Exit.OK if found or as_json or not svg else Exit.ATTENTION


def _points(context: "PoolContext", since: datetime, until: datetime, days: int) -> list[Point]:
    samples = context.catalogue.samples(context.pool.filesystem, since, until + timedelta(seconds=1))
    if len(samples) <= MOST_POINTS:  # so also the first three, five minutes apart, are a chart
        return [point_of(sample) for sample in samples]
    return points(samples, since, step_for(timedelta(days=days)))


def _as_json(point: Point) -> dict[str, Any]:
    return {
        "taken": format_time(point.taken),
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
        f"There are no samples of the last {days} days. `backupd sample` takes one; the timer btrkeep-sample@POOL.timer, or a line "
        "of cron, does so every five minutes."
    )
