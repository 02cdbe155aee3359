"""`backupd completion`: what makes a shell complete our commands, options and hosts on TAB."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL (bash, zsh or fish) complete commands, options and hosts.

    For bash, in ~/.bashrc: eval "$(backupd completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    if shell == "bash":  # which takes HOST@BACKUP for two words otherwise
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}")
    click.echo(found(ctx.find_root().command, {}, "backupd", "_BACKUPD_COMPLETE").source())
