"""A run from its lock to its end: the order of the steps, each in its own module.

The dead man's switch gets a report when a night starts, and whether it met its goal. At the end of a night, a rolling share of the
files of each complete host is compared with the host. That does not affect a host's result: errors are reported, and the next night
continues.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from backupd.alarms.dead_man_switch import NightVerdict, Ping, judge_night
from backupd.expire.trust import check_trust
from backupd.proof.after_crash import read_last_written
from backupd.proof.against_source import SourceComparison, SourceScope
from backupd.repo.final_backups import sync_names
from backupd.repo.history_copy import keep_history, restore_history
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import has_backups_in_doubt
from backupd.repo.reconcile import reconcile
from backupd.repo.verification_files import HostComparisons, read_compared
from backupd.rsync.command import rsync_version
from backupd.rsync.confined import confinement, require_harmless
from backupd.run.host_order import PlannedHost
from backupd.run.night import NightRunner
from backupd.run.run_context import BestEffortCatalogue, HostResult, NightEnded, NightEvent, RunContext
from backupd.run.slots import HeldSlots
from btrkeep.backup_states import COMPLETE, Cause, CauseCode
from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnusable
from btrkeep.config import Config, HostConfig
from btrkeep.config.values import FileSample
from btrkeep.decisions.copy_status import COPIES, copies_of
from btrkeep.decisions.due import latest, window_end
from btrkeep.decisions.host_state import host_statuses
from btrkeep.decisions.schedule import CALLERS_FACT, with_call
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.locks import NIGHT_LOCK, take_lock
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.proc import become_reaper, caller
from btrkeep.process.progress import Cancellation, ProgressSinks, ending_signals, signal_status
from btrkeep.units import counted, format_time

_AT_ONCE = 1.0  # seconds for a clean stop after a second signal


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    results: Sequence[HostResult]
    """One for each host."""
    signalled: int
    """The first signal that was received; 0: none."""
    unusable: PoolUnusable | None = None
    """Why no other host may start because of the pool; None: they may."""
    problem: OperatorError | None = None
    """Why the catalogue could not be written; None: it was."""


def run_hosts(
    opened: PoolContext,
    planned: Callable[[], list[PlannedHost]],
    names: Sequence[str] | None,
    sinks: ProgressSinks[NightEvent],
    *,
    waits: bool,
    slots: HeldSlots | None = None,
) -> RunEnd:
    """Runs the hosts returned by `planned`, which is called under the night's lock after the catalogue was updated, because the
    pool decides what is due. Raises OperatorError.

    `names`: the requested hosts, None for a night. `slots`: those that the only host has already.
    """
    night = names is None
    with ExitStack() as held:
        since = format_time(opened.clock.now())
        report = held.enter_context(Reporting())
        if night:
            held.enter_context(take_lock(opened.pool.locks / NIGHT_LOCK, "backupd run", since))
        become_reaper()
        ensure_reserve(opened.pool.path)
        ledger = BestEffortCatalogue(opened.catalogue, sinks.notice, opened.problem)
        _bring_up_to_date(opened, ledger, sinks.notice, since)
        for notice in opened.config.notices:
            sinks.notice(notice)
        cancellation = Cancellation()
        with cancellation.listening():
            if has_backups_in_doubt(opened.pool):
                hosts, seconds = (names, None) if names is not None else due_now(opened, planned())
                read_last_written(opened, hosts, sinks.notice, cancellation, seconds)
        if cancellation:
            return RunEnd((), cancellation.signal)
        run = RunContext(
            config=opened.config,
            pool=opened.pool,
            catalogue=ledger,
            clock=opened.clock,
            rsync=rsync_version(),
            sinks=sinks,
            night=night,
            confinement=confinement(opened.config),
        )
        runner = NightRunner(run, planned(), wait_for_slot=waits, slots=slots)
        report.begin(run)
        if night and runner.waiting:
            note_caller(opened, ledger)
        results, signalled = asyncio.run(_with_signals(runner))
        sync_names(opened.pool)
        report.end(run, runner.reason)
        if night and not signalled and not ledger.problem:
            with cancellation.listening():
                compare_share(run, opened.catalogue, results, cancellation)
        if not ledger.problem:
            check_trust(opened.pool, opened.catalogue, opened.clock.now())
            is_new = night or any(result.outcome in ("failed", "partial") for result in results)  # a rebuild would not restore it
            if why := keep_history(opened.pool, opened.catalogue, opened.clock.now(), daily=not is_new):
                sinks.notice(f"could not update the history copy in the pool: {why}")
        return RunEnd(results, signalled, runner.unusable, ledger.problem)


def due_now(opened: PoolContext, planned: Sequence[PlannedHost]) -> tuple[list[str], float | None]:
    """Returns the hosts with which a night would start, and the seconds until the last of their windows closes; None: one has no
    window. Before a night starts, only the doubtful backups of these hosts have to be read.
    """
    due, now, zone = [entry for entry in planned if entry.runs], opened.clock.now(), opened.config.pool.zone
    ends = [window_end(entry.host.window, zone, now) if entry.bound and entry.host.window else None for entry in due]
    closing = [end for end in ends if end]
    limit = (max(closing) - now).total_seconds() if closing and len(closing) == len(due) else None
    return [entry.host.name for entry in due], limit


def note_caller(opened: PoolContext, ledger: BestEffortCatalogue) -> None:
    """Records what has started this run: on machines without a timer and cron, the health check uses it to judge whether hosts are
    backed up in time.
    """
    if not opened.problem and opened.clock.start is None:
        now = opened.clock.now()
        try:
            opened.catalogue.set_fact(CALLERS_FACT, with_call(opened.catalogue.get_fact(CALLERS_FACT), now, caller()))
        except OperatorError as error:
            ledger.note(error)


def _bring_up_to_date(context: PoolContext, ledger: BestEffortCatalogue, notice: Callable[[str], None], since: str) -> None:
    """Updates the catalogue from the pool, and restores its lost history. The ledger records an unusable catalogue."""
    try:
        corrected = reconcile(context.pool, context.catalogue, since)
        if context.problem:  # the rows are in a catalogue in memory, which is lost at the end
            corrected = corrected.in_the_pool()
        if corrected:
            notice(f"catalogue reconciled with the pool: {corrected}" if context.problem else corrected.sentence)
        if not context.problem and (history := restore_history(context.pool, context.catalogue)):
            notice(str(history))
    except (CatalogueUnusable, CatalogueBusy) as error:
        ledger.note(error)


async def _with_signals(night: NightRunner) -> tuple[list[HostResult], int]:
    """Runs the night; the first signal stops it cleanly, a second one at once."""
    seen: list[int] = []

    def signalled(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            night.context.sinks.notice("stopping: transfers end and keep their files (a second signal stops at once)")
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
    """Ends the process immediately, after a second signal, also in the middle of a step, because every step may be interrupted by a
    kill.
    """
    night.context.sinks(NightEnded())
    sys.stdout.flush()
    os._exit(signal_status(number))


LONGEST = 1800.0
"""Seconds, for all hosts together: the night's lock is held during this time."""


def compare_share(context: RunContext, catalogue: Catalogue, results: Sequence[HostResult], cancellation: Cancellation) -> None:
    """Compares the next slice of each host that became complete, first of those whose last comparison is the oldest."""
    sample = context.config.verify.against_source
    complete = [
        context.config.hosts[result.host]
        for result in results
        if result.outcome == COMPLETE and result.host in context.config.hosts
    ]
    if sample is None or not complete:
        return
    hosts = sorted(
        filter(partial(_is_open, context), complete),
        key=lambda host_config: _last(read_compared(context.pool.host(host_config.name))),
    )
    end = time.monotonic() + LONGEST
    try:
        with take_lock(context.pool.locks / "source", "backupd run", format_time(context.clock.now())):
            for number, host in enumerate(hosts):
                if cancellation or (left := end - time.monotonic()) <= 0:
                    break
                scope = SourceScope(_number(sample), left / (len(hosts) - number))  # an equal share for each host
                _compare(context, catalogue, host, scope, cancellation)
    except OperatorError as error:
        context.sinks.notice(f"no file was compared with the hosts: {error.message}")


def _number(sample: FileSample) -> int | float:
    if sample.number is not None:
        return sample.number
    return 1.0 if sample.share is None else sample.share


def _compare(context: RunContext, catalogue: Catalogue, host: HostConfig, scope: SourceScope, cancellation: Cancellation) -> None:
    confined = not context.confinement.missing
    work = SourceComparison(context.pool, catalogue, context.config, scope, cancellation, lambda _: None, confined=confined)
    try:
        if host.address:
            require_harmless(context.rsync, context.confinement, context.config)
        source_findings = work.compare(host, context.clock.now())
    except (OperatorError, OSError) as error:
        why = error.message if isinstance(error, OperatorError) else error
        context.sinks.notice(f"{host.name} was not compared with its backup: {why}")
        return
    if source_findings and source_findings.differing:
        context.sinks.notice(
            f"{host.name}: {counted(len(source_findings.differing), 'file')} whose content differs from the backup, although "
            "size and time are equal; the next run fetches them again (`backupd damaged`)"
        )


def _last(comparisons: HostComparisons) -> float:
    return max((backup.at.timestamp() for backup in comparisons.backups.values()), default=0.0)


def _is_open(context: RunContext, host: HostConfig) -> bool:
    return host.window is None or window_end(host.window, context.config.pool.zone, context.clock.now()) is not None


class Reporting:
    """Around a night, outside of its lock: `begin` and `end` are sent in the background, and the end of the context waits for what
    is being sent.

    A night that started and has no `end` is reported as one that missed its goal. Nothing is reported of runs of single hosts,
    without a ping in the configuration, and in a rehearsal with another time.
    """

    def __init__(self) -> None:
        self._ping: Ping | None = None
        self._ended = False

    def begin(self, context: RunContext) -> None:
        """Reports that the night starts; its lock is held."""
        url = context.config.notify.ping
        if url is None or not context.night or context.clock.start is not None:
            return
        self._ping = Ping(url)
        self._ping.start()

    def end(self, context: RunContext, early: str | None) -> None:
        """Reports that the night is over. `early`: why it ended before all hosts were started. The result is judged by the
        present catalogue.
        """
        if self._ping is None:
            return
        verdict = _judge(context, early)
        self._ping.end(met=verdict.met, text=verdict.text)
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ping is None:
            return
        if not self._ended:
            text = error.message if isinstance(error, OperatorError) else "check the log on the server (journalctl -u 'btrkeep-*')"
            self._ping.end(met=False, text=f"the night ended with an error: {text}")
        self._ping.wait()


def report_unstarted(config: Config, text: str) -> None:
    """Reports to the dead man's switch that a night could not start."""
    if config.notify.ping is None:
        return
    ping = Ping(config.notify.ping)
    ping.start()
    ping.end(met=False, text=f"the night could not start: {text}")
    ping.wait()


def _judge(context: RunContext, early: str | None) -> NightVerdict:
    try:
        now = context.clock.now()
        facts = context.catalogue.host_facts(latest(now))
        fetched, unknown = copies_of(context.catalogue.get_fact(COPIES)).fetched, context.catalogue.unknown_spans()
    except OperatorError as error:
        return NightVerdict(False, error.message)
    return judge_night(context.config, host_statuses(context.config, facts, fetched, now, unknown), early)
