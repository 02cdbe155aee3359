"""`btrfs-heatmap completion`: what makes a shell complete our commands, options and mount points on TAB."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL (bash, zsh or fish) complete commands, options and mount points.

    For bash, in ~/.bashrc: eval "$(btrfs-heatmap completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "btrfs-heatmap", "_BTRFS_HEATMAP_COMPLETE").source())
