"""`btrfs-heatmap draw`: a picture of a recorded state, without the filesystem."""

from pathlib import Path
from typing import Any

import click

from btrkeep.cli.arguments import GivenPath
from heatmap.cli.picture import command as picture
from heatmap.cli.picture import picture_request

_SHARED = ("order", "size", "sort", "curve", "output", "verbose", "quiet", "colour", "device", "form", "legend", "map", "show")
_HELP = """Draw a recorded state of a filesystem.

FILE is what btrfs-heatmap --record wrote; nothing else is read. The options are those of a picture, and without -o its automatic
name is that of a picture that was made then.

--colour score needs a state with scores, which --record always has. --colour age goes by generations where the state has them
(recorded with --colour age), else by the order of virtual addresses; --legend says which.

\b
Examples:
  btrfs-heatmap draw fsid_..._at_1795219200.heatmap --colour score --legend -o then.png
  btrfs-heatmap draw monday.heatmap --show
"""


def _draw(path: Path, **options: Any) -> None:
    from heatmap.cli.drawing import draw_state
    from heatmap.recorded import load

    draw_state(picture_request(path, options), load(path))


command = click.Command(
    "draw",
    callback=_draw,
    help=_HELP,
    params=[
        click.Argument(["path"], metavar="FILE", type=GivenPath(path_type=Path)),
        *(param for param in picture.params if param.name in _SHARED),
    ],
)
