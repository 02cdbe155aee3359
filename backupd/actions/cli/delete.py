"""`backupd delete`: delete backups by name."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import click

from backupd.actions.delete import DeletionChoice, choose, mark, require_sane_clock
from backupd.cli.command_context import dry_run_option, fill_stand_in, opened, pass_context
from backupd.cli.names import complete_which
from backupd.expire.cli.expire import carry_out, exit_status, expiry_sinks
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.expiry_runner import ExpiryScope
from backupd.files.backup_selector import require_host
from backupd.repo.pool_context import PoolContext, writing
from btrkeep.cli import json_option, print_answer
from btrkeep.decisions.retention import DeletionRequest
from btrkeep.decisions.safety_limits import Forced
from btrkeep.errors import Exit, UsageError
from btrkeep.pool.locks import EXPIRE_LOCK, take_lock
from btrkeep.process.proc import login_name
from btrkeep.units import format_time, local_time, printable


@click.command("delete")
@click.argument("backups", nargs=-1, required=True, metavar="HOST@BACKUP...", shell_complete=complete_which)
@click.option("--why", "--reason", default="", metavar="TEXT", help="The reason; shown by `list`, `retention explain` and `log`.")
@click.option("--force", is_flag=True, help="Delete even the last complete backup of a host.")
@click.option("--now-without-grace", "at_once", is_flag=True, help="Delete at once. It cannot be undone.")
@dry_run_option("which backups would expire or be deleted")
@json_option
@pass_context
def command(
    ctx: click.Context,
    backups: tuple[str, ...],
    why: str,
    force: bool,
    at_once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Delete backups by name, regardless of the retention: all of those named, or none.

    They expire, and the next `backupd expire` after their grace deletes them; until then `backupd unexpire` keeps a backup
    again. With --now-without-grace they are deleted at once. `latest` is the newest complete backup of its host.

    It refuses to delete the last complete backup of a host (unless --force is given), a held backup, and the base of an
    unfinished backup. With --now-without-grace it also refuses to delete a backup that is being restored from.

    Exit status 0: done; 1: a backup was refused, so nothing was deleted, or a backup could not be deleted at once, or the
    catalogue could not be updated; 3: a run is using the host, or, with --now-without-grace, an expiry is running.
    """
    wanted = _by_host(backups)
    asked = DeletionRequest(" ".join(why.split()), force, at_once, login_name())
    with opened(ctx, writes=not dry_run, stand_in=not dry_run) as context:
        fill_stand_in(context)
        moment = context.clock.now().replace(microsecond=0)  # notes.json holds whole seconds
        expiry = ExpiryContext(context.config, context.pool, context.catalogue, moment, expiry_sinks(as_json=as_json))
        for host in wanted:
            require_host(context.pool, host)
        require_sane_clock(expiry, asked)
        if dry_run:
            chosen = [choose(expiry, host, names, asked) for host, names in wanted.items()]
            _print_result(chosen, asked, dry_run=True, as_json=as_json)
            return Exit.OK
        with ExitStack() as held:
            if at_once:
                held.enter_context(take_lock(context.pool.locks / EXPIRE_LOCK, "backupd delete", format_time(moment)))
            with ExitStack() as locks, writing(context.pool):
                for host in wanted:
                    locks.enter_context(expiry.lock(host))
                chosen = [choose(expiry, host, names, asked) for host, names in wanted.items()]
                mark(expiry, chosen, asked)
            return _delete(context, expiry, chosen, asked, as_json=as_json)


def _by_host(backups: Sequence[str]) -> dict[str, list[str]]:
    """Returns the requested names by host, hosts in the order of their locks. Raises UsageError."""
    wanted: dict[str, list[str]] = {}
    for text in backups:
        host, at, name = text.partition("@")
        if not host or not at or not name:
            raise UsageError(f"{text!r} is not a backup", "write HOST@NAME; `backupd list HOST` shows the names")
        wanted.setdefault(host, []).append(name)
    return dict(sorted(wanted.items()))


def _delete(
    context: PoolContext, expiry: ExpiryContext, chosen: Sequence[DeletionChoice], asked: DeletionRequest, *, as_json: bool
) -> int:
    if not asked.at_once:
        _print_result(chosen, asked, as_json=as_json)
        return Exit.OK
    names = frozenset((deletion_choice.host, backup.name) for deletion_choice in chosen for backup in deletion_choice.backups)
    scope = ExpiryScope(frozenset(deletion_choice.host for deletion_choice in chosen), names)
    summary = carry_out(expiry, Forced(), scope, None, wait=False)
    gone = {(host, name) for host, name in names if not (context.pool.host(host) / name).exists()}
    _print_result(chosen, asked, gone=gone, as_json=as_json)
    return exit_status(summary) or (Exit.OK if gone == names else Exit.ATTENTION)


def _print_result(
    chosen: Sequence[DeletionChoice],
    asked: DeletionRequest,
    *,
    gone: set[tuple[str, str]] | None = None,
    dry_run: bool = False,
    as_json: bool,
) -> None:
    text = (printable(line) for choice in chosen for line in _lines(choice, asked, gone or set(), dry_run))
    print_answer({"dry_run": dry_run, "backups": list(_objects(chosen, asked, gone or set()))}, text, as_json=as_json)


def _objects(chosen: Sequence[DeletionChoice], asked: DeletionRequest, gone: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for deletion_choice in chosen:
        for backup in deletion_choice.backups:
            yield {
                "host": deletion_choice.host,
                "name": backup.name,
                "at": backup.marked,
                "why": backup.why,
                "expires": None if asked.at_once else backup.expires,
                "deleted": (deletion_choice.host, backup.name) in gone,
                "next_base": deletion_choice.base,
            }


def _lines(choice: DeletionChoice, asked: DeletionRequest, gone: set[tuple[str, str]], dry_run: bool) -> Iterator[str]:
    for backup in choice.backups:
        name = f"{choice.host} {backup.name}"
        if backup.is_unreadable:
            given_up = "would be abandoned" if dry_run else "is abandoned"
            yield f"{name} {given_up}: no other pool fetches it. It stays on the disk, because its metadata cannot be read"
        elif asked.at_once:
            yield f"{name} " + ("would be deleted at once" if dry_run else _became((choice.host, backup.name) in gone))
        else:
            expires = local_time(backup.expires)
            status = "had expired already" if backup.had_expired else "would expire" if dry_run else "has expired"
            yield f"{name} {status}: it can be restored until {expires}, then `backupd expire` deletes it"
    readable = [backup for backup in choice.backups if not backup.is_unreadable]
    if readable and not asked.at_once and not dry_run:
        pronoun = "it" if len(readable) == 1 else "that backup"
        yield f"until then `backupd unexpire {choice.host} {readable[0].name}` keeps {pronoun} again"
    if choice.base is None:
        yield f"{choice.host} then has no complete backup and no `latest`, and its next backup transfers everything again"
    elif choice.moves:
        yield f"the next backup of {choice.host} is based on {choice.base}"


def _became(is_gone: bool) -> str:
    return "is deleted" if is_gone else "is not deleted yet: it has expired, and a later `backupd expire` deletes it if possible"
