"""`backupd rename`: gives a host's backups another name."""

from pathlib import Path

import click

from backupd.actions import rename as renaming
from backupd.cli.command_context import complete_host, dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import complete_host_of_pool, require_confirmation, require_host_or_folder
from backupd.repo.pool_context import PoolContext, writing
from btrkeep.cli import json_option, print_answer
from btrkeep.config.config_key import HOST
from btrkeep.config.problems import dotted
from btrkeep.process.proc import login_name
from btrkeep.units import counted, format_time


def _complete_new(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Configured hosts without backups in the pool; the new name is one of them if the configuration was changed first."""
    return sorted({*complete_host(ctx, param, incomplete)} - {*complete_host_of_pool(ctx, param, incomplete)})


@click.command("rename")
@click.argument("host", shell_complete=complete_host_of_pool)
@click.argument("new", shell_complete=_complete_new)
@dry_run_option("what would be renamed")
@yes_option
@json_option
@pass_context
def command(ctx: click.Context, host: str, new: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Give the backups of HOST the name NEW; the next backup of NEW is based on them.

    Nothing is copied. Change the configuration yourself: rename the section [host.HOST] to [host.NEW] before the next run.
    Refused during an expiry, a backup of HOST, or a run of all hosts. If the command was killed, run it again: it completes the
    rest.
    """
    renaming.validate_names(host, new)
    if dry_run:
        return _show(ctx, host, new, as_json)
    with opened(ctx, writes=True) as context:
        _require_old(context, host, new)
        since = format_time(context.clock.now())
        with renaming.locked(context.pool, host, new, since):
            renaming.require_renameable(context.pool, host, new)
    require_confirmation(f"the backups of {host} will belong to {new}", new, yes, as_json)
    with opened(ctx, writes=True) as context, renaming.locked(context.pool, host, new, since), writing(context.pool):
        moment = context.clock.now().replace(microsecond=0)
        count = renaming.rename(context.pool, context.catalogue, host, new, moment, by=login_name())
        todo = _todo(context, host, new)
    return _print_result(host, new, count, todo, as_json=as_json, dry_run=False)


def _require_old(context: PoolContext, host: str, new: str) -> None:
    """Raises UsageError if there are no backups of HOST and no rename of it was interrupted."""
    if not renaming.is_renamed(context.pool, host, new):
        require_host_or_folder(context, host)


def _show(ctx: click.Context, host: str, new: str, as_json: bool) -> int:
    """--dry-run: nothing is locked or written."""
    with opened(ctx) as context:
        _require_old(context, host, new)
        renaming.require_renameable(context.pool, host, new)
        count = renaming.backups_of(context.pool, new if renaming.is_renamed(context.pool, host, new) else host)
        todo = _todo(context, host, new)
    return _print_result(host, new, count, todo, as_json=as_json, dry_run=True)


def _print_result(host: str, new: str, count: int, todo: list[str], *, as_json: bool, dry_run: bool) -> int:
    now = "would belong to" if dry_run else "now belongs to" if count == 1 else "now belong to"
    text = [f"{counted(count, 'backup')} of {host} {now} {new}", *todo]
    return print_answer({"dry_run": dry_run, "host": new, "was": host, "backups": count, "todo": todo}, text, as_json=as_json)


def _todo(context: PoolContext, old: str, new: str) -> list[str]:
    """Returns what remains to be done in the configuration."""
    hosts, file = context.config.every_host, context.config.file
    before, after = dotted(HOST, old), dotted(HOST, new)
    folder = Path(file).with_suffix(".d")
    where = f"{file} or {folder}/" if folder.is_dir() else str(file)
    if old in hosts and new in hosts:
        return [f"remove [{before}] from {where}, otherwise a run backs up {old} again from the beginning"]
    if old in hosts:
        return [
            f"change [{before}] to [{after}] in {where} before the next run, otherwise it backs up {old} again from the beginning"
        ]
    return [] if new in hosts else [f"{new} is not configured: add [{after}] to {file} to back it up again"]
