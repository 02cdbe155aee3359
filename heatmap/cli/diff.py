"""`btrfs-heatmap diff`: which block groups filled, emptied, appeared, disappeared and moved between two states of a filesystem."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrkeep.cli import echo_json
from btrkeep.cli.arguments import GivenPath, show_times_of_pool_on
from btrkeep.errors import OperatorError
from btrkeep.units import local_time
from heatmap.cli.request import curve_option, order_option, size_option, sort_option

if TYPE_CHECKING:
    from heatmap.filesystem_state import FilesystemState


@click.command("diff")
@click.argument("before", metavar="A", type=GivenPath(path_type=Path))
@click.argument("after", metavar="B", type=GivenPath(path_type=Path))
@click.option("-o", "--output", metavar="FILE", help="Also draw the changes into this file: png, or webp by its ending.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="List the N block groups that changed most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all changes as JSON, for programs.")
@click.option("--legend", is_flag=True, help="Add a legend: the meaning of the colours, and the time.")
@order_option
@size_option
@sort_option
@curve_option
def command(before: Path, after: Path, output: str | None, top: int, as_json: bool, legend: bool, **drawing: Any) -> None:
    """Show what changed between two recorded states, A and then B.

    Each is a file that btrfs-heatmap --record wrote, or a mount point, whose current state is read.

    \b
    fuller    block groups with more used bytes, and how many more
    emptier   block groups with fewer used bytes
    new, gone block groups in only one of the states; balance makes both
    moved     device extents at another position, of block groups in both

    \b
    Examples:
      btrfs-heatmap diff monday.heatmap tuesday.heatmap
      btrfs-heatmap diff yesterday.heatmap /srv/backup -o changes.png --legend
    """
    from heatmap.diff import as_json as in_json
    from heatmap.diff import difference, lines

    filesystem_state, two = _state(before), _state(after)
    show_times_of_pool_on(two.fsid)
    state_difference = difference(filesystem_state, two)
    if output is not None:
        _draw(filesystem_state, two, output, legend, **drawing)
    if as_json:
        echo_json(in_json(state_difference))
    elif output != "-":
        click.echo("\n".join(lines(state_difference, top)))


def _state(path: Path) -> "FilesystemState":
    if not path.is_dir():
        from heatmap.recorded import load

        return load(path)
    from btrkeep.pool.mounts import open_btrfs
    from heatmap.state_reader import read_state

    with open_btrfs(path, OperatorError) as fd:
        return read_state(fd)


def _draw(before: "FilesystemState", after: "FilesystemState", output: str, legend: bool, **drawing: Any) -> None:
    from PIL import Image

    from heatmap.diff_picture import image_of, key, picture
    from heatmap.legend import add_below, band, pixel_words, title
    from heatmap.picture import save

    if Path(output).is_dir():
        raise OperatorError(f"{output} is a folder", "name a file in it")
    rgb, grid = picture(before, after, **drawing)
    image: Image.Image = image_of(rgb, grid)
    if legend:
        lines = [title(after), f"changes since {local_time(before.taken)}", pixel_words(grid, drawing["sort"])]
        image = add_below(image, band(lines, key(), image.width))
    save(image, output, "webp" if output.endswith(".webp") else "png")
