"""The command line of btrfs-heatmap: here every error becomes one line, a hint and an exit status.

`btrfs-heatmap MOUNTPOINT` draws; another word is a command only where the mount point is expected. So a folder with the name of a
command is written as ./timelapse.
"""

import gc
import os
import sys

import click
from click.shell_completion import CompletionItem

from btrkeep.cli import CONTEXT_SETTINGS, run_command_line
from btrkeep.cli.lazy import completion_command, import_command
from btrkeep.process.progress import exit_on_sigterm

NAME = "btrfs-heatmap"
PICTURE = "picture"
COMMANDS = {
    "timelapse": "pictures in the order of their time, as an animation",
    "diff": "the changes between two recorded states",
    "draw": "a picture of a recorded state",
    "nightly": "a picture and the state of a pool, for a timer",
    "completion": "make a shell complete commands, options and mount points",
}


completion = completion_command(NAME, "commands, options and mount points")


class _Heatmap(click.Group):
    """Draws, unless the first word is a command. Each command is imported only when it is used, because imports take most of the
    time of a picture.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_command = bool(args) and args[0] in COMMANDS
        if not is_command and (args or not ctx.resilient_parsing):
            args.insert(0, PICTURE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click calls it with one
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name != PICTURE and name not in COMMANDS:
            return None
        if name == completion.name:
            return completion
        return import_command("heatmap.cli.picture:draw_command" if name == "draw" else f"heatmap.cli.{name}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the first word: a command, or the start of a mount point. bash accepts either folder names or this list."""
        picture = self.get_command(ctx, PICTURE)
        assert picture is not None
        if incomplete.startswith("-"):
            return picture.shell_complete(ctx, incomplete)
        [argument] = (param for param in picture.params if isinstance(param, click.Argument))
        paths = argument.shell_complete(ctx, incomplete)
        commands = [CompletionItem(name, help=about) for name, about in COMMANDS.items() if name.startswith(incomplete)]
        return [*commands, *(path for path in paths if path.type == "plain")] or paths


group = _Heatmap(NAME, context_settings=CONTEXT_SETTINGS, add_help_option=False)


def main() -> None:
    """The entry point of `btrfs-heatmap`."""
    # NumPy's OpenBLAS starts a thread for each CPU when it is loaded, and no matrices are multiplied here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 10, 10)
    exit_on_sigterm()  # so that partial files are removed
    sys.exit(run_command_line(group, NAME))
