"""`btrfs-heatmap timelapse`: makes an animation of pictures and recorded states in the order of their time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.output import ProgressLine
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, local_minute, printable
from heatmap.cli.request import colour_option, sort_option

if TYPE_CHECKING:
    from heatmap.timelapse import TimelapseSummary


@click.command("timelapse")
@click.argument("folder", metavar="FOLDER", type=GivenPath(path_type=Path))
@click.option("-o", "--output", metavar="FILE", required=True, type=GivenPath(path_type=Path), help="A .gif, a .webp or an .mp4.")
@click.option("--fps", type=click.FloatRange(0.1, 50), default=10.0, show_default=True, help="Frames per second.")
@click.option("--size", type=click.IntRange(6, 13), help="2^SIZE pixels wide.  [default: as the widest picture; 10 for states]")
@colour_option
@sort_option
@click.option("--no-dates", is_flag=True, help="Omit the date below each frame.")
@click.option("-q", "--quiet", count=True, help="Print nothing on success.")
def command(folder: Path, output: Path, colour: str, no_dates: bool, quiet: int, **options: Any) -> None:
    """Make an animation of the pictures and recorded states in FOLDER.

    Recorded states (btrfs-heatmap --record) are drawn again, with --colour and --sort, all to the scale of the largest, so that
    a growing filesystem keeps its position. Pictures are shown unchanged, as wide as the others. If there is a picture and its
    recorded state, the state is shown.

    A state contains its time. The time of a picture is in its automatic name (..._at_EPOCH.png), or else the file's
    modification time.

    mp4 is made by ffmpeg, if that is installed.

    \b
    Examples:
      btrfs-heatmap timelapse /var/lib/heatmaps -o year.gif
      btrfs-heatmap timelapse /var/lib/heatmaps -o year.mp4 --fps 25 --colour score --sort virtual
    """
    from heatmap.colourings import COLOUR_SCHEMES
    from heatmap.timelapse import timelapse

    with ProgressLine() as line:
        made = timelapse(
            folder,
            output,
            COLOUR_SCHEMES[colour],
            dated=not no_dates,
            progress=lambda done, count: line.go_on(lambda: f"drawing frames: {done / count:4.0%}"),
            **options,
        )
    for reason in made.skipped_states:
        click.echo(printable(f"skipped: {reason}"), err=True)
    if not quiet:
        period = f"{local_minute(made.first)} to {local_minute(made.last)}"
        click.echo(f"{counted(made.frames, 'frame')}, {period}, {_file(made, output)}")


def _file(made: "TimelapseSummary", output: Path) -> str:
    try:
        size = output.stat().st_size
    except OSError as error:
        raise OperatorError(f"{output} no longer exists: {error.strerror}") from None
    return f"{made.width} x {made.height} pixels, {format_size(size)}: {printable(str(output))}"
