"""`backupd forget`: lets all backups of a host expire."""

from datetime import datetime
from typing import Any

import click

from backupd.actions.forget import RemainingBackups, forget, remaining_backups, require_forgettable, undo_forget
from backupd.cli.command_context import dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import complete_host_of_pool, locked_host, require_confirmation, require_host_or_folder
from backupd.expire.host_backups import policy_of
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_context import PoolContext
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import print_wrapped
from btrkeep.errors import UsageError
from btrkeep.process.proc import login_name
from btrkeep.units import counted, format_duration


@click.command("forget")
@click.argument("host", shell_complete=complete_host_of_pool)
@click.option("--undo", is_flag=True, help="Undo: remaining backups follow the retention policy again.")
@dry_run_option("which backups would expire")
@yes_option
@json_option
@pass_context
def command(ctx: click.Context, host: str, undo: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Let all backups of HOST expire, even the last one. HOST must no longer be backed up.

    The next `backupd expire` marks them, and deletes them when their grace ends. Until then `backupd forget HOST --undo` undoes
    it. Refused for a host that is configured and enabled, and for a host with a held backup.
    """
    if undo and dry_run:
        raise UsageError("--undo and --dry-run exclude each other", f"`backupd list {host}` lists its backups")
    if undo:
        return _undo(ctx, host, as_json)
    if dry_run:
        return _show(ctx, host, as_json)
    with locked_host(ctx, host, "forget") as (context, moment):
        require_forgettable(context.config, context.pool, host, moment)
        remaining = remaining_backups(context.catalogue, host)
    print_wrapped(f"{host} has {remaining}", err=as_json)
    require_confirmation("all these backups will expire", host, yes, as_json)
    with locked_host(ctx, host, "forget") as (context, moment):  # the prompt may have been open for long
        require_forgettable(context.config, context.pool, host, moment)
        since = forget(context.pool, host, moment, by=login_name())
        grace = policy_of(context.config, host, read_notes(context.pool.host(host))).grace
    text = f"{host} is forgotten: `backupd expire` marks its backups and deletes them {format_duration(grace)} later"
    undo_hint = f"until then `backupd forget {host} --undo` undoes that"
    return print_answer(_answer(host, since, remaining, dry_run=False), [text, undo_hint], as_json=as_json)


def _show(ctx: click.Context, host: str, as_json: bool) -> int:
    """--dry-run: nothing is locked or written."""
    with opened(ctx) as context:
        require_host_or_folder(context, host)
        require_forgettable(context.config, context.pool, host, context.clock.now())
        remaining = remaining_backups(context.catalogue, host)
    text = f"{host} has {remaining}: all of them would expire"
    return print_answer(_answer(host, None, remaining, dry_run=True), [text], as_json=as_json)


def _answer(host: str, since: datetime | None, remaining: RemainingBackups, *, dry_run: bool) -> dict[str, Any]:
    sizes = {"newest_bytes": remaining.newest, "new_bytes": remaining.written}
    return {"dry_run": dry_run, "host": host, "forgotten": since, "backups": remaining.names, **sizes}


def _undo(ctx: click.Context, host: str, as_json: bool) -> int:
    with locked_host(ctx, host, "forget --undo") as (context, moment):
        back = undo_forget(context.pool, context.catalogue, host, moment, by=login_name())
        remaining = remaining_backups(context.catalogue, host)
        rules = _rules(context, host)
    answer = {"dry_run": False, "host": host, "forgotten": None, "backups": remaining.names, "unexpired": back}
    text = [f"{host} is no longer forgotten; it has {remaining}"]
    if back:
        text.append(f"{counted(len(back), 'backup')} that had expired {'is' if len(back) == 1 else 'are'} kept again")
    return print_answer(answer, [*text, rules], as_json=as_json)


def _rules(context: PoolContext, host: str) -> str:
    if policy_of(context.config, host, read_notes(context.pool.host(host))).missing:
        return f"no retention policy is configured for {host}: all its backups are kept"
    return f"`backupd retention explain {host}` shows which of them are kept"
