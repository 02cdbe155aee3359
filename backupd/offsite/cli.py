"""`backupd offsite`: sends the newest backups to restic repositories, and lists and checks their contents."""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from backupd.cli.command_context import completing_config, dry_run_option, opened, pass_context
from backupd.cli.copy_commands import chosen_copies, closing_time, is_copy_due, left_words, report_unreached
from backupd.expire.report import expiry_words, skip_words
from backupd.offsite.offsite_run import OffsiteEvent, OffsitePlan, OffsiteProgress, OffsiteRun, OffsiteSummary, Sent
from backupd.offsite.repository import KnownRepository, check_sample, create_repository, note_size, require_repository, snapshots
from backupd.offsite.restic import Restic, restic_of
from backupd.repo.pool_context import PoolContext
from btrkeep.cli import json_option, print_answer, print_error, print_listing
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.listings import Column
from btrkeep.cli.output import ProgressLine, WithoutRepeats, notices_on_stderr, print_wait, print_wrapped, survive_closed_stdout
from btrkeep.config.config_model import OffsiteSettings
from btrkeep.decisions.copy_status import OFFSITE, HostBehind, ReplicaSession, note_session, read_session
from btrkeep.decisions.offsite import OffsiteSnapshot
from btrkeep.decisions.repeated import AttemptOutcome, Step, noted_attempt
from btrkeep.decisions.safety_limits import Forced
from btrkeep.errors import Exit, OperatorError
from btrkeep.pool.locks import take_lock
from btrkeep.process.progress import Cancellation, Cancelled, Notice, ProgressSinks, Waiting, signal_status
from btrkeep.units import counted, format_duration, format_size, format_time, parse_backup_name, parse_share, printable


def complete_offsite(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the name of a configured repository."""
    config = completing_config(ctx)
    return [name for name in config.offsites if name.startswith(incomplete)] if config else []


_name = click.argument("name", shell_complete=complete_offsite)
_optional_name = click.argument("name", required=False, shell_complete=complete_offsite)
_hosts = click.argument("hosts", nargs=-1, metavar="[HOST]...")


def _share(text: str) -> str:
    """Parses a share for restic. Raises ValueError."""
    if not parse_share(text):
        raise ValueError(f"{text!r} is zero: write it like 1%")
    return text


@click.group("offsite", no_args_is_help=True)
def command() -> None:
    """Send the newest backups to restic repositories, on object storage or any other storage, and list the backups there.

    docs/offsite.rst has complete instructions, including how to restore with only the repository.
    """


@command.command("init", short_help="create a repository")
@_name
@json_option
@click.pass_context
def init_command(ctx: click.Context, name: str, as_json: bool) -> int:
    """Create the repository NAME of the configuration."""
    with opened(ctx) as context:
        restic = _restic(context, _chosen(context, name)[0])
        create_repository(restic)
    text = [f"{name}: created. Keep its password in another building: without it the repository cannot be read"]
    return print_answer({"offsite": name, "made": True}, text, as_json=as_json)


@command.command("run", short_help="send the newest backup of each host")
@_optional_name
@_hosts
@click.option("--due", is_flag=True, help="Only repositories that are due (`every`), within their window.")
@dry_run_option("which backups would be sent and removed")
@click.option(
    "--force",
    multiple=True,
    metavar="WHAT",
    help="Override a safety limit for removals: `pool`, `hosts`, `clock`, or the name of a host. May be given several times.",
)
@json_option
@pass_context
def run_command(
    ctx: click.Context,
    name: str | None,
    hosts: tuple[str, ...],
    due: bool,
    dry_run: bool,
    force: tuple[str, ...],
    as_json: bool,
) -> int:
    """Send the newest complete backup of each HOST, or of all hosts, to the repository NAME, or to all repositories.

    Backups that are already in the repository are not sent again. If [offsite.NAME.retention] is configured, backups that it does
    not keep are then removed from the repository. Otherwise nothing is removed, and the key needs no permission to delete.

    It waits while a backup, an expiry or a balance is running here. Exit status 0: all backups are in the repository; 1: a host
    could not be sent, or the repository could not be reached; 3: another run sends to it; 4: this pool is unusable.
    """
    results = []
    survive_closed_stdout()
    with opened(ctx) as context:
        for settings in _chosen(context, name, is_asked=not due):
            if due and not is_copy_due(context, settings):
                continue
            end = closing_time(context, settings) if due else None
            forced = Forced.parse(force, {*context.config.hosts, *context.catalogue.hosts()})
            try:
                results.append(_send_to_repository(context, settings, hosts, end, forced, dry_run=dry_run, as_json=as_json))
            except OperatorError as error:
                if error.exit_code == Exit.LOCKED:
                    raise
                report_unreached(context, settings, error, dry_run=dry_run)
                results.append({"offsite": settings.name, "error": error.message, "status": int(Exit.ATTENTION)})
        print_answer(results, (), as_json=as_json)
    is_faulty = name is None and OFFSITE in context.config.faulty_sections
    return max((result["status"] for result in results), default=int(Exit.ATTENTION if is_faulty else Exit.OK))


@command.command("list", short_help="list this pool's backups in a repository")
@_optional_name
@_hosts
@json_option
@click.pass_context
def list_command(ctx: click.Context, name: str | None, hosts: tuple[str, ...], as_json: bool) -> int:
    """List this pool's backups in the repository NAME, or in all repositories."""
    rows: list[_ListedBackup] = []
    with opened(ctx) as context:
        for settings in _chosen(context, name):
            restic = _restic(context, settings)
            require_repository(restic)
            in_repository = snapshots(restic, context.pool)
            incomplete = KnownRepository(context.catalogue, settings.name).incomplete(in_repository)
            for snapshot in sorted(in_repository, key=lambda snapshot: (snapshot.host, snapshot.name)):
                if hosts and snapshot.host not in hosts:
                    continue
                rows.append(_ListedBackup(settings.name, snapshot, snapshot.id not in incomplete))
    print_listing(_COLUMNS, rows, as_json=as_json, empty="no repository has a backup of this pool")
    return Exit.OK


class _ListedBackup(NamedTuple):
    """A backup in a repository, and whether it is complete."""

    offsite: str
    snapshot: OffsiteSnapshot
    whole: bool


def _remarks(row: _ListedBackup) -> str:
    remarks = [
        "" if row.whole else "incomplete",
        f"stored as {printable(row.snapshot.label)}" if row.snapshot.label else "",
        "another machine had this name" if row.snapshot.former else "",
    ]
    return ", ".join(filter(None, remarks))


_COLUMNS: tuple[Column[_ListedBackup], ...] = (
    Column("offsite", lambda row: row.offsite, "OFFSITE"),
    Column("host", lambda row: row.snapshot.host, "HOST"),
    Column("backup", lambda row: row.snapshot.name, "BACKUP"),
    Column("snapshot", lambda row: row.snapshot.id, "SNAPSHOT", lambda text: text[:8]),
    Column("whole", lambda row: row.whole),
    Column("name_there", lambda row: row.snapshot.label or row.snapshot.host),
    Column("former", lambda row: row.snapshot.former),
    Column(header="REMARK", cell=_remarks),
)


@command.command("check", short_help="read a part of the repository, and compare it")
@_optional_name
@click.option(
    "--sample",
    type=ParsedType("share", _share),
    default="1%",
    show_default=True,
    metavar="P%",
    help="The share of the repository's data to read back.",
)
@click.option(
    "--files",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="How many files to restore and compare with the pool's.",
)
@json_option
@click.pass_context
def check_command(ctx: click.Context, name: str | None, sample: str, files: int, as_json: bool) -> int:
    """Check the repository NAME, or all repositories. restic reads a share of the data, and some files of a backup are restored and
    compared with those in the pool.

    Exit status 0: no errors; 1: an error was found; 3: a run sends to the repository.
    """
    status, results = int(Exit.OK), []
    survive_closed_stdout()
    cancellation = Cancellation()
    with opened(ctx) as context, cancellation.listening():
        for settings in _chosen(context, name):
            restic = replace(_restic(context, settings), poll=cancellation.raise_if_cancelled)
            result: dict[str, Any] = {"offsite": settings.name, "read": sample, "files": 0, "backup": None, "error": None}
            try:
                now = context.clock.now()
                with (
                    take_lock(_lock(context, settings), "backupd offsite check", format_time(now)),
                    noted_attempt(context.catalogue, Step.OFFSITE_CHECK, now, settings.name) as attempt,
                ):
                    require_repository(restic)
                    done = check_sample(restic, context.pool, sample, files, cancellation.raise_if_cancelled)
                    attempt.end(AttemptOutcome.DONE)
                    note_size(restic, context.catalogue)
                result |= {"files": done.files, "backup": f"{done.host}@{done.name}" if done.host else None}
                if not as_json:
                    compared = f"; {counted(done.files, 'file')} of {result['backup']} equal to the pool's" if done.host else ""
                    print_wrapped(f"{settings.name}: no errors; {sample} of the data was read{compared}")
            except Cancelled:
                return signal_status(cancellation.signal)
            except OperatorError as error:
                if error.exit_code == Exit.LOCKED:
                    raise
                result["error"], status = error.message, int(Exit.ATTENTION)
                print_error(OperatorError(f"{settings.name}: {error.message}", error.hint))
            results.append(result)
    print_answer(results, (), as_json=as_json)
    return status


def _chosen(context: PoolContext, name: str | None, *, is_asked: bool = True) -> list[OffsiteSettings]:
    return chosen_copies(context, OFFSITE, context.config.offsites, name, is_asked=is_asked)


def _restic(context: PoolContext, settings: OffsiteSettings) -> Restic:
    return restic_of(settings, context.config.pool.state, context.pool.path)


def _lock(context: PoolContext, settings: OffsiteSettings) -> Path:
    """Returns the lock of the repository: restic's check needs it exclusively, and a run would fail during it."""
    return context.pool.locks / f"offsite-{settings.name}"


def _send_to_repository(
    context: PoolContext,
    settings: OffsiteSettings,
    hosts: tuple[str, ...],
    end: datetime | None,
    forced: Forced,
    *,
    dry_run: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Sends to one repository; starts no further backup after `end`."""
    restic = _restic(context, settings)
    require_repository(restic)
    sinks: ProgressSinks[OffsiteEvent] = ProgressSinks(notices_on_stderr if as_json else _Lines())
    left = (end - context.clock.now()).total_seconds() if end else None
    run = OffsiteRun(context.config, context.pool, context.catalogue, settings, restic, context.clock.now(), sinks, left)
    if dry_run:
        return _say_plan(run, hosts, forced, as_json)
    begun = time.monotonic()
    with (
        take_lock(_lock(context, settings), "backupd offsite", format_time(context.clock.now())),
        run.cancellation.listening(),
    ):
        try:
            summary, in_repository, sendings = run.plan(hosts)
        except Cancelled:
            return _report(OffsiteSummary(settings.name, cancelled=True), run.cancellation, as_json)
        run.send(summary, in_repository, sendings)
        try:
            run.remove(summary, forced)
        except OperatorError as error:  # the backups were sent anyway
            summary.remove_error = error
        if summary.sent and not summary.cancelled:
            with suppress(Cancelled):
                note_size(run.restic, context.catalogue)
    if not hosts and not summary.cancelled:
        _note(context, settings, summary, begun)
    return _report(summary, run.cancellation, as_json)


def _note(context: PoolContext, settings: OffsiteSettings, summary: OffsiteSummary, begun: float) -> None:
    before, now = read_session(context.catalogue, settings.name, OFFSITE), context.clock.now()
    newest = KnownRepository(context.catalogue, settings.name).newest
    behind = tuple(
        HostBehind(host_failed.host, newest.get(host_failed.host), None, host_failed.error) for host_failed in summary.failed
    )
    at = before.at if summary.out_of_time and before else None if summary.out_of_time else now
    error = f"no backup was removed: {summary.remove_error.message}" if summary.remove_error else ""
    last = parse_backup_name(max(newest.values())) if newest else None
    seconds = round(time.monotonic() - begun, 3)
    session = ReplicaSession(
        now, at, error, context.pool.id, summary.hosts, len(summary.sent), summary.bytes, seconds, last, behind
    )
    note_session(context.catalogue, settings.name, session, OFFSITE)


def _say_plan(run: OffsiteRun, hosts: tuple[str, ...], forced: Forced, as_json: bool) -> dict[str, Any]:
    summary, in_repository, sendings = run.plan(hosts)
    going = run.removal(in_repository, forced).going if run.settings.retention else ()
    for failed in summary.failed:
        print_error(OperatorError(f"{failed.host}: {failed.error}"))
    if not as_json:
        for host, name in sendings:
            print_wrapped(f"{host}@{name}: would be sent")
        for snapshot in going:
            print_wrapped(f"{snapshot.host}@{snapshot.name}: would be removed from the repository")
        print_wrapped(f"{summary.offsite}: {counted(len(sendings), 'backup')} of {counted(summary.hosts, 'host')} would be sent")
    return {
        "offsite": summary.offsite,
        "sends": [{"host": host, "backup": name} for host, name in sendings],
        "removes": [{"host": snapshot.host, "backup": snapshot.name} for snapshot in going],
        "status": int(Exit.OK),
    }


def _report(summary: OffsiteSummary, cancellation: Cancellation, as_json: bool) -> dict[str, Any]:
    for failed in summary.failed:
        print_error(OperatorError(f"{failed.host}: {failed.error}"))
    guarded, command = summary.removal.guarded if summary.removal else None, f"offsite run {summary.offsite}"
    kept_back = sorted(guarded.skipped_hosts.items()) if guarded else []
    if guarded and guarded.stop:
        print_error(OperatorError(f"{summary.offsite}: no backup was removed: {expiry_words(guarded.stop, command)}"))
    if summary.doubt:
        why = expiry_words(summary.doubt, command)
        print_error(
            OperatorError(f"{summary.offsite}: no backup was removed: {why}", "`timedatectl` shows the clock of this server")
        )
    if summary.remove_error:
        error = summary.remove_error
        print_error(OperatorError(f"{summary.offsite}: no backup was removed: {error.message}", error.hint))
    for host, share in kept_back:
        print_error(OperatorError(f"{host}: no backup was removed: {skip_words(host, share, command)}"))
    if not as_json:
        more = left_words(summary.planned - len(summary.sent), out_of_time=summary.out_of_time)
        gone = f"; {counted(summary.removed, 'backup')} removed" if summary.removed else ""
        print_wrapped(
            f"{summary.offsite}: {counted(len(summary.sent), 'backup')} sent, {format_size(summary.bytes)} added{gone}{more}"
        )
    wrong = summary.failed or kept_back or summary.doubt or summary.remove_error or (guarded and guarded.stop)
    status = int(Exit.ATTENTION if wrong else Exit.OK)
    return {
        "offsite": summary.offsite,
        "planned": summary.planned,
        "bytes": summary.bytes,
        "sent": [
            {"host": sent.host, "backup": sent.name, "files": sent.files, "bytes": sent.bytes, "duration": round(sent.seconds, 3)}
            for sent in summary.sent
        ],
        "removed": summary.removed,
        "failed": [{"host": host_failed.host, "error": host_failed.error} for host_failed in summary.failed],
        "error": summary.remove_error.message if summary.remove_error else None,
        "status": cancellation.exit_status(status),
    }


class _Lines:
    """Prints a line for each backup, and on a terminal the progress."""

    def __init__(self) -> None:
        self._line, self._waits = ProgressLine(), WithoutRepeats(print_wait)

    def __call__(self, event: OffsiteEvent) -> None:
        if not isinstance(event, OffsiteProgress):
            self._line.clear()
        match event:
            case OffsitePlan():
                if event.sendings:
                    print_wrapped(f"{counted(len(event.sendings), 'backup')} to send")
            case Sent():
                took = format_duration(event.seconds)
                print_wrapped(
                    f"{event.host}@{event.name}: {counted(event.files, 'file')}, {format_size(event.bytes)} added in {took}"
                )
            case OffsiteProgress():
                words = f"{printable(event.host)}: {event.share:.0%}, {format_size(event.bytes)} read"
                self._line.go_on(lambda: words)
            case Notice():
                print_wrapped(printable(event.text), err=True)
            case Waiting():
                self._waits(event.why)
