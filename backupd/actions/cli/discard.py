"""`backupd discard`: deletes the unfinished backup of a host."""

from datetime import datetime

import click

from backupd.actions.discard import UnfinishedBackup, discard, is_busy, unfinished_backup
from backupd.cli.command_context import dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import complete_host_of_pool, locked_host, require_confirmation, require_host_or_folder
from backupd.cli.recording import record
from backupd.repo.pool_context import PoolContext
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import print_wrapped
from btrkeep.errors import Exit, StateConflict
from btrkeep.pool.locks import held_by
from btrkeep.pool.subvolume import describe
from btrkeep.units import format_duration, format_size, local_time


@click.command("discard")
@click.argument("host", shell_complete=complete_host_of_pool)
@dry_run_option("what would be lost")
@yes_option
@json_option
@pass_context
def command(ctx: click.Context, host: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete the unfinished backup of HOST, left by a run that was stopped or killed.

    The next run would continue it; without it, that run starts from the newest complete backup. Final backups stay. On a full
    pool this frees the space of the unfinished backup. Refused while a run works on the host.
    """
    if dry_run:
        with opened(ctx) as context:
            require_host_or_folder(context, host)
            if is_busy(context.pool, host):
                raise held_by(context.pool.host_lock(host))
            _print_result(_require_unfinished(context, host), context.clock.now(), as_json=as_json, dry_run=True)
        return Exit.OK
    with locked_host(ctx, host, "discard") as (context, moment):
        unfinished = _require_unfinished(context, host)
    print_wrapped(_lost(unfinished, moment), err=as_json)
    require_confirmation("the unfinished backup will be deleted and cannot be restored", host, yes, as_json)
    with locked_host(ctx, host, "discard") as (context, moment):  # the prompt may have been open for long
        discard(context.pool, context.catalogue, unfinished)
        record(context.pool, moment, "discard", host)
    _print_result(unfinished, moment, as_json=as_json)
    return Exit.OK


def _require_unfinished(context: PoolContext, host: str) -> UnfinishedBackup:
    """Returns the unfinished backup. Raises StateConflict."""
    if unfinished := unfinished_backup(context.pool, host):
        return unfinished
    path = context.pool.working(host)
    subvolume = describe(path)
    if subvolume is None:
        raise StateConflict(f"{host} has no unfinished backup", f"`backupd list {host}` lists its backups")
    if subvolume.read_only:
        raise StateConflict(
            f"{path} is finished, but not renamed yet", "the next run or expiry renames it; then use `backupd delete`"
        )
    raise StateConflict(f"{path} does not belong to btrkeep", "check what it is, and move it away")


def _lost(unfinished: UnfinishedBackup, now: datetime) -> str:
    since = (
        f", started {local_time(unfinished.began)} ({format_duration((now - unfinished.began).total_seconds())} ago)"
        if unfinished.began
        else ""
    )
    return f"{unfinished.host} has an unfinished backup of {format_size(unfinished.size)}{since}"


def _print_result(unfinished: UnfinishedBackup, now: datetime, *, as_json: bool, dry_run: bool = False) -> None:
    answer = {
        "dry_run": dry_run,
        "host": unfinished.host,
        "path": str(unfinished.path),
        "bytes": unfinished.size,
        "began": unfinished.began,
    }
    done = "the unfinished backup is deleted; the kernel frees its space gradually (`backupd progress` shows it)"
    print_answer(answer, [f"{_lost(unfinished, now)}: it would be deleted" if dry_run else done], as_json=as_json)
