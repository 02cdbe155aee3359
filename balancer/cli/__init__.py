"""The command line of btrfs-balancer: this package is the edge where errors become one line, a hint and an exit status."""

import gc
import sys

import click

from btrkeep import __version__
from btrkeep.cli import edge
from btrkeep.cli.lazy import LazyGroup

NAME = "btrfs-balancer"
COMMANDS = {
    "score": "how fragmented the free space is, block group by block group",
    "completion": "make a shell complete commands, options and mount points",
}


@click.group(
    cls=LazyGroup,
    package="balancer.cli",
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=NAME)
def group() -> None:
    """Look at how the free space of a mounted btrfs is fragmented.

    Works on any btrfs, and needs no configuration. Reading its trees needs root.

    To begin: `btrfs-balancer score /` shows the worst block groups and says what they come to.

    Exit status: 0 all is well, 1 something needs a look, 2 wrong usage, 4 it is no btrfs or cannot be read, 130 interrupted, 143
    terminated. `man btrfs-balancer` has the details.
    """


def main() -> None:
    """The entry point of `btrfs-balancer`."""
    gc.set_threshold(100_000, 10, 10)  # looking at what was imported and read, again and again, is a tenth of a command's time
    sys.exit(edge(group, NAME))
