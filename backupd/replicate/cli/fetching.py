"""One replication of `backupd replicate` and `receive-only`, from its locks to its report."""

import platform
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from backupd.cli.copy_commands import left_words
from backupd.replicate.cli.replicate_lines import ReplicationLines
from backupd.replicate.fetch_hosts import replicate
from backupd.replicate.fetch_plan import make_plan
from backupd.replicate.initial_copy import unusable_hosts
from backupd.replicate.outcome import (
    Connect,
    HostFailed,
    ReplicationContext,
    ReplicationEvent,
    ReplicationOptions,
    ReplicationPlan,
    ReplicationSummary,
    RunningRecord,
)
from backupd.replicate.remote_pool import RemotePool, replica_buckets
from backupd.replicate.wire import RemoteHost, RemoteRefused
from backupd.repo.pool_context import PoolContext
from backupd.repo.publish import publish_copies
from backupd.repo.reconcile import reconcile
from backupd.rsync.bandwidth import BudgetPace
from backupd.rsync.cell import PROGRAM, seccomp_filter
from btrkeep.catalogue import CatalogueBusy, CatalogueUnusable
from btrkeep.cli import print_error
from btrkeep.cli.output import has_live_terminal, notices_on_stderr, print_wrapped
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.copy_status import HostBehind, ReplicaSession, note_session, read_session
from btrkeep.decisions.due import latest
from btrkeep.decisions.replication import obstacle_words
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.programs import environment
from btrkeep.process.progress import Cancellation, ProgressSinks
from btrkeep.units import counted, format_size, format_time, parse_backup_name, printable

Observer = ProgressSinks[ReplicationEvent]


def fetch_one(context: PoolContext, replica: ReplicaSettings, wanted: ReplicationOptions, connect: Connect) -> dict[str, Any]:
    """Runs one replication; returns its result as JSON.

    Raises LockHeld, RemotePoolMissing, UsageError, and other kinds of OperatorError.
    """
    running = RunningRecord(context.catalogue, replica.name, context.clock.now())
    with ExitStack() as held:
        observer = _observer(wanted, running, held)
        if not wanted.dry_run:
            _lock_and_reconcile(context, replica, held, observer.notice, damaged=wanted.damaged)
        replication, far = _begun(context, replica, wanted, observer, held, connect)
        plan, listed = make_plan(replication, far, wanted.hosts, damaged=wanted.damaged)
        without = _unusable(wanted)
        _require_listed(replica, wanted.hosts, {*listed, *(host_failed.host for host_failed in without)})
        if wanted.dry_run:
            for host_failed in without:
                observer.notice(f"{host_failed.host}: {host_failed.error}")
            return _say_plan(replica, plan, wanted.as_json)
        begun = time.monotonic()
        try:
            with replication.cancellation.listening():
                summary = replicate(replication, plan, listed, far)
            summary.failed += without
        finally:
            running.end()
            _tell_dashboard(context, observer.notice)
        if wanted.is_session and not summary.cancelled:
            before = read_session(context.catalogue, replica.name)
            of_it = {name: host for name, host in listed.items() if host.copy_of != context.pool.id}
            session = _session(before, (replication.now, context.clock.now()), far.id, plan, of_it, summary, begun)
            note_session(context.catalogue, replica.name, session)
    return _report(summary, replication.cancellation, wanted.as_json)


def _unusable(wanted: ReplicationOptions) -> list[HostFailed]:
    """Returns the wanted hosts that the initial copy does not have completely."""
    unusable_by_host = unusable_hosts(wanted.initial_copy) if wanted.initial_copy else {}
    return [HostFailed(host, why) for host, why in unusable_by_host.items() if not wanted.hosts or host in wanted.hosts]


def _tell_dashboard(context: PoolContext, notice: Callable[[str], None]) -> None:
    """Publishes which hosts are copies now. An error is only a notice: the next command publishes them."""
    try:
        publish_copies(context.pool, context.catalogue)
    except (OSError, CatalogueBusy, CatalogueUnusable) as error:
        why = error.strerror if isinstance(error, OSError) else error.message
        notice(f"the dashboard does not show the new replicas: {why}")


def _observer(wanted: ReplicationOptions, running: RunningRecord, held: ExitStack) -> Observer:
    """Shows the events: bars on a terminal, otherwise lines, on stderr with JSON; and updates the catalogue for the dashboard."""
    if wanted.as_json:
        return ProgressSinks(notices_on_stderr, running)
    if wanted.dry_run or not has_live_terminal():
        return ProgressSinks(ReplicationLines(), running)
    from backupd.replicate.cli.replicate_live import ReplicationDisplay  # only a terminal needs rich

    display = ReplicationDisplay()
    held.callback(display.close)
    return ProgressSinks(display, running)


def _begun(
    context: PoolContext,
    replica: ReplicaSettings,
    wanted: ReplicationOptions,
    observer: Observer,
    held: ExitStack,
    connect: Connect,
) -> tuple[ReplicationContext, RemotePool]:
    """Connects, until `held` ends. Over a connection that the other server opened, this program itself limits the bandwidth."""
    far = held.enter_context(connect(lambda: None))
    replication = ReplicationContext(
        context.config,
        context.pool,
        context.catalogue,
        replica,
        context.clock.now(),
        connect,
        observer,
        confined=_is_confined(
            may_do_without=context.config.backup.confine == "never" and not (replica.folder is None or wanted.initial_copy)
        ),
        seconds_left=(wanted.end - context.clock.now()).total_seconds() if wanted.end else None,
    )
    if replica.is_pushed and not wanted.initial_copy:
        buckets = replica_buckets(context.config, context.pool, replica)
        far.pace = BudgetPace(buckets, replication.cancellation.sleep, lambda: bool(replication.cancellation))
    return replication, far


def _lock_and_reconcile(
    context: PoolContext, replica: ReplicaSettings, held: ExitStack, notice: Callable[[str], None], *, damaged: bool
) -> None:
    """Takes the locks of a replication until `held` ends, and reconciles the catalogue. Raises LockHeld, PoolUnusable."""
    since = format_time(context.clock.now())
    held.enter_context(take_lock(context.pool.locks / f"replicate-{replica.name}", "backupd replicate", since))
    if damaged:  # recorded damage is deleted with the copy
        from backupd.proof.after_crash import read_before_waiting  # a tenth of all imports of this program

        read_before_waiting(context, notice, Cancellation())
        held.enter_context(take_lock(context.pool.locks / VERIFY_LOCK, "backupd replicate --damaged", since))
    ensure_reserve(context.pool.path)
    if done := reconcile(context.pool, context.catalogue, since):
        notice(done.sentence)


def _require_listed(replica: ReplicaSettings, hosts: tuple[str, ...], listed: Collection[str]) -> None:
    """Raises UsageError if one of the named hosts cannot be fetched, RemoteRefused if none can."""
    if unlisted := next((host for host in hosts if host not in listed), None):
        raise UsageError(
            f"{replica.name} does not list the host {unlisted}, or is not configured to fetch it",
            "check `hosts` of the replica, and the name of the host",
        )
    if not listed:
        hint = "check `hosts` of the replica, --host in authorized_keys on the other server, and that the other server has backups"
        raise RemoteRefused("the other pool lists no host that this replica fetches", hint)


def _session(
    before: ReplicaSession | None,
    times: tuple[datetime, datetime],
    pool: str,
    plan: ReplicationPlan,
    listed: Mapping[str, RemoteHost],
    summary: ReplicationSummary,
    begun: float,
) -> ReplicaSession:
    """Returns the record of a replication of all hosts. `times`: of its start and end; `listed`: without hosts that the other pool
    fetches from here.
    """
    why = {host_fetches.host: obstacle_words(host_fetches) for host_fetches in plan.unwanted} | {
        host_failed.host: host_failed.error for host_failed in summary.failed
    }
    here = {fetched.host: fetched.name for fetched in sorted(summary.fetched, key=lambda fetched: fetched.name)}
    behind = [
        HostBehind(
            host,
            max((backup.name for backup in listed[host].backups), default=None) if host in listed else None,
            here.get(host) or plan.common.get(host),
            error,
        )
        for host, error in sorted(why.items())
    ]
    seconds = round(time.monotonic() - begun, 3)
    at = before.at if summary.out_of_time and before else None if summary.out_of_time else times[0]
    began = [parse_backup_name(max(backup.name for backup in host.backups)) for host in listed.values() if host.backups]
    newest = max((moment for moment in began if moment and moment <= latest(times[1])), default=None)
    counts = len(listed), len(summary.fetched), summary.bytes, seconds
    return ReplicaSession(times[1], at, "", pool, *counts, newest, tuple(behind), plan.gone)


def _is_confined(*, may_do_without: bool) -> bool:
    """Returns True if `btrfs receive` runs in a cell, which it does if possible. Raises OperatorError if it is impossible and
    required: on an attacker's disk, names can lead out of the folder just as in a stream from another machine.
    """
    is_known = seccomp_filter(receives=True) is not None
    if is_known and shutil.which(PROGRAM, path=environment()["PATH"]):
        return True
    if not may_do_without:
        missing = "bubblewrap is not installed" if is_known else f"the system calls of {platform.machine()} are not known here"
        hint = "`apt install bubblewrap`" if is_known else "fetch on a machine with another processor type"
        raise OperatorError(f"backups of other pools are received by a confined process, but {missing}", hint)
    return False


def _say_plan(replica: ReplicaSettings, plan: ReplicationPlan, as_json: bool) -> dict[str, Any]:
    if not as_json:
        for host in plan.hosts:
            for fetch in host.fetches:
                how = f"as a difference to {fetch.parent.name}" if fetch.parent else "completely"
                how += ", replacing the damaged copy" if fetch.again else ""
                print_wrapped(f"{host.host}@{fetch.backup.name}: would be fetched, {how}")
        for host in plan.obstacles:
            print_wrapped(f"{host.host}: would not be fetched: {printable(obstacle_words(host))}")
        print_wrapped(f"{replica.name}: {counted(plan.count, 'backup')} would be fetched, of {plan.total} in the other pool")
    return {
        "replica": replica.name,
        "there": plan.total,
        "fetches": [
            {"host": host.host, "backup": fetch.backup.name, "parent": fetch.parent.name if fetch.parent else None}
            for host in plan.hosts
            for fetch in host.fetches
        ],
        "obstacles": [{"host": host.host, "code": host.obstacle, "reason": obstacle_words(host)} for host in plan.obstacles],
    }


def _report(summary: ReplicationSummary, cancellation: Cancellation, as_json: bool) -> dict[str, Any]:
    for failed in summary.failed:
        print_error(OperatorError(f"{failed.host}: {failed.error}"))
    if not as_json:
        more = left_words(summary.planned - len(summary.fetched), out_of_time=summary.out_of_time)
        print_wrapped(f"{summary.replica}: {counted(len(summary.fetched), 'backup')} fetched, {format_size(summary.bytes)}{more}")
    status = int(Exit.ATTENTION) if summary.failed else int(Exit.OK)
    return {
        "replica": summary.replica,
        "planned": summary.planned,
        "bytes": summary.bytes,
        "fetched": [
            {
                "host": fetched.host,
                "backup": fetched.name,
                "parent": fetched.parent,
                "bytes": fetched.bytes,
                "duration": round(fetched.seconds, 3),
            }
            for fetched in summary.fetched
        ],
        "failed": [{"host": host_failed.host, "error": host_failed.error} for host_failed in summary.failed],
        "status": cancellation.exit_status(status),
    }
