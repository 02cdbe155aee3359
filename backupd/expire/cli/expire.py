"""`backupd expire`: deletes what the retention policy no longer keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from backupd.cli.command_context import dry_run_option, fill_stand_in, load_config, opened, pass_context
from backupd.cli.names import complete_host_of_pool, require_host_or_folder
from backupd.cli.recording import record
from backupd.expire.cli.expiry_view import ExpiryStatus, dry_run_fields, echo_dry_run, expiry_lines, summary_fields
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.expiry_runner import EVERYTHING, ExpiryRunner, ExpiryScope, dry_run_plan
from backupd.expire.mount_option import MountOption
from backupd.expire.report import ExpiryEvent, Summary
from backupd.expire.trust import check_trust
from backupd.repo.history_copy import keep_history
from backupd.repo.pool_context import open_configured, require_privileges, require_writable
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import has_live_terminal, notices_on_stderr, print_wrapped
from btrkeep.config import Config
from btrkeep.decisions.safety_limits import CLOCK, HOSTS, POOL, Forced, force_word
from btrkeep.errors import Exit, LockHeld, UsageError
from btrkeep.pool.locks import EXPIRE_LOCK, take_lock
from btrkeep.process.proc import is_automatic
from btrkeep.process.progress import ProgressSink, ProgressSinks, is_service, signal_status
from btrkeep.units import format_time, printable


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    """The options of `expire`; `force` has the values of --force."""

    dry_run: bool
    skip_grace: bool
    limit: int | None
    force: tuple[str, ...]
    wait: bool
    yield_to_backups: bool
    restore_mount_option: bool
    as_json: bool


@click.command("expire")
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_host_of_pool)
@dry_run_option("which backups would be marked and deleted, and why")
@click.option("--skip-grace", is_flag=True, help="Delete without waiting for the grace to end; only with the names of hosts.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Delete at most N backups in this run.")
@click.option(
    "--force",
    multiple=True,
    metavar="WHAT",
    help="Override a safety limit: `pool`, `hosts`, `clock`, or the name of a host. May be given several times.",
)
@click.option("--wait", is_flag=True, help="Wait until the kernel has freed all deleted backups, except those with open files.")
@click.option("--yield-to-backups", is_flag=True, help="Pause while backups run, regardless of [expiry].")
@click.option(
    "--restore-mount-option", is_flag=True, help="Only restore the mount option that a killed run changed; for ExecStopPost=."
)
@json_option
@pass_context
def command(ctx: click.Context, hosts: tuple[str, ...], **options: Any) -> int:
    """Delete the backups that the retention no longer keeps, of all hosts or of each HOST.

    Backups that no rule keeps are first marked as expired. Until their grace ends, they can be restored, and `backupd unexpire`
    keeps them again. Then they are deleted, a few at a time, so that never more than `max_orphans` deleted subvolumes wait for the
    kernel's cleaner. Expiry may be stopped at any time; the next run continues. The command returns when its deletions are safely
    on disk. The kernel may still be freeing the last of them (`backupd progress`), unless --wait is given, or a mount option was
    switched.

    --skip-grace is for a full pool: it deletes at once all backups in their grace, and those that no rule keeps. It cannot be
    undone.

    A host that would lose too many backups at once is skipped. Nothing is deleted if the pool would lose too many, or if the clock
    is wrong. --force overrides these limits. Held backups are always kept.

    Exit status 0: all is well; 1: a host or backup was skipped, there is a warning, or the catalogue could not be
    written; 3: another expiry holds the lock.
    """
    given = ExpireOptions(**options)
    if given.restore_mount_option:
        return _restore(ctx)
    if given.skip_grace and not hosts:
        raise UsageError("--skip-grace needs the names of hosts", "`backupd expire HOST --skip-grace`")
    with opened(ctx, writes=not given.dry_run, stand_in=not given.dry_run) as context:
        fill_stand_in(context)
        require_privileges()  # a dry run reads the deleted subvolumes too
        forced = Forced.parse(given.force, {*context.config.every_host, *context.catalogue.hosts()})
        moment = context.clock.now().replace(microsecond=0)  # notes.json holds whole seconds
        for host in hosts:
            require_host_or_folder(context, host)
        config = context.config
        if given.yield_to_backups:
            config = replace(config, expiry=replace(config.expiry, yield_to_backups=True))
        config = _without_grace(config, hosts) if given.skip_grace else config
        scope = ExpiryScope(frozenset(hosts)) if hosts else EVERYTHING
        expiry = ExpiryContext(config, context.pool, context.catalogue, moment, expiry_sinks(as_json=given.as_json))
        if given.dry_run:
            return _rehearse(expiry, forced, scope, given.limit, as_json=given.as_json)
        status = _expire(expiry, forced, scope, given, keeps=context.problem is None)
        return Exit.ATTENTION if context.problem and status == Exit.OK else status


def _without_grace(config: Config, hosts: Sequence[str]) -> Config:
    """Returns the configuration without a grace for these hosts; hosts that are no longer configured have the pool's retention."""
    changed = {
        name: replace(host, retention=replace(host.retention, grace=0.0)) for name, host in config.hosts.items() if name in hosts
    }
    return replace(config, hosts={**config.hosts, **changed}, retention=replace(config.retention, grace=0.0))


def _rehearse(context: ExpiryContext, forced: Forced, scope: ExpiryScope, limit: int | None, *, as_json: bool) -> int:
    plan = dry_run_plan(context, forced, scope)
    text = partial(echo_dry_run, plan, context.summary, limit, context.now)
    print_answer(partial(dry_run_fields, plan, context.summary, limit), text, as_json=as_json)
    return Exit.OK if context.summary.good else Exit.ATTENTION


def _expire(context: ExpiryContext, forced: Forced, scope: ExpiryScope, given: ExpireOptions, *, keeps: bool) -> int:
    """Runs an expiry. `keeps`: the catalogue is a file. A catalogue in memory has no history, which must not replace the pool's
    copy.
    """
    with take_lock(context.pool.locks / EXPIRE_LOCK, "backupd expire", format_time(context.now)):
        for notice in context.config.notices:
            context.sinks.notice(notice)
        if not is_automatic():
            record(context.pool, context.now, "expire", None, why=_asked_for(forced, scope, given.limit))
        summary = carry_out(context, forced, scope, given.limit, wait=given.wait)
        keeps = keeps and not context.rows.problem
        if not context.rows.problem:  # otherwise each write would wait for the program that holds the catalogue
            check_trust(context.pool, context.catalogue, context.now)
        if keeps and (why := keep_history(context.pool, context.catalogue, context.now)):
            context.sinks.notice(f"could not update the history copy in the pool: {why}")
    print_answer(summary_fields(summary), (), as_json=given.as_json)
    return exit_status(summary)


def _asked_for(forced: Forced, scope: ExpiryScope, limit: int | None) -> str:
    """Returns the options of the command for the record of actions."""
    hosts = "all hosts" if scope == EVERYTHING else ", ".join(sorted(scope.hosts or ()))
    words = [word for word, is_given in ((POOL, forced.pool), (HOSTS, forced.every_host), (CLOCK, forced.clock)) if is_given]
    words += map(force_word, sorted(forced.hosts))
    options = [f"--force {word}" for word in words] + ([f"--limit {limit}"] if limit is not None else [])
    return "; ".join([hosts, *options])


def carry_out(context: ExpiryContext, forced: Forced, scope: ExpiryScope, limit: int | None, *, wait: bool) -> Summary:
    """Runs an expiry that signals can stop and that reports to sinks. The caller holds its lock."""
    context.cancellation.listen()
    try:
        return ExpiryRunner(context, forced, limit, wait=wait, scope=scope).run()
    finally:
        context.sinks(context.summary)


def exit_status(summary: Summary) -> int:
    """The exit status of an expiry that completed or was stopped by a signal."""
    if summary.ended_by:
        return signal_status(summary.ended_by)
    return Exit.OK if summary.good else Exit.ATTENTION


def _restore(ctx: click.Context) -> int:
    """Restores the mount option. Needs neither the catalogue nor a clock, because it runs after a failure."""
    config = load_config(ctx)
    pool = open_configured(config)
    require_writable(pool)
    problems: list[str] = []
    try:
        with take_lock(pool.locks / EXPIRE_LOCK, "backupd expire --restore-mount-option", ""):
            done = MountOption(pool, "none", click.echo, problems.append).put_back()
    except LockHeld as error:
        print_wrapped(f"{printable(error.message)}; that expiry restores the mount option")
        return Exit.OK
    print_wrapped(done or "there is no mount option to restore")
    for problem in problems:
        print_wrapped(printable(problem), err=True)
    return Exit.ATTENTION if problems else Exit.OK


def expiry_sinks(*, as_json: bool) -> ProgressSinks[ExpiryEvent]:
    """Returns the sinks of an expiry: a terminal, a pipe or a service. With --json the result is printed at the end."""
    shown: ProgressSink[ExpiryEvent] = notices_on_stderr if as_json else expiry_lines
    if not as_json and has_live_terminal():
        from backupd.expire.cli.expiry_live import ExpiryDisplay

        shown = ExpiryDisplay()
    return ProgressSinks(ExpiryStatus(), shown) if is_service() else ProgressSinks(shown)
