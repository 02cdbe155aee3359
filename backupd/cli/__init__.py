"""The command line of backupd: this package is the edge where errors become one line, a hint and an exit status."""

import gc
import logging
import sys
from importlib import import_module

import click
from click.core import ParameterSource

from btrkeep import __version__
from btrkeep.cli import edge
from btrkeep.errors import UsageError
from btrkeep.units import printable

COMMANDS = {
    "init": "make a pool on a mounted btrfs",
    "check": "look for what is wrong, and say what to do",
    "run": "back up the hosts that are due",
    "status": "how every host is doing",
    "list": "the backups that there are",
    "accept": "let a suspect backup count as complete",
    "hold": "keep a backup whatever the retention says",
    "release": "end the hold of a backup",
    "retention": "what is kept, and why",
    "expire": "delete what the retention no longer keeps",
    "unexpire": "take an expired backup back while its grace lasts",
    "progress": "watch the kernel drop deleted subvolumes",
    "forget": "give up a host: all its backups expire",
    "rename": "give a host's backups another name",
    "log": "past runs, and what rsync said",
    "rebuild": "make the catalogue again from the pool",
    "completion": "make a shell complete commands, options and hosts",
}


class _LazyGroup(click.Group):
    """Imports a command only when it is used: start-up is part of every command's time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click calls it with one
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        gc.disable()  # what is imported stays: to look for garbage in it is a tenth of the time
        command: click.Command = import_module(f"backupd.cli.{name}_").command
        gc.freeze()
        gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else "`backupd --help` lists them"
            raise UsageError(f"there is no command {printable(args[0])}", hint)
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="backupd")
@click.option(
    "--pool", "pool_name", default="main", show_default=True, metavar="NAME", help="The pool, configured in /etc/btrkeep/NAME.toml."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(readable=False),
    metavar="FILE",
    help="The configuration file, instead of a pool's name.",
)
@click.option("-v", "--verbose", count=True, help="Say more; -vv: also every program that is started.")
@click.pass_context
def group(ctx: click.Context, pool_name: str, config_file: str | None, verbose: int) -> None:
    """Back up many hosts with rsync into btrfs snapshots.

    To begin: `backupd init /srv/backup` makes a pool and an example configuration. Name your hosts in it. `backupd check --connect`
    says what is still missing, `backupd run` makes the backups, `backupd status` and `backupd list` show them. They are plain
    folders: copy a file back with cp.

    Exit status: 0 all is well, 1 something needs a look, 2 wrong usage or configuration, 3 a lock is held, 4 the pool is unusable,
    130 interrupted, 143 terminated. `man backupd` has the details.
    """
    if config_file == "":  # an empty variable of a script must not mean the main pool
        raise UsageError("--config names no file", "leave it out for /etc/btrkeep/main.toml")
    if config_file and ctx.get_parameter_source("pool_name") is not ParameterSource.DEFAULT:
        raise UsageError("--pool and --config exclude each other", "a file's name is its pool's")
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    ctx.obj = {"pool": pool_name, "config": config_file}


def main() -> None:
    """The entry point of `backupd`."""
    gc.set_threshold(100_000, 10, 10)  # looking at what was imported and read, again and again, is a tenth of a command's time
    sys.exit(edge(group, "backupd"))
