"""`backupd run`: backs up the hosts that are due."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import click

from backupd.cli.command_context import (
    clock_for,
    complain_of_faults,
    complete_host,
    dry_run_option,
    given_now,
    load_config,
    load_reporting,
    opened,
    pass_context,
)
from backupd.cli.names import expand_hosts
from backupd.expire.trust import is_lost
from backupd.repo.final_backups import find_base
from backupd.repo.pool_context import PoolContext, open_configured, require_privileges
from backupd.repo.publish import fetched_hosts
from backupd.rsync.bandwidth import buckets_of
from backupd.rsync.command import passes, rsync_command
from backupd.rsync.snapshot_session import in_session
from backupd.run.cli.night_view import NightLines, NightStatus, result_fields, result_line
from backupd.run.host_order import CALLS, PlannedHost, plan
from backupd.run.run_context import HostResult, NightEvent
from backupd.run.run_hosts import RunEnd, report_unstarted, run_hosts
from backupd.streams.host_stream import HostStream, stream_command
from btrkeep.catalogue import Catalogue
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import has_live_terminal, notices_on_stderr, print_wrapped
from btrkeep.config import Config
from btrkeep.decisions.due import latest
from btrkeep.decisions.silences import read_silences
from btrkeep.errors import ConfigError, Exit, LockHeld, OperatorError, PoolUnusable, UsageError, report_error
from btrkeep.process.proc import start_time
from btrkeep.process.programs import paste_line
from btrkeep.process.progress import ProgressSink, ProgressSinks, is_service, signal_status
from btrkeep.units import printable


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Which hosts run, and when; names of hosts are not part of these options."""

    everything: bool
    catch_up: bool
    waits: bool
    scheduled: bool
    dry_run: bool
    as_json: bool


@click.command("run")
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_host)
@click.option(
    "--all", "everything", is_flag=True, help="Back up all enabled hosts, also those that are not due or outside their window."
)
@click.option("--catch-up", is_flag=True, help="Ignore the window for hosts that are late, or have no complete backup.")
@click.option("--wait", "waits", is_flag=True, help="If all `concurrency` slots of the pool are in use, wait for a free one.")
@click.option(
    "--scheduled",
    is_flag=True,
    help="For timers and cron: exit at once if nothing is due or another run is active; hosts that failed recently wait.",
)
@dry_run_option("which hosts would run, and the exact rsync commands")
@json_option
@pass_context
def command(ctx: click.Context, hosts: tuple[str, ...], **options: Any) -> int:
    """Back up the hosts that are due, or those that are named.

    A host is due when no complete backup of it started since its current period began (`every`, one day unless configured
    otherwise). Outside its window a due host waits. Named hosts run in any case, in parallel with other runs; without names, or
    with --wait, a host waits for one of the `concurrency` slots of the pool. HOST may be a pattern of enabled
    hosts, such as 'web*'.

    The shipped timer starts `backupd run --scheduled` every quarter of an hour. If nothing is due, it writes nothing. A host
    without a complete backup is tried again after a quarter of `every`, at most five hours.

    Ctrl-C, SIGTERM and the end of the terminal stop it cleanly and keep the transferred files, so that the next run continues; a
    second signal stops at once.

    Exit status 0: all complete, or nothing due; 1: a host is partial, failed or suspect, or skipped because of a mistake in its
    configuration, or the catalogue could not be written; 2: wrong usage or configuration; 3: another run holds the lock, or each
    of the hosts is locked; 4: the pool is unusable, or has too little space; 130 and 143: stopped by Ctrl-C or SIGTERM.
    """
    given = RunOptions(**options)
    if hosts and given.everything:
        raise UsageError("name hosts or give --all, not both", "`backupd run --help` explains both")
    if given.scheduled and (hosts or given.everything):
        raise UsageError("--scheduled backs up the hosts that are due: give neither hosts nor --all", "`backupd run --help`")
    with ExitStack() as held:
        try:
            is_quiet = given.scheduled and not given.dry_run and not given.as_json
            if is_quiet and (idle := _idle_config(ctx, catch_up=given.catch_up)):
                complain_of_faults(idle.faults)
                return Exit.ATTENTION if idle.faults else Exit.OK
            context = held.enter_context(opened(ctx, writes=not given.dry_run, stand_in=not given.dry_run))
        except (ConfigError, PoolUnusable) as error:
            if not hosts and not given.dry_run and not given_now(ctx):
                _report_unstarted(ctx, error)
            raise
        if not given.dry_run:
            require_privileges(None)
        enabled = (name for name, host in context.config.hosts.items() if host.enabled)
        named = tuple(expand_hosts(hosts, enabled))
        if calling := [name for name in named if name in context.config.hosts and context.config.hosts[name].calls]:
            named = tuple(name for name in named if name not in calling)
            if not named:
                raise UsageError(f"{calling[0]}: {CALLS}", "it has to be done there: the server cannot reach the host")

        def planned() -> list[PlannedHost]:
            moment = context.clock.now()
            facts = context.catalogue.host_facts(latest(moment))
            copies = fetched_hosts(context.pool, context.catalogue, context.config.hosts)
            return plan(
                context.config,
                facts,
                moment,
                names=named,
                everything=given.everything,
                catch_up=given.catch_up,
                scheduled=given.scheduled,
                copies=copies,
                silences=read_silences(context.catalogue, context.config.hosts, moment),
            )

        if given.dry_run:
            _say_plan(context, planned(), given.as_json)
            return Exit.ATTENTION if context.config.faults else Exit.OK
        sinks = night_sinks(as_json=given.as_json)
        if not context.config.every_host:
            sinks.notice("no host is configured: `backupd host add NAME` adds one")
        try:
            end = run_hosts(context, planned, named or None, sinks, waits=given.waits or not named)
        except LockHeld as error:
            if not given.scheduled:
                raise
            sinks.notice(f"{error.message}: the next scheduled run tries again")
            return Exit.OK
    status = _tell(end, sinks, as_json=given.as_json)
    if given.scheduled and status == Exit.LOCKED:
        status = Exit.OK
    return Exit.ATTENTION if status == Exit.OK and context.config.faults else status


def _report_unstarted(ctx: click.Context, error: OperatorError) -> None:
    with suppress(ConfigError):
        text = "\n".join(error.located) if isinstance(error, ConfigError) else error.message
        report_unstarted(load_reporting(ctx).config, text)


def _idle_config(ctx: click.Context, *, catch_up: bool) -> Config | None:
    """Returns the configuration if, according to the present catalogue, no host is due: nothing is written, and nothing is started.

    None also if the catalogue cannot be read, or if another run was killed: then the run itself decides. Raises PoolUnusable.
    """
    config = load_config(ctx)
    pool = open_configured(config)
    moment = clock_for(ctx, pool).now()
    try:
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            if catalogue.pool_id() != pool.id or is_lost(pool, catalogue):
                return None
            if any(start_time(run.pid) != run.pid_started for run in catalogue.unfinished_runs()):
                return None
            copies = fetched_hosts(pool, catalogue, config.hosts)
            facts, silences = catalogue.host_facts(latest(moment)), read_silences(catalogue, config.hosts, moment)
            entries = plan(config, facts, moment, catch_up=catch_up, scheduled=True, copies=copies, silences=silences)
    except (OperatorError, OSError):
        return None
    return None if any(entry.runs for entry in entries) else config


def _tell(end: RunEnd, sinks: ProgressSinks[NightEvent], *, as_json: bool) -> int:
    """Reports the result of a run. Returns the exit status. Raises PoolUnusable if an unusable pool ended the run."""
    print_answer([result_fields(result) for result in end.results], (), as_json=as_json)
    if end.unusable:
        raise end.unusable
    for result in end.results:
        if not result.good:
            report_error(OperatorError(result_line(result)))
    status = exit_status(end.results, end.signalled)
    if end.problem and status == Exit.OK:
        status = Exit.ATTENTION
    if end.problem and not as_json:
        sinks.notice(f"exit status {int(status)}: {end.problem.message}; the next run records the backup")
    return status


def exit_status(results: Sequence[HostResult], signalled: int) -> int:
    """Returns the status of a run that ended, or was stopped by a signal."""
    if signalled:
        return signal_status(signalled)
    if results and all(result.outcome == "locked" for result in results):
        return Exit.LOCKED
    return Exit.OK if all(result.good for result in results) else Exit.ATTENTION


_SESSION = "SESSION"


def _say_plan(context: PoolContext, planned: Sequence[PlannedHost], as_json: bool) -> None:
    """Prints what would run, in order, with the rsync commands; changes nothing."""
    entries = [(entry, _commands(context, entry) if entry.runs else []) for entry in planned]

    def show() -> None:
        for entry, commands in entries:
            print_wrapped(f"{entry.host.name}: {'would run' if entry.runs else 'would not run'}: {printable(entry.reason)}", "    ")
            for words in commands:
                click.echo("    " + printable(paste_line(words)))
            if commands and entry.host.snapshots != "off":
                print_wrapped(f"    {_SESSION} is the name of the session that btrkeep-source begins on the host first", "    ")
        running = sum(entry.runs for entry in planned)
        print_wrapped(f"{running} of {len(planned)} hosts would run, {context.config.backup.concurrency} at a time")

    answer = [
        {"host": entry.host.name, "runs": entry.runs, "reason": entry.reason, "commands": commands} for entry, commands in entries
    ]
    print_answer(answer, show, as_json=as_json)


def _commands(context: PoolContext, entry: PlannedHost) -> list[tuple[str, ...]]:
    host = entry.host if entry.host.snapshots == "off" else in_session(entry.host, _SESSION)
    try:
        based = find_base(context.pool, host.name, context.clock.now()) is not None
    except OperatorError:  # the run itself reports it; the plan of the other hosts is still printed
        based = True
    buckets = buckets_of(context.config, context.pool, host)
    if host.engine == "send":  # the identity of the snapshot is only known when the host has made it
        streams = [HostStream(path, "ID", "PARENT" if based else None, context.clock.now()) for path in host.paths]
        return [stream_command(host, context.config.ssh, None, buckets, stream, plain=False) for stream in streams]
    data = str(context.pool.working(host.name) / "data")
    return [
        rsync_command(host, context.config.ssh, path, data, one_pass, buckets)
        for path in host.paths
        for one_pass in passes(host.inplace, based=based)
    ]


def night_sinks(*, as_json: bool) -> ProgressSinks[NightEvent]:
    """Returns the sinks of a run: for a terminal, a pipe or a service. With --json the result is printed at the end."""
    shown: ProgressSink[NightEvent] = notices_on_stderr if as_json else NightLines()
    if not as_json and has_live_terminal():
        from backupd.run.cli.night_live import NightDisplay

        shown = NightDisplay()
    return ProgressSinks(NightStatus(), shown) if is_service() else ProgressSinks(shown)
