"""The command `completion` that each program has: what makes a shell complete on TAB."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
_NO_BLANK = ("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value != *= ]] || compopt -o nospace")
"""bash puts a blank behind what it has completed; behind KEY= a value follows."""


def completion_command(program: str, what: str, bash_first: str = "") -> click.Command:
    """The command of that program; `what` it completes, in words. bash runs the line `bash_first` before the script."""

    @click.command("completion", help=_help(program, what))
    @click.argument("shell", type=click.Choice(SHELLS))
    @click.pass_context
    def command(ctx: click.Context, shell: str) -> None:
        found = get_completion_class(shell)
        assert found is not None
        if shell == "bash" and bash_first:
            click.echo(bash_first)
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(found(ctx.find_root().command, {}, program, variable).source().replace(*_NO_BLANK))

    return command


def _help(program: str, what: str) -> str:
    return f"""Print the script that makes SHELL (bash, zsh or fish) complete {what}.

    For bash, in ~/.bashrc: eval "$({program} completion bash)"
    """
