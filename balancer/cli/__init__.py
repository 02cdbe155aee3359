"""The command line of btrfs-balancer: here every error becomes one line, a hint and an exit status."""

import gc
import os
import sys

import click

from btrkeep.cli import CONTEXT_SETTINGS, run_command_line, version_words
from btrkeep.cli.lazy import LazyCommand, LazyGroup, completion_command

NAME = "btrfs-balancer"
COMMANDS = {
    "score": LazyCommand("balancer.cli.score", "show how fragmented the free space of each block group is"),
    "plan": LazyCommand("balancer.cli.run:plan_command", "show what would be balanced, in which order and at which cost"),
    "run": LazyCommand("balancer.cli.run:run_command", "balance the block groups that are worth it, one at a time"),
    "history": LazyCommand("balancer.cli.history", "show the scores and balances of past months"),
    "completion": LazyCommand("balancer.cli:completion", "make a shell complete commands, options and mount points"),
}
completion = completion_command(NAME, "commands, options and mount points")


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    context_settings=CONTEXT_SETTINGS,
)
@click.version_option(version_words(), prog_name=NAME)
def group() -> None:
    """Show how fragmented the free space of a mounted btrfs is, and balance the block groups that are worth it.

    Works on any btrfs, and needs no configuration. Reading its trees needs root. Only `run` changes anything: it moves data to
    another place on the same filesystem.

    To begin: `btrfs-balancer score /` shows the worst block groups and judges them all, `btrfs-balancer plan /` shows the cost
    of balancing them.

    Exit status: 0 all is well, 1 a problem was found, 2 wrong usage, 3 another balance uses the filesystem, 4 not a btrfs or
    cannot be read, 130 interrupted, 143 terminated. `man btrfs-balancer` has the details.
    """


def main() -> None:
    """The entry point of `btrfs-balancer`."""
    gc.set_threshold(1_000_000, 10, 10)  # repeated garbage collection takes a tenth of a command's time
    # NumPy's linear algebra would start a thread for each processor, which spins for longer than a scan takes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run_command_line(group, NAME))
