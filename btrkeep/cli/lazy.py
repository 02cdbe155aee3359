"""A group of commands that imports each only when it is used, because imports are part of every command's time; and
`completion`.
"""

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from btrkeep.errors import UsageError, did_you_mean
from btrkeep.units import printable


def import_command(place: str) -> click.Command:
    """Returns `command` of the module MODULE, or another name of it: MODULE:NAME."""
    gc.disable()  # imported objects stay: garbage collection of them takes a tenth of the time
    module, _, name = place.partition(":")
    command: click.Command = getattr(import_module(module), name or "command")
    gc.freeze()
    gc.enable()
    return command


class LazyCommand(NamedTuple):
    """The module of a command (see `import_command`), and its purpose in a few words."""

    place: str
    help: str


class LazyGroup(click.Group):
    """A group that imports a command only when it is called.

    `hidden_commands`, with their modules, are not listed, because only programs call them.
    """

    def __init__(
        self,
        *words: Any,
        commands: Mapping[str, LazyCommand],
        hidden_commands: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*words, **named)
        self._help_texts = {name: command.help for name, command in commands.items()}
        self._places = {name: command.place for name, command in commands.items()} | dict(hidden_commands or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click calls it with one
        return list(self._help_texts)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in self._places:
            return None
        return import_command(self._places[name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help_texts.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the names of commands without importing these, which click does to show their help."""
        names = [CompletionItem(name, help=text) for name, text in self._help_texts.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._places and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self._help_texts, f"`{ctx.command_path} --help` lists them")
            raise UsageError(f"there is no command {printable(args[0])}", hint)
        return super().resolve_command(ctx, args)


SHELLS = ("bash", "zsh", "fish")
_NO_BLANK = ("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value != *= ]] || compopt -o nospace")
"""bash adds a space after a completed word; after KEY= a value follows."""


def completion_command(program: str, completed: str, bash_first: str = "") -> click.Command:
    """Returns the command of that program. `completed`: what it completes, in words. bash runs the line `bash_first` before the
    script.
    """

    @click.command("completion", help=_help(program, completed))
    @click.argument("shell", type=click.Choice(SHELLS))
    @click.pass_context
    def command(ctx: click.Context, shell: str) -> None:
        completion_class = get_completion_class(shell)
        assert completion_class is not None
        if shell == "bash" and bash_first:
            click.echo(bash_first)
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(completion_class(ctx.find_root().command, {}, program, variable).source().replace(*_NO_BLANK))

    return command


def _help(program: str, completed: str) -> str:
    return f"""Print the script that makes SHELL (bash, zsh or fish) complete {completed}.

    For bash, in ~/.bashrc: eval "$({program} completion bash)"
    """
