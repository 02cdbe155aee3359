"""`backupd replicate`: backups of another pool fetched into this one."""

import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from backupd.cli.context import completing_config, dry_run_option, opened, pass_context
from backupd.cli.copies import chosen_copies, closing_time, is_copy_due, left_words, report_unreached
from backupd.cli.push_to import push_to
from backupd.cli.replicate_live import ReplicationDisplay, fetched_line, plan_line
from backupd.cli.seed_to import make_seed, parse_part_size
from backupd.replicate.far_pool import FarHost, FarPoolMissing, connected, replica_buckets, seed_command, send_command
from backupd.replicate.outcome import (
    Connect,
    Fetched,
    HostFailed,
    ReplicationContext,
    ReplicationEvent,
    ReplicationPlan,
    ReplicationProgress,
    ReplicationSummary,
)
from backupd.replicate.planning import make_plan
from backupd.replicate.run import replicate
from backupd.replicate.running import RunningRecord
from backupd.replicate.seed import unusable_hosts
from backupd.replicate.wire import Refused
from backupd.repo.context import PoolContext
from backupd.repo.publish import tell_copies
from backupd.repo.reconcile import reconcile
from backupd.rsync.allowed_calls import seccomp_filter
from backupd.rsync.bandwidth import BudgetPace
from backupd.rsync.confined import PROGRAM
from backupd.run.last_written import read_before_waiting
from btrkeep.catalogue import CatalogueBusy, CatalogueUnusable
from btrkeep.cli import complain, echo_json, json_option
from btrkeep.cli.parsed import Parsed
from btrkeep.cli.progress import SaidOnce, has_live_terminal, notices_on_stderr, prose, say_wait
from btrkeep.config.model import PushSettings, ReplicaSettings
from btrkeep.decisions.copies import REPLICA, HostBehind, ReplicaSession, note_session, read_session
from btrkeep.decisions.due import latest
from btrkeep.decisions.replication import obstacle_words
from btrkeep.errors import Exit, LockHeld, OperatorError, UsageError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.cancellation import Cancellation
from btrkeep.process.programs import environment
from btrkeep.process.progress import Notice, ProgressSinks, Waiting
from btrkeep.units import counted, format_size, format_time, parse_backup_name, printable


def complete_replica(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The configured replicas and servers that are sent to, for a completion."""
    config = completing_config(ctx)
    return [name for name in (*config.replicas, *config.pushes) if name.startswith(incomplete)] if config else []


@click.command("replicate")
@click.argument("name", required=False, shell_complete=complete_replica)
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--due", is_flag=True, help="Only replicas whose `every` has passed, within their window.")
@click.option("--damaged", is_flag=True, help="Fetch copies again that are damaged here; each takes the place of the damaged one.")
@dry_run_option("what would be fetched")
@click.option(
    "--seed-to",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="On the first server: write the newest backup of each host to a disk that is carried to the second one.",
)
@click.option(
    "--part-size",
    type=Parsed("size", parse_part_size),
    default="2GiB",
    show_default=True,
    metavar="SIZE",
    help="The length of the files of --seed-to.",
)
@click.option(
    "--seed-from", type=click.Path(path_type=Path), metavar="FOLDER", help="On the second server: fetch from such a disk instead."
)
@json_option
@pass_context
def command(
    ctx: click.Context,
    name: str | None,
    hosts: tuple[str, ...],
    due: bool,
    damaged: bool,
    dry_run: bool,
    seed_to: Path | None,
    part_size: int,
    seed_from: Path | None,
    as_json: bool,
) -> int:
    """Fetch the backups of another pool, or send this one's to a server that cannot reach it: of the replica or [push] section
    NAME, or of all that are configured, and of all hosts or those named.

    What comes are whole backups, as differences to what is here already; they are browsed, restored and compared like this pool's
    own. Deletions, ends of holds and new names do not come along. What was cut off leaves nothing behind and is fetched again.

    The first copies can be carried on a disk: on the first server `replicate --seed-to FOLDER NAME`, NAME being what it calls the
    copy (`send-only --replica NAME`), on the second one `replicate NAME --seed-from FOLDER`. Both go on where they were cut off.

    With --damaged what `backupd damaged` lists here comes again, as a difference to a copy that is not damaged, or as a whole. A
    copy that is being restored from is left for the next time.

    It waits while backups are made, expired or balanced here. Exit status 0: all is here; 1: some host could not be fetched, or a
    pool that comes and goes was away for longer than `max_age`; 3: another replication of it is running; 4: this pool is unusable.
    """
    status = int(Exit.OK)
    if (seed_to or seed_from) and (due or (seed_to and seed_from)):
        raise UsageError("--seed-to, --seed-from and --due are for one each")
    if damaged and (seed_to or seed_from or due):
        raise UsageError("--damaged is for itself", "`backupd replicate NAME [HOST...] --damaged`")
    with opened(ctx, writes=not dry_run) as site:
        if seed_to:
            return make_seed(site, seed_to, name, hosts, part_size, dry_run=dry_run, as_json=as_json)
        if seed_from:
            if name is None:
                raise UsageError("say of which replica it is the seed", "`replicate NAME --seed-from FOLDER`")
            found = [fetch_one(site, chosen_replicas(site, name)[0], hosts, None, seed_from, dry_run=dry_run, as_json=as_json)]
            if as_json:
                echo_json(found)
            return int(found[0]["status"] if not dry_run else Exit.OK)
        found = []
        for copy in chosen_replicas(site, name) if damaged else _chosen(site, name, is_asked=not due):
            if due and not is_copy_due(site, copy):
                continue
            try:
                if isinstance(copy, PushSettings):
                    found.append(push_to(site, copy, hosts, dry_run=dry_run, as_json=as_json))
                else:
                    end = closing_time(site, copy) if due else None
                    found.append(fetch_one(site, copy, hosts, end, damaged=damaged, dry_run=dry_run, as_json=as_json))
            except LockHeld as error:
                complain(error)
                found.append({copy.kind: copy.name, "error": error.message, "status": error.exit_code})
            except (CatalogueBusy, CatalogueUnusable, UsageError):
                raise
            except OperatorError as error:  # the others are fetched all the same
                failed = report_unreached(site, copy, error, is_away=isinstance(error, FarPoolMissing), dry_run=dry_run)
                found.append({copy.kind: copy.name, "error": error.message, "status": int(error.exit_code if failed else Exit.OK)})
            if found[-1].get("status", 0) >= Exit.INTERRUPTED:
                break
        if as_json:
            echo_json(found)
    for one in found:
        status = max(status, one.get("status", 0))
    return status


def _chosen(site: PoolContext, name: str | None, *, is_asked: bool) -> list[ReplicaSettings | PushSettings]:
    """Returns the section with that name, or all that this side can update. Raises UsageError."""
    pushes = site.config.pushes
    if name is not None and name in pushes:
        return [pushes[name]]
    found = chosen_replicas(site, name, is_asked=is_asked and not pushes)
    if name and found[0].is_pushed:
        raise UsageError(f"{name} is sent from there, and nobody is asked from here", "`backupd replicate` on that server sends it")
    return [*(one for one in found if not one.is_pushed), *(pushes.values() if name is None else ())]


def chosen_replicas(site: PoolContext, name: str | None, *, is_asked: bool = True) -> list[ReplicaSettings]:
    """Returns the replica of that name, or all. Raises UsageError as `chosen_copies` does."""
    return chosen_copies(site, REPLICA, site.config.replicas, name, is_asked=is_asked)


def fetch_one(
    site: PoolContext,
    replica: ReplicaSettings,
    hosts: tuple[str, ...],
    end: datetime | None,
    seed: Path | None = None,
    *,
    connect: Connect | None = None,
    damaged: bool = False,
    dry_run: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Runs one replication, which begins no further backup after `end`; from the folder `seed`, if given, instead of the other
    pool.

    `connect` makes the connections, if they differ from the configuration. `damaged`: fetches damaged copies again.
    """
    buckets = [] if dry_run or seed else replica_buckets(site.config, site.pool, replica)
    if seed:  # its parts are streams
        replica = replace(replica, engine="send")
    command = seed_command(seed) if seed else send_command(site.config, replica, buckets)
    is_begun_there = connect is not None
    connect = connect or (lambda look: connected(command, look))
    running = RunningRecord(site.catalogue, replica.name, site.clock.now())
    display = ReplicationDisplay() if has_live_terminal() and not as_json and not dry_run else None
    observer: ProgressSinks[ReplicationEvent] = ProgressSinks(notices_on_stderr if as_json else display or _Lines(), running)
    with ExitStack() as held:
        if display:
            held.callback(display.close)
        if not dry_run:
            _lock_and_reconcile(site, replica, held, observer.notice, damaged=damaged)
        far = held.enter_context(connect(lambda: None))
        context = ReplicationContext(
            site.config,
            site.pool,
            site.catalogue,
            replica,
            site.clock.now(),
            connect,
            observer,
            confined=_is_confined(is_foreign=bool(replica.folder is None or seed)),
            seconds_left=(end - site.clock.now()).total_seconds() if end else None,
        )
        if is_begun_there:  # no program of ours passes the stream on
            far.pace = BudgetPace(buckets, context.cancellation.sleep, lambda: bool(context.cancellation))
        plan, listed = make_plan(context, far, hosts, damaged=damaged)
        _require_listed(replica, hosts, listed)
        without = {host: why for host, why in unusable_hosts(seed).items() if not hosts or host in hosts} if seed else {}
        if dry_run:
            for host, why in without.items():
                observer.notice(f"{host}: {why}")
            return _say_plan(replica, plan, as_json)
        begun = time.monotonic()
        try:
            with context.cancellation.listening():
                summary = replicate(context, plan, listed, far)
            summary.failed += [HostFailed(host, why) for host, why in without.items()]
        finally:
            running.end()
            tell_copies(site.pool, site.catalogue)
        if not summary.cancelled and not hosts and not seed:  # how current a seed is the next fetch tells
            before = read_session(site.catalogue, replica.name)
            session = _session(before, (context.now, site.clock.now()), far.id, plan, listed, summary, begun)
            note_session(site.catalogue, replica.name, session)
    return _report(summary, context.cancellation, as_json)


def _lock_and_reconcile(
    site: PoolContext, replica: ReplicaSettings, held: ExitStack, notice: Callable[[str], None], *, damaged: bool
) -> None:
    """Takes the locks of a replication until `held` ends, and brings the catalogue up to date. Raises LockHeld, PoolUnusable."""
    since = format_time(site.clock.now())
    held.enter_context(take_lock(site.pool.locks / f"replicate-{replica.name}", "backupd replicate", since))
    if damaged:  # what is known of a copy goes with it
        read_before_waiting(site, notice, Cancellation())
        held.enter_context(take_lock(site.pool.locks / VERIFY_LOCK, "backupd replicate --damaged", since))
    ensure_reserve(site.pool.path)
    if done := reconcile(site.pool, site.catalogue, since):
        notice(done.sentence)


def _require_listed(replica: ReplicaSettings, hosts: tuple[str, ...], listed: Mapping[str, FarHost]) -> None:
    """Raises UsageError if one of the named hosts cannot be fetched, Refused if none can."""
    if unlisted := next((host for host in hosts if host not in listed), None):
        raise UsageError(f"{replica.name} lists no host {unlisted}, or is not to fetch it", "`hosts` of the replica chooses")
    if not listed:
        hint = "see `hosts` of the replica, --host in that server's authorized_keys, and whether it has backups"
        raise Refused("the other pool lists no host that is to be fetched", hint)


def _session(
    before: ReplicaSession | None,
    times: tuple[datetime, datetime],
    pool: str,
    plan: ReplicationPlan,
    listed: Mapping[str, FarHost],
    summary: ReplicationSummary,
    begun: float,
) -> ReplicaSession:
    """Returns the record of a replication of all hosts. `times`: when it began and ended."""
    why = {one.host: obstacle_words(one) for one in plan.unwanted} | {one.host: one.error for one in summary.failed}
    here = {one.host: one.name for one in sorted(summary.fetched, key=lambda one: one.name)}
    behind = [
        HostBehind(
            host,
            max((one.name for one in listed[host].backups), default=None) if host in listed else None,
            here.get(host) or plan.common.get(host),
            error,
        )
        for host, error in sorted(why.items())
    ]
    seconds = round(time.monotonic() - begun, 3)
    at = before.at if summary.out_of_time and before else None if summary.out_of_time else times[0]
    began = [parse_backup_name(max(one.name for one in host.backups)) for host in listed.values() if host.backups]
    newest = max((one for one in began if one and one <= latest(times[1])), default=None)
    counts = len(listed), len(summary.fetched), summary.bytes, seconds
    return ReplicaSession(times[1], at, "", pool, *counts, newest, tuple(behind), plan.gone)


def _is_confined(*, is_foreign: bool) -> bool:
    """Returns True if `btrfs receive` must run in a cell: always for streams from another machine. Raises OperatorError if it
    cannot.
    """
    is_known = seccomp_filter(receives=True) is not None
    if is_known and shutil.which(PROGRAM, path=environment()["PATH"]):
        return True
    if is_foreign:
        missing = "bubblewrap is not installed" if is_known else f"the system calls of {platform.machine()} are not known here"
        hint = "apt install bubblewrap" if is_known else "fetch on a machine of another kind, or from a folder"
        raise OperatorError(f"what another machine sends is received in a cell, and {missing}", hint)
    return False


def _say_plan(replica: ReplicaSettings, plan: ReplicationPlan, as_json: bool) -> dict[str, Any]:
    if not as_json:
        for host in plan.hosts:
            for fetch in host.fetches:
                how = f"as a difference to {fetch.parent.name}" if fetch.parent else "all of it"
                how += ", in the place of the damaged copy" if fetch.again else ""
                prose(f"{host.host}@{fetch.backup.name}: would be fetched, {how}")
        for host in plan.obstacles:
            prose(f"{host.host}: would not be fetched: {printable(obstacle_words(host))}")
        prose(f"{replica.name}: {counted(plan.count, 'backup')} of {plan.total} there would be fetched")
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
        complain(OperatorError(f"{failed.host}: {failed.error}"))
    if not as_json:
        more = left_words(summary.planned - len(summary.fetched), out_of_time=summary.out_of_time)
        prose(f"{summary.replica}: {counted(len(summary.fetched), 'backup')} fetched, {format_size(summary.bytes)}{more}")
    status = int(Exit.ATTENTION) if summary.failed else int(Exit.OK)
    return {
        "replica": summary.replica,
        "planned": summary.planned,
        "bytes": summary.bytes,
        "fetched": [
            {"host": one.host, "backup": one.name, "parent": one.parent, "bytes": one.bytes, "duration": round(one.seconds, 3)}
            for one in summary.fetched
        ],
        "failed": [{"host": one.host, "error": one.error} for one in summary.failed],
        "status": cancellation.exit_status(status),
    }


class _Lines:
    """A line for each backup, where there is no terminal."""

    def __init__(self) -> None:
        self._waits = SaidOnce(say_wait)

    def __call__(self, event: ReplicationEvent) -> None:
        match event:
            case ReplicationPlan():
                if event.count:
                    prose(plan_line(event))
            case Fetched():
                prose(fetched_line(event))
            case Notice():
                prose(printable(event.text), err=True)
            case Waiting():
                self._waits(event.why)
            case HostFailed() | ReplicationProgress():
                pass  # a failure is told at the end
