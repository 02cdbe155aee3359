"""`btrkeep-web completion`: what makes a shell complete our commands and options on TAB."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL (bash, zsh or fish) complete commands and options.

    For bash, in ~/.bashrc: eval "$(btrkeep-web completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "btrkeep-web", "_BTRKEEP_WEB_COMPLETE").source())
