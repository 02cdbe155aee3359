"""The command line of btrkeep-web: here every error becomes one line, a hint and an exit status."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from btrkeep.cli import CONTEXT_SETTINGS, run_command_line, version_words
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.lazy import LazyCommand, LazyGroup, completion_command
from btrkeep.cli.output import print_commands_as
from btrkeep.process.progress import exit_on_sigterm
from web.dashboard_settings import GlobalOptions

NAME = "btrkeep-web"
COMMANDS = {
    "serve": LazyCommand("web.cli.serve", "serve the dashboard; the default command"),
    "user": LazyCommand("web.cli.user:user_command", "manage users, their roles and the hosts that they see"),
    "token": LazyCommand("web.cli.user:token_command", "manage tokens for scripts"),
    "logins": LazyCommand("web.cli.logins", "run the login service, which checks passwords and sessions"),
    "completion": LazyCommand("web.cli:completion", "print the completion script of a shell"),
}
completion = completion_command(NAME, "commands and options")

PATH = GivenPath(path_type=Path)


@click.group(
    NAME,
    cls=LazyGroup,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings=CONTEXT_SETTINGS,
)
@click.version_option(version_words(), prog_name=NAME)
@click.option("--pool", default="main", show_default=True, metavar="NAME", help="The pool to show.")
@click.option("--state", type=PATH, metavar="DIR", help="The folder with the pool's catalogue.  [default: `state` in [pool]]")
@click.option("--data", type=PATH, metavar="DIR", help="The dashboard's data folder.  [default: /var/lib/btrkeep-web/NAME]")
@click.option(
    "--users",
    type=PATH,
    metavar="DIR",
    help="The folder of users and sessions.  [default: --data, else /var/lib/btrkeep-login/NAME]",
)
@click.option("--socket", type=PATH, metavar="FILE", help="The socket of `backupd serve`.  [default: /run/btrkeep/serve-NAME.sock]")
@click.option(
    "--login",
    type=PATH,
    metavar="FILE",
    help="The socket of `btrkeep-web logins`.  [default: login.sock in --data, else /run/btrkeep/login-NAME.sock]",
)
@click.option("--listen", metavar="ADDRESS:PORT", help="The address to listen on.  [default: `listen` in [web], 127.0.0.1:8765]")
@click.pass_context
def group(ctx: click.Context, /, listen: str | None, **options: Any) -> None:
    """The dashboard of a btrkeep pool.

    It runs without root: it reads the catalogue, and sends requests to `backupd serve` for everything else. To begin,
    run `btrkeep-web user add NAME --role operator` and `systemctl enable --now btrkeep-web@main`. Then open
    http://127.0.0.1:8765 in a browser.
    """
    print_commands_as(NAME, _call(ctx))
    ctx.obj = GlobalOptions(**options)
    if ctx.invoked_subcommand is None:
        from web.cli.serve import serve

        serve(ctx.obj, listen)
    else:
        ctx.meta["listen"] = listen


def _call(ctx: click.Context) -> str:
    """Returns the command line of `btrkeep-web` for the same pool and folders, valid in any folder."""
    words = [NAME]
    for name, value in ctx.params.items():
        if name not in ("version", "listen") and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [f"--{name}", str(value.absolute() if isinstance(value, Path) else value)]
    return shlex.join(words)


def main() -> None:
    """The entry point of `btrkeep-web`."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stderr)
    exit_on_sigterm()
    sys.exit(run_command_line(group, NAME))
