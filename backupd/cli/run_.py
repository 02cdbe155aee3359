"""`backupd run`: backs up the hosts that are due."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import click

from backupd.cli.context import complete_host, dry_run_option, opened, pass_context
from backupd.cli.night_view import as_json_object, result_line
from backupd.cli.sinks import night_sinks
from backupd.health.doubts import note_doubts
from backupd.repo.context import PoolContext
from backupd.repo.final_backups import find_base, keep_names
from backupd.repo.history_copy import bring_back, keep_history
from backupd.repo.publish import fetched_hosts
from backupd.repo.reconcile import reconcile
from backupd.rsync.command import passes, rsync_command
from backupd.rsync.confined import confinement
from backupd.rsync.version import rsync_version
from backupd.run.context import HostResult, NightEnded, RunContext, buckets_of
from backupd.run.last_written import read_last_written
from backupd.run.ledger import Ledger
from backupd.run.night import NightRunner
from backupd.run.night_report import Reporting
from backupd.run.planning import PlannedHost, plan
from backupd.run.source_share import compare_share
from btrkeep.catalogue import CatalogueBusy, CatalogueUnusable
from btrkeep.causes import Cause, CauseCode
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.decisions.due import latest
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import NIGHT_LOCK, take_lock
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.cancellation import Cancellation, ending_signals, signal_status
from btrkeep.process.error_report import report_error
from btrkeep.process.proc import become_reaper
from btrkeep.process.programs import paste_line
from btrkeep.units import format_time, printable

_AT_ONCE = 1.0  # seconds that a second signal leaves for a tidy end


@click.command("run")
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_host)
@click.option("--all", "everything", is_flag=True, help="All enabled hosts, whether due or not, inside their window or not.")
@click.option(
    "--catch-up", is_flag=True, help="Ignore the window for hosts whose newest complete backup is older than 1.5 times `every`."
)
@click.option(
    "--wait", "waits", is_flag=True, help="Let named hosts wait while other runs have as many transfers as `concurrency`."
)
@dry_run_option("what would run, and the exact rsync commands")
@json_option
@pass_context
def command(
    ctx: click.Context,
    hosts: tuple[str, ...],
    everything: bool,
    catch_up: bool,
    waits: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Back up the hosts that are due, or those that are named.

    A host is due when no complete backup of it started since its current period began (`every`, one day unless configured
    otherwise). Outside its window a due host waits. Named hosts run in any case, beside whatever runs already; without names, and
    with --wait, a host waits for a place among the `concurrency` transfers of the pool.

    Ctrl-C, SIGTERM and the end of the terminal stop it cleanly and keep what has arrived, so that the next run continues it; a
    second one stops at once.

    Exit status 0: all complete, or nothing due; 1: some host is partial, failed or suspect, or the catalogue could not be written;
    2: wrong usage or configuration; 3: another run holds the lock, or each of the hosts is locked; 4: the pool is unusable, or
    has too little space; 130 and 143: stopped by Ctrl-C or SIGTERM.
    """
    if hosts and everything:
        raise UsageError("name hosts or say --all, not both", "`backupd run --help` explains both")
    with opened(ctx, writes=not dry_run, stand_in=not dry_run) as site:

        def planned() -> list[PlannedHost]:
            moment = site.clock.now()
            facts = site.catalogue.host_facts(latest(moment))
            copies = fetched_hosts(site.pool, site.catalogue, site.config.hosts)
            return plan(site.config, facts, moment, names=hosts, everything=everything, catch_up=catch_up, copies=copies)

        if dry_run:
            return _say_plan(site, planned(), as_json)
        return _run(site, planned, hosts or None, waits=waits or not hosts, as_json=as_json)


def _run(
    opened_site: PoolContext, planned: Callable[[], list[PlannedHost]], names: Sequence[str] | None, *, waits: bool, as_json: bool
) -> int:
    """Runs the hosts returned by `planned`, which is called under the night's lock after the catalogue was updated, because the
    pool decides what is due.

    `names`: the requested hosts, None for a night.
    """
    night = names is None
    observer = night_sinks(as_json=as_json)
    with ExitStack() as held:
        since = format_time(opened_site.clock.now())
        report = held.enter_context(Reporting())
        if night:
            held.enter_context(take_lock(opened_site.pool.locks / NIGHT_LOCK, "backupd run", since))
        become_reaper()
        ensure_reserve(opened_site.pool.path)
        ledger = Ledger(opened_site.catalogue, observer.notice, opened_site.trouble)
        _bring_up_to_date(opened_site, ledger, observer.notice, since)
        for notice in opened_site.config.notices:
            observer.notice(notice)
        cancellation = Cancellation()
        with cancellation.listening():
            read_last_written(opened_site, names, observer.notice, cancellation)
        if cancellation:
            if as_json:
                echo_json([])
            return cancellation.exit_status()
        site = RunContext(
            config=opened_site.config,
            pool=opened_site.pool,
            catalogue=ledger,
            clock=opened_site.clock,
            rsync=rsync_version(),
            observer=observer,
            night=night,
            confinement=confinement(opened_site.config),
        )
        night_run = NightRunner(site, planned(), waits=waits)
        report.begin(site)
        results, signalled = asyncio.run(_with_signals(night_run))
        keep_names(opened_site.pool)
        report.end(site, night_run.reason)
        if night and not signalled and not ledger.trouble:
            with cancellation.listening():
                compare_share(site, opened_site.catalogue, results, cancellation)
        if not ledger.trouble:
            note_doubts(opened_site.pool, opened_site.catalogue, opened_site.clock.now())
            if why := keep_history(opened_site.pool, opened_site.catalogue, opened_site.clock.now(), daily=not night):
                observer.notice(f"the pool's copy of the history is as old as it was: {why}")
    if as_json:
        echo_json([as_json_object(result) for result in results])
    if night_run.unusable:
        raise night_run.unusable
    for result in results:
        if not result.good:
            report_error(OperatorError(result_line(result)))
    status = exit_status(results, signalled)
    if ledger.trouble and status == Exit.OK:
        status = Exit.ATTENTION
    if ledger.trouble and not as_json:
        observer.notice(f"exit status {int(status)}: {ledger.trouble.message}; the next run enters what was made")
    return status


def _bring_up_to_date(site: PoolContext, ledger: Ledger, notice: Callable[[str], None], since: str) -> None:
    """Brings the catalogue up to date with the pool, and its lost history back. The ledger notes a catalogue that is unusable."""
    try:
        corrected = reconcile(site.pool, site.catalogue, since)
        if site.trouble:  # the rows are those of a catalogue in memory, which nobody sees again
            corrected = corrected.in_the_pool()
        if corrected:
            notice(f"the pool was looked through: {corrected}" if site.trouble else corrected.sentence)
        if not site.trouble and (history := bring_back(site.pool, site.catalogue)):
            notice(str(history))
    except (CatalogueUnusable, CatalogueBusy) as error:
        ledger.note(error)


def exit_status(results: Sequence[HostResult], signalled: int) -> int:
    """The status of a run that came to its end or was stopped by a signal."""
    if signalled:
        return signal_status(signalled)
    if results and all(result.outcome == "locked" for result in results):
        return Exit.LOCKED
    return Exit.OK if all(result.good for result in results) else Exit.ATTENTION


async def _with_signals(night: NightRunner) -> tuple[list[HostResult], int]:
    """Runs the night; the first signal stops it cleanly, a second one at once."""
    seen: list[int] = []

    def signalled(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            night.site.observer.notice("stopping: transfers end and keep what they have (once more stops at once)")
            night.stop(Cause(CauseCode.SIGNAL, facts={"name": signal.Signals(number).name}))
            return
        night.kill()
        loop.call_later(_AT_ONCE, _leave, night, seen[0])

    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, signalled, number)
    results = await night.run()
    return results, seen[0] if seen else 0


def _leave(night: NightRunner, number: int) -> None:
    """Ends the process where it is, after a second signal: in the middle of a step too, since every step may be killed."""
    night.site.observer(NightEnded())
    sys.stdout.flush()
    os._exit(signal_status(number))


def _say_plan(site: PoolContext, planned: Sequence[PlannedHost], as_json: bool) -> int:
    """Prints what would run, in order, with the rsync commands; changes nothing."""
    entries = [(entry, _commands(site, entry) if entry.runs else []) for entry in planned]
    if as_json:
        echo_json(
            [
                {
                    "host": entry.host.name,
                    "runs": entry.runs,
                    "reason": entry.reason,
                    "commands": [list(words) for words in commands],
                }
                for entry, commands in entries
            ]
        )
        return Exit.OK
    for entry, commands in entries:
        prose(f"{entry.host.name}: {'would run' if entry.runs else 'would not run'}: {printable(entry.reason)}", "    ")
        for words in commands:
            click.echo("    " + printable(paste_line(words)))
    running = sum(entry.runs for entry in planned)
    prose(f"{running} of {len(planned)} hosts would run, {site.config.backup.concurrency} at a time")
    return Exit.OK


def _commands(site: PoolContext, entry: PlannedHost) -> list[tuple[str, ...]]:
    host = entry.host
    based = find_base(site.pool, host.name, site.clock.now()) is not None
    data = str(site.pool.working(host.name) / "data")
    buckets = buckets_of(site.config, site.pool, host)
    return [
        rsync_command(host, site.config.ssh, path, data, one_pass, buckets)
        for path in host.paths
        for one_pass in passes(host.inplace, based=based)
    ]
