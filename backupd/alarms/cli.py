"""`backupd notify`: sends notifications of new problems."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any

import click

from backupd.alarms.alarm_memory import AlarmMemory, notify_lock
from backupd.alarms.alarm_messages import summarised
from backupd.alarms.notifier import (
    NotifyReport,
    notify,
    notify_failure,
    notify_test,
    read_failure,
    read_live_status,
    require_own_catalogue,
    validate_unit,
)
from backupd.alarms.silencing import NewSilence, require_subjects, silence
from backupd.cli.command_context import (
    complain_of_faults,
    complete_group,
    complete_host,
    load_reporting,
    opened,
    pass_context,
    present,
)
from backupd.cli.names import DAY, expand_hosts, moment_of
from backupd.health.pool_facts import read_pool_facts
from backupd.health.status_report import StatusReport, opened_catalogue, status_without_catalogue, with_problem
from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.catalogue.dashboard_copy import report_problem
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.output import print_wrapped
from btrkeep.config import ReportingConfig, page
from btrkeep.decisions.silences import PROBLEM_KINDS, read_silences, silence_object, silence_words
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.process.proc import login_name
from btrkeep.process.progress import is_service, tell
from btrkeep.units import counted, format_time, local_time, printable

_PATIENCE = 10.0  # seconds; a catalogue that is locked for longer is a reason for a message
_BEGAN = "notify_began"


@click.command("notify")
@click.option("--failed", "unit", metavar="UNIT", help="Report that this systemd unit has failed, with its last lines of output.")
@click.option("--digest", is_flag=True, help="Send the summary of the day now, whether it is due or not.")
@click.option("--test", is_flag=True, help="Send a test to every URL, and print which of them work.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send and record nothing.")
@json_option
@pass_context
def command(ctx: click.Context, unit: str | None, digest: bool, test: bool, dry_run: bool, as_json: bool) -> int:
    """Find problems, and send new ones to the URLs in [notify]: failures, recoveries, and once a day a summary.

    A timer runs it every few minutes. A problem that persists is reported once; a recurring problem causes at most three
    messages a day. Messages that could not be sent are sent again the next time. Without urls, alarms are still stored, for the
    dashboard and `metrics`; once there are urls, current alarms are sent as new.

    Exit status 1 if no URL accepted a message; with --test, if any URL did not accept it.
    """
    if sum((unit is not None, digest, test)) > 1:
        raise UsageError("--failed, --digest and --test exclude each other", "`backupd notify --help` explains them")
    reporting = load_reporting(ctx)
    config = reporting.config
    moment = present(ctx, config)
    complain_of_faults(reporting.faults)
    if not dry_run:
        reporting.keep(moment)
    failed = validate_unit(unit) if unit is not None else None
    if (test or digest) and not config.notify.urls and not dry_run:
        raise UsageError("[notify] has no urls", f"add `urls` to [notify]: {page('monitoring')} has examples")
    problem: OperatorError | None = None
    if test:
        notify_report = notify_test(config, dry_run=dry_run)
    else:
        with _usable_catalogue(reporting) as (catalogue, error), notify_lock(config, moment):
            problem = error
            if failed:
                memory = AlarmMemory(config, catalogue, problem)
                notify_report = notify_failure(memory, read_failure(failed), reporting.faults, moment, dry_run=dry_run)
            else:
                report, problem = _report(reporting, catalogue, problem, moment)
                memory = AlarmMemory(config, catalogue if report.is_catalogue_read else None, problem)
                notify_report = notify(memory, report, want_digest=digest, dry_run=dry_run)
            problem = problem or memory.problem
            if problem and not dry_run and not reporting.is_bare:
                report_problem(config.pool.state, problem.message, moment)
    print_answer(_answer(notify_report, dry_run=dry_run), lambda: _show(notify_report, dry_run=dry_run, test=test), as_json=as_json)
    missed = (
        any(not service.arrived for service in notify_report.services)
        if test
        else bool(notify_report.services) and not notify_report.arrived
    )
    return Exit.ATTENTION if missed or (problem and not failed) else Exit.OK


@contextmanager
def _usable_catalogue(reporting: ReportingConfig) -> Iterator[tuple[Catalogue | None, OperatorError | None]]:
    """Yields the catalogue, or None if it cannot be read or belongs to another pool; and the reason why it cannot be used or
    written.
    """
    config = reporting.config
    if reporting.is_bare:  # the catalogue's folder is unknown
        yield None, None
        return
    try:
        catalogue, problem = opened_catalogue(config.pool.state)
    except OperatorError as error:
        print_error(error)
        yield None, error
        return
    with catalogue:
        catalogue.copy_seldom()
        try:
            require_own_catalogue(read_pool_facts(config, catalogue), config)
        except OperatorError as error:
            print_error(error)
            yield None, error
            return
        if problem:
            print_error(problem)
            yield catalogue, problem
            return
        try:
            catalogue.wait_at_most(_PATIENCE)
            catalogue.set_fact(_BEGAN, format_time(datetime.now(UTC)))
        except OperatorError as error:
            print_error(error)
            yield catalogue, error
            return
        yield catalogue, None


def _report(
    reporting: ReportingConfig, catalogue: Catalogue | None, problem: OperatorError | None, now: datetime
) -> tuple[StatusReport, OperatorError | None]:
    """Returns the report, as complete as possible, and the reason why the catalogue cannot be used."""
    config, faults = reporting.config, reporting.faults
    if catalogue:
        try:
            report = read_live_status(config, catalogue, faults, now)
            return (with_problem(report, problem) if problem else report), problem
        except OperatorError as error:
            print_error(error)
            problem = error
    report = status_without_catalogue(config, now, faults=faults, is_bare=reporting.is_bare)
    return (with_problem(report, problem) if problem else report), problem


def _show(report: NotifyReport, *, dry_run: bool, test: bool) -> None:
    if dry_run:
        for message in report.messages:
            click.echo(f"{message.title}\n\n{message.body}\n")
    for service in report.services:
        if test or not service.arrived:
            click.echo(f"{service}: {'works' if service.arrived else f'does not work: {service.reason}'}")
    if test:
        return
    is_reported = dry_run or bool(report.services)
    if not dry_run:  # a dry run has printed them in the message
        for text in summarised(report.alarms if is_reported else report.first):
            print_wrapped(f"alarm: {text}", "  ")
        for row in report.recoveries if is_reported else ():
            print_wrapped(f"resolved: {printable(row.text)}", "  ")
    if report.first and not is_reported:
        click.echo("recorded, but not sent: [notify] has no urls")
    elif not report.messages or not is_reported:
        _print_or_set_status(f"nothing new; {counted(len(report.open_alarms), 'open alarm')}")
    elif report.digest:
        click.echo(
            "the digest would be sent" if dry_run else "the digest was sent" if report.arrived else "the digest was not sent"
        )


def _print_or_set_status(line: str) -> None:
    """Prints a line; in a unit it only sets the status that `systemctl status` shows, so that the journal does not get it every
    five minutes.
    """
    if is_service():
        tell(f"STATUS={line}")
    else:
        click.echo(line)


def _answer(report: NotifyReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "alarms": [_row(row) for row in report.alarms],
        "recoveries": [_row(row) for row in report.recoveries],
        "standing": [_row(row) for row in report.open_alarms],
        "digest": report.digest,
        "messages": [{"title": message.title, "body": message.body, "kind": message.kind} for message in report.messages],
        "services": [
            {"number": service.number, "service": service.service, "arrived": service.arrived, "reason": service.reason}
            for service in report.services
        ],
        "dry_run": dry_run,
    }


def _row(row: StoredAlarm) -> dict[str, Any]:
    return {
        "what": row.what,
        "subject": row.subject,
        "text": row.text,
        "since": row.since,
        "told": row.told,
        "recovered": row.recovered,
        "times": row.times,
    }


@click.command("silence")
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_host)
@click.option("--group", "groups", multiple=True, metavar="GROUP", shell_complete=complete_group, help="All hosts of this group.")
@click.option(
    "--problem",
    "problems",
    multiple=True,
    type=click.Choice(PROBLEM_KINDS),
    metavar="KIND",
    help=f"A kind of problem of the verdict, whichever it is about: {', '.join(PROBLEM_KINDS)}.",
)
@click.option("--until", type=DAY, metavar="DATE", help="The end: 2027-01-01, midnight in the pool's zone, or a time.")
@click.option("--why", default="", metavar="TEXT", help="The reason; shown with the host.")
@click.option("--disable", is_flag=True, help="Nightly runs skip the hosts until then, too.")
@click.option("--end", is_flag=True, help="End the silence now.")
@json_option
@pass_context
def silence_command(
    ctx: click.Context,
    hosts: tuple[str, ...],
    groups: tuple[str, ...],
    problems: tuple[str, ...],
    until: date | None,
    why: str,
    disable: bool,
    end: bool,
    as_json: bool,
) -> int:
    """Send no notifications about each HOST until DATE, for example during maintenance.

    HOST may be a pattern, such as 'web*'. `backupd status` and the dashboard list silenced problems apart, with the user and the
    reason, and the verdict counts them as silenced. Damaged and altered backups are never silenced. When the date passes, a problem
    that is still there is notified. Without arguments: list all silences.
    """
    with opened(ctx) as context:
        now = context.clock.now().replace(microsecond=0)
        names = expand_hosts(hosts, sorted({*context.config.every_host, *context.catalogue.hosts()}))
        subjects = (
            [("host", name) for name in names] + [("group", name) for name in groups] + [("problem", kind) for kind in problems]
        )
        if not subjects:
            if until or end:
                raise UsageError("name a HOST, a group or a kind of problem", "`backupd silence --help`")
            active = read_silences(context.catalogue, context.config.every_host, now).active
            lines = [f"{row.kind} {printable(row.name)}: {printable(silence_words(row))}" for row in active]
            return print_answer([silence_object(row) for row in active], lines or ["nothing is silenced"], as_json=as_json)
        if (until is None) == (not end):
            raise UsageError("give either --until DATE or --end", "`backupd silence HOST --until 2027-01-01 --why TEXT`")
        require_subjects(context.config, context.catalogue, subjects)
        moment = moment_of(until, context.config.pool.zone) if until else None
        if moment and moment <= now:
            raise UsageError(f"--until {local_time(moment)} is in the past", "give a later time")
        new = NewSilence(moment, why, login_name(), disable)
        if failure := silence(context.pool, context.catalogue, subjects, new, now):
            print_wrapped(f"note: this silence could not be recorded: {failure}", err=True)
        answer = [silence_object(row) for row in context.catalogue.silences() if row.key in subjects]
    words = f"{'disabled' if disable else 'silenced'} until {local_time(moment)}" if moment else "no longer silenced"
    return print_answer(answer, [f"{kind} {printable(name)}: {words}" for kind, name in subjects], as_json=as_json)
