"""`btrfs-heatmap MOUNTPOINT`: a picture of a filesystem, or of one of its block groups; and `btrfs-heatmap draw`: a picture of a
recorded state, without the filesystem.
"""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from btrkeep.choices import PICTURE_FORMATS
from btrkeep.cli import version_words
from btrkeep.cli.arguments import VADDR, GivenPath, complete_mount
from btrkeep.errors import OperatorError
from heatmap.cli.request import STDOUT, Extras, PictureRequest, colour_option, curve_option, order_option, size_option, sort_option


class _AsTheProgram(click.Context):
    """Drawing is the action without a subcommand, so its usage shows no command name."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else super().command_path


class _Picture(click.Command):
    context_class = _AsTheProgram

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        from heatmap.cli import COMMANDS

        with formatter.section("Commands (a folder of that name is reached as ./NAME)"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command("picture", cls=_Picture)
@click.argument("path", metavar="MOUNTPOINT", type=GivenPath(path_type=Path), shell_complete=complete_mount)
@order_option
@size_option
@sort_option
@click.option("--blockgroup", type=VADDR, metavar="VADDR", help="The extents in the block group at this virtual address.")
@curve_option
@click.option(
    "-o", "--output", metavar="FILE|DIR|-", help="The file or folder for the picture; - is standard output.  [default: ./fsid_...]"
)
@click.option("-v", "--verbose", count=True, help="Print more: a line for each drawn part.")
@click.option("-q", "--quiet", count=True, help="Print less.")
@colour_option
@click.option("--extents", is_flag=True, help="All block groups at extent level, by virtual address.")
@click.option("--device", type=click.IntRange(min=1), multiple=True, metavar="ID", help="Only this device; may be repeated.")
@click.option("--format", "form", type=click.Choice(PICTURE_FORMATS), help="[default: the ending of FILE, or png]")
@click.option("--legend", is_flag=True, help="Add a legend: filesystem, time, numbers, and the meaning of the colours.")
@click.option("--show", is_flag=True, help="Draw into the terminal; a file is written only with -o.")
@click.option("--map", metavar="FILE", help="Write a JSON map of the picture, for a web page.")
@click.option("--record", is_flag=True, help="Record the state beside the picture, to draw it again later.")
@click.option("--record-to", metavar="FILE|DIR", help="Record the state in this file.")
@click.version_option(version_words(), prog_name="btrfs-heatmap")
def command(path: Path, **options: Any) -> None:
    """Draw how full a mounted btrfs is.

    MOUNTPOINT may be any folder or file on the filesystem. Nothing is changed. Reading its trees needs root.

    Each pixel is a piece of the devices, in the order of a curve that keeps neighbours together. Data is white, metadata blue,
    system red, both in one light blue; the brighter, the fuller; unallocated space is black.

    \b
    Examples:
      btrfs-heatmap /srv/backup
      btrfs-heatmap --sort virtual --colour score -o pictures/ /srv/backup
      btrfs-heatmap --blockgroup 13631488 -o - /srv/backup | display -
    """
    from heatmap.cli.drawing import draw

    draw(picture_request(path, options))


def picture_request(path: Path, options: Mapping[str, Any]) -> PictureRequest:
    """Returns the checked request from the options of a command line. Raises OperatorError."""
    output: str | None = options["output"]
    if output == STDOUT and sys.stdout.isatty():
        raise OperatorError("standard output is a terminal, which cannot show a picture", "name a file with -o, or use --show")
    record_to = options.get("record_to")
    request = PictureRequest(
        path=path,
        order=options["order"],
        size=options["size"],
        sort=options["sort"],
        blockgroup=options.get("blockgroup"),
        curve=options["curve"],
        output=output,
        form=options["form"] or ("webp" if output and output.endswith(".webp") else "png"),
        colour=options["colour"],
        device=options["device"],
        extents=options.get("extents", False),
        verbosity=options["verbose"] - options["quiet"],
        extras=Extras(
            options["legend"], options["map"], options.get("record", False) or record_to is not None, record_to, options["show"]
        ),
    )
    _require_compatible(request)
    return request


def _require_compatible(request: PictureRequest) -> None:
    """Raises OperatorError if options exclude each other."""
    if request.blockgroup is not None and request.extents:
        raise OperatorError("--blockgroup and --extents exclude each other", "leave one out: --extents draws all block groups")
    if (request.blockgroup is not None or request.extents) and (request.device or request.colour not in ("usage", "type")):
        raise OperatorError(
            "--device and --colour are for pictures of block groups", "leave out either these, or --blockgroup and --extents"
        )
    if (request.blockgroup is not None or request.extents) and (request.extras.map is not None or request.extras.record):
        raise OperatorError(
            "--map and --record are for pictures of block groups", "leave out either these, or --blockgroup and --extents"
        )
    if [request.output, request.extras.map, request.extras.record_to].count(STDOUT) > 1:
        raise OperatorError("only one file can go to standard output", "give one of them a file name")


_SHARED = ("order", "size", "sort", "curve", "output", "verbose", "quiet", "colour", "device", "form", "legend", "map", "show")


def _draw(path: Path, **options: Any) -> None:
    """Draw a recorded state of a filesystem.

    FILE was written by btrfs-heatmap --record; nothing else is read. The options are those of btrfs-heatmap. Without -o the name
    of the picture has the time of the state.

    --colour score needs a state with scores, which --record always has. --colour age goes by generations where the state has them
    (recorded with --colour age), else by the order of virtual addresses; --legend shows which.

    \b
    Examples:
      btrfs-heatmap draw fsid_..._at_1795219200.heatmap --colour score --legend -o then.png
      btrfs-heatmap draw monday.heatmap --show
    """
    from heatmap.cli.drawing import draw_state
    from heatmap.recorded import load

    draw_state(picture_request(path, options), load(path))


draw_command = click.Command(
    "draw",
    callback=_draw,
    help=inspect.getdoc(_draw),
    params=[
        click.Argument(["path"], metavar="FILE", type=GivenPath(path_type=Path)),
        *(param for param in command.params if param.name in _SHARED),
    ],
)
