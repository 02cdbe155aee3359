"""The command line of backupd: here each error becomes one line, a hint and an exit status.

The commands are in the folders of their features; this package has what they share.
"""

import gc
import logging
import shlex
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from btrkeep.cli import CONTEXT_SETTINGS, run_command_line, version_words
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.lazy import LazyCommand, LazyGroup, completion_command
from btrkeep.cli.output import print_commands_as
from btrkeep.errors import UsageError

COMMANDS = {
    "setup": LazyCommand("backupd.hosts.cli.setup", "set up a pool and a first host, up to the first backup"),
    "init": LazyCommand("backupd.hosts.cli.setup_pool", "create a pool on a mounted btrfs"),
    "host": LazyCommand("backupd.hosts.cli.host", "add, change, remove, list and test hosts"),
    "proposals": LazyCommand("backupd.proposals.cli.proposals:proposals_command", "list the proposed changes of the configuration"),
    "apply": LazyCommand("backupd.proposals.cli.proposals:apply_command", "apply a proposed change"),
    "reject": LazyCommand("backupd.proposals.cli.proposals:reject_command", "reject a proposed change"),
    "check": LazyCommand("backupd.doctor.cli.check", "check configuration, pool and hosts, and show what to do"),
    "doctor": LazyCommand("backupd.doctor.cli.doctor", "find problems of the filesystem, and how to fix them"),
    "run": LazyCommand("backupd.run.cli.run", "back up the hosts that are due"),
    "status": LazyCommand("backupd.health.cli.status", "show the state of every host"),
    "list": LazyCommand("backupd.health.cli.list", "list the backups"),
    "browse": LazyCommand("backupd.files.cli.browse", "list the files of a backup"),
    "versions": LazyCommand("backupd.files.cli.versions", "list every version of a file or folder, over all backups"),
    "compare": LazyCommand("backupd.files.cli.compare", "show the differences between two backups"),
    "restore": LazyCommand("backupd.files.cli.restore", "restore files to a folder, to the host, or as a tar"),
    "drill": LazyCommand("backupd.drill.cli", "prove that a backup can be restored"),
    "usage": LazyCommand("backupd.observe.cli.usage", "show the space used, by host and by backup"),
    "dedupe": LazyCommand("backupd.dedupe.cli", "make equal files of backups share their data"),
    "quota": LazyCommand("backupd.actions.cli.quota", "show and limit the space of each host, with simple quotas"),
    "accept": LazyCommand("backupd.actions.cli.hold:accept_command", "let a suspect backup count as complete"),
    "hold": LazyCommand("backupd.actions.cli.hold:hold_command", "keep a backup regardless of the retention"),
    "release": LazyCommand("backupd.actions.cli.hold:release_command", "end the hold of a backup"),
    "retention": LazyCommand("backupd.expire.cli.retention", "show what is kept, and why"),
    "expire": LazyCommand("backupd.expire.cli.expire", "delete what the retention no longer keeps"),
    "delete": LazyCommand("backupd.actions.cli.delete", "delete backups by name, after the usual grace or at once"),
    "discard": LazyCommand("backupd.actions.cli.discard", "delete the unfinished backup of a host"),
    "unexpire": LazyCommand("backupd.actions.cli.hold:unexpire_command", "keep an expired backup again, during its grace"),
    "import": LazyCommand("backupd.run.importing.cli.import_", "import the backups of another program"),
    "replicate": LazyCommand("backupd.replicate.cli.replicate", "fetch the backups of another pool, or send them there"),
    "promote": LazyCommand("backupd.replicate.cli.promote:promote_command", "take over hosts that were fetched from another pool"),
    "demote": LazyCommand(
        "backupd.replicate.cli.promote:demote_command", "fetch hosts from another pool instead of backing them up"
    ),
    "offsite": LazyCommand("backupd.offsite.cli", "send the newest backups to a repository of restic"),
    "progress": LazyCommand("backupd.expire.cli.progress", "watch the kernel drop deleted subvolumes"),
    "sample": LazyCommand("backupd.observe.cli.sample", "record the state of the pool, for a timer"),
    "trend": LazyCommand("backupd.observe.cli.trend", "show allocated and used space over months"),
    "day": LazyCommand("backupd.observe.cli.day", "show the disk activity of a day, and which job ran"),
    "forecast": LazyCommand("backupd.observe.cli.forecast", "estimate when the pool will be full"),
    "rehearse": LazyCommand("backupd.rehearse.cli.rehearse", "try settings on a throwaway pool, and compare them"),
    "forget": LazyCommand("backupd.actions.cli.forget", "let all backups of a host expire"),
    "rename": LazyCommand("backupd.actions.cli.rename", "rename a host's backups"),
    "scrub": LazyCommand("backupd.proof.cli.scrub", "read everything on the pool, and repair what can be repaired"),
    "verify": LazyCommand("backupd.proof.cli.verify", "read the files of backups, and compare them with their checksums"),
    "damaged": LazyCommand("backupd.proof.cli.damaged", "list the damaged files, and the backups that have them"),
    "repair": LazyCommand("backupd.repair.cli", "make repaired copies of damaged backups"),
    "log": LazyCommand("backupd.health.cli.log", "show past runs, and rsync's messages"),
    "notify": LazyCommand("backupd.alarms.cli", "send notifications of new alarms and failures"),
    "silence": LazyCommand("backupd.alarms.cli:silence_command", "send no notifications about a host until a date"),
    "metrics": LazyCommand("backupd.observe.cli.metrics", "print metrics of the pool and its hosts, for Prometheus"),
    "serve": LazyCommand("backupd.serve.cli.serve", "do the privileged work of the dashboard"),
    "rebuild": LazyCommand("backupd.actions.cli.rebuild", "rebuild the catalogue from the pool"),
    "completion": LazyCommand("backupd.cli:completion", "print the script for completion in a shell"),
}

HIDDEN = {
    "run-job": "backupd.serve.cli.run_job",
    "answer": "backupd.run.cli.called",
    "send-only": "backupd.replicate.cli.send_only",
    "receive-only": "backupd.replicate.cli.replicate:receive_only_command",
}
"""Commands for units and for forced commands of ssh, not for people."""

# Otherwise bash splits HOST@BACKUP into two words.
completion = completion_command(
    "backupd", "commands, options, hosts and files of backups", bash_first="COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}"
)


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    hidden_commands=HIDDEN,
    context_settings=CONTEXT_SETTINGS,
)
@click.version_option(version_words(), prog_name="backupd")
@click.option(
    "--pool", "pool_name", default="main", show_default=True, metavar="NAME", help="The pool, configured in /etc/btrkeep/NAME.toml."
)
@click.option(
    "--config",
    "config_file",
    type=GivenPath(readable=False),
    metavar="FILE",
    help="The configuration file, instead of a pool's name.",
)
@click.option("-v", "--verbose", count=True, help="Print more; -vv: also every program that is started.")
@click.pass_context
def group(ctx: click.Context, pool_name: str, config_file: str | None, verbose: int) -> None:
    """Back up many hosts with rsync into btrfs snapshots.

    To begin: `backupd setup` asks for a pool and a first host, and leads to the first backup. `backupd host add` adds more hosts,
    `backupd check --connect` shows what is still missing, `backupd run` makes the backups, `backupd status` and `backupd list` show
    them. They are plain folders: copy a file back with cp.

    Exit status: 0 all is well, 1 a problem was found, 2 wrong usage or configuration, 3 a lock is held, 4 the pool is unusable,
    130 interrupted, 143 terminated. `man backupd` has the details.
    """
    if config_file == "":  # an empty shell variable must not mean the main pool
        raise UsageError("--config is empty", "leave it out for /etc/btrkeep/main.toml")
    if config_file and ctx.get_parameter_source("pool_name") is not ParameterSource.DEFAULT:
        raise UsageError("--pool and --config exclude each other", "give only one: a configuration file has the name of its pool")
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    print_commands_as("backupd", _call(pool_name, config_file))
    ctx.obj = {"pool": pool_name, "config": config_file}


def _call(pool_name: str, config_file: str | None) -> str:
    """Returns the command that calls `backupd` for the same pool again, from any folder."""
    if config_file is None:
        return "backupd" if pool_name == "main" else f"backupd --pool {shlex.quote(pool_name)}"
    from btrkeep.config.reading import backupd_command

    file = Path(config_file)
    return backupd_command(file.stem, file.absolute())


def main() -> None:
    """The entry point of `backupd`."""
    gc.set_threshold(100_000, 10, 10)  # repeated garbage collection takes a tenth of a command's time
    sys.exit(run_command_line(group, "backupd"))
