"""`backupd retention explain`: shows why backups are kept, and when they will be deleted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache

import click

from backupd.cli import colours
from backupd.cli.command_context import complete_host, opened, pass_context
from backupd.cli.names import DAY, require_host_or_folder
from backupd.expire.host_backups import policy_of, read_host_from_pool, read_hosts
from backupd.expire.report import expiry_words, skip_words
from backupd.files.cli.opened_backup import end_of
from backupd.repo.catalogue_row import NO_NOTES
from backupd.repo.pool_context import PoolContext
from btrkeep.cli import json_option, print_error, print_listing, stream_json
from btrkeep.cli.listings import Column, listing
from btrkeep.cli.output import print_wrapped, text_width
from btrkeep.config import Retention
from btrkeep.decisions.calendar_strip import strip
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Decision, parse_policy
from btrkeep.decisions.retention_words import (
    ExplainedHost,
    as_of,
    cells,
    explain,
    future_names,
    guarded,
    note_of,
    objects,
    policy_words,
    words_of,
)
from btrkeep.decisions.safety_limits import DeletedShare
from btrkeep.decisions.verification import VerifiedBackups, verified_briefly
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.units import counted, local_day, local_time, printable


@dataclass(frozen=True, slots=True)
class _RetentionQuery:
    """The question."""

    context: PoolContext
    """The pool."""
    now: datetime
    """The moment in question."""
    past: bool
    """True if that time has passed."""
    policy: str
    """The policy to try; "": the configured one."""
    as_json: bool
    """True if the answer is printed as JSON."""


@click.group("retention", no_args_is_help=True)
def command() -> None:
    """Show what the retention policy keeps of each host, and why.

    The policy is set in [retention], for the pool, for a group or for a host.
    """


@command.command("explain")
@click.argument("host", required=False, shell_complete=complete_host)
@click.option(
    "--at",
    type=DAY,
    metavar="DATE",
    help="Decide as if it were the end of this day, or this time. For the future, the present backups are used.",
)
@click.option(
    "--policy", default="", metavar="RULES", help="Try another policy, such as daily=7,weekly=4. Other keys keep their values."
)
@json_option
@pass_context
def explain_command(ctx: click.Context, host: str | None, at: date | None, policy: str, as_json: bool) -> int:
    """Show why each backup of HOST is kept, or when it is deleted; without HOST, how many of each host.

    Backups that have already expired count like backups that would expire now. This command changes nothing, and `backupd expire`
    decides with the same rules.

    The strip shows a letter for each day, a month in a row. When a day has several backups, or a backup several reasons, the letter
    shows the reason that lasts longest.
    """
    _require_policy(policy)
    with opened(ctx) as context:
        moment = context.clock.now()
        then = end_of(at, context.config.pool.zone) if at else moment
        asked = _RetentionQuery(context, then, then < moment, policy, as_json)
        return _all(asked) if host is None else _explain_host(asked, host)


def _require_policy(text: str) -> None:
    """Raises UsageError if the rules of --policy are invalid."""
    if text:
        try:
            parse_policy(text, Retention())
        except ValueError as error:
            raise UsageError(f"--policy: {error}", "write it like --policy daily=7,weekly=4,monthly=12") from None


def _explained(asked: _RetentionQuery, facts: HostBackups) -> tuple[ExplainedHost, Retention]:
    policy = _with(asked.policy, facts.policy)
    then = as_of(facts, asked.now) if asked.past else facts
    return explain(then, policy, asked.context.config.pool.zone, asked.now), policy


@cache  # hundreds of hosts share one
def _with(text: str, base: Retention) -> Retention:
    return parse_policy(text, base) if text else base


def _explain_host(asked: _RetentionQuery, host: str) -> int:
    context = asked.context
    require_host_or_folder(context, host)
    if host in context.config.excluded:
        fault = context.config.excluded[host].fault
        raise UsageError(
            f"{host} is configured, with a mistake: {fault}", "correct that line; until then none of its backups is deleted"
        )
    rows = {row.name: row.state for row in context.catalogue.backups(host) if row.name}
    try:
        seen = read_host_from_pool(context.pool, context.config, host, rows)
    except FileNotFoundError:  # configured, but never backed up
        facts, unreadable = HostBackups(host, (), policy_of(context.config, host, NO_NOTES)), dict[str, str]()
    else:
        facts, unreadable = seen.facts, dict(seen.unreadable)
    explained, policy = _explained(asked, facts)
    if asked.as_json:
        stream_json(objects(explained))
    else:
        _show_one(asked, explained, policy)
    for name, why in unreadable.items():
        print_error(OperatorError(f"{host} {name} is not deleted: {why}"))
    return Exit.ATTENTION if unreadable else Exit.OK


def _show_one(asked: _RetentionQuery, explained: ExplainedHost, policy: Retention) -> None:
    host = printable(explained.facts.host)
    print_wrapped(f"{host}, with the policy {policy_words(policy)}" if asked.policy else f"{host}: {policy_words(policy)}")
    for note in _notes(explained, policy, guarded([explained]).skipped_hosts):
        print_wrapped(printable(note))
    if not explained.decisions:
        click.echo("no backups yet")
        return
    zone = asked.context.config.pool.zone
    for line in strip(cells(explained, zone), asked.now.astimezone(zone).date(), text_width(), _paint):
        click.echo(line)
    verified = VerifiedBackups(asked.context.catalogue, asked.now)
    rows_of = {backup.name: backup for backup in asked.context.catalogue.backups(explained.facts.host)}
    states = {candidate.name: "expired" if candidate.expired else candidate.state for candidate in explained.facts.candidates}

    def verified_words(name: str) -> str:
        return verified_briefly(verified.of(rows_of[name]), local_day) if name in rows_of else "-"

    columns: tuple[Column[Decision], ...] = (
        Column("", lambda decision: decision.name, "NAME"),
        Column("", lambda decision: states[decision.name], "STATE", lambda state: click.style(state, fg=colours.BACKUP.get(state))),
        Column("", lambda decision: decision.name, "VERIFIED", verified_words, spare=True),
        Column("", lambda decision: words_of(decision, asked.now), "KEPT FOR, OR DELETED"),
    )
    click.echo("\n" + listing(columns, explained.decisions) + "\n")
    print_wrapped(f"{len(explained.decisions) - explained.going} kept, {_go(asked, explained.going, explained.today)}")
    for name in future_names(explained, asked.now):
        print_wrapped(f"{name} has a time in the future, so it is kept and not shown in the strip; check the clock")


def _paint(text: str, colour: int) -> str:
    return click.style(text, fg=colour)


def _go(asked: _RetentionQuery, going: int, today: int) -> str:
    if not asked.policy:
        return f"{going:,} to delete"
    change = f"{going - today:,} more than" if going > today else f"{today - going:,} fewer than" if going < today else "as many as"
    return f"{going:,} would be deleted, {change} with the present policy ({today:,})"


def _all(asked: _RetentionQuery) -> int:
    problems: dict[str, str] = {}
    if asked.as_json:
        counts = [0, 0]
        stream_json(entry for explained, _ in _hosts(asked, problems, counts) for entry in objects(explained))
        if asked.policy:
            click.echo(f"note: {_go(asked, *counts)}", err=True)
    else:
        _show_all(asked, [*_hosts(asked, problems, [0, 0])])
    for host, why in problems.items():
        print_error(OperatorError(f"{host} is skipped: {why}"))
    return Exit.ATTENTION if problems else Exit.OK


def _hosts(asked: _RetentionQuery, problems: dict[str, str], counts: list[int]) -> Iterator[tuple[ExplainedHost, Retention]]:
    """Yields one host at a time, to save memory; read errors are added to `problems`."""
    for facts in read_hosts(asked.context.pool, asked.context.catalogue, asked.context.config):
        if facts.problem:
            problems[facts.host] = facts.problem.error
            continue
        problems |= {f"{facts.host} {name}": "it cannot be read, so it is kept" for name in facts.unread}
        explained, policy = _explained(asked, facts)
        counts[0] += explained.going
        counts[1] += explained.today
        yield explained, policy


def _show_all(asked: _RetentionQuery, hosts: list[tuple[ExplainedHost, Retention]]) -> None:
    limits = guarded(explained for explained, _ in hosts)
    number = "{:,}".format
    columns: tuple[Column[tuple[ExplainedHost, Retention]], ...] = (
        Column("", lambda host: host[0].facts.host, "HOST"),
        Column("", lambda host: len(host[0].decisions) - host[0].going, "KEPT", number, right=True),
        Column("", lambda host: host[0].going, "TO DELETE", number, right=True),
        Column("", lambda host: host[0].today, "TODAY" if asked.policy else None, number, right=True),
        Column("", lambda host: host[0].oldest or "-", "OLDEST KEPT"),
        Column("", lambda host: ", ".join(_notes(*host, limits.skipped_hosts)), "NOTE"),
    )
    print_listing(columns, hosts)
    going, today = sum(explained.going for explained, _ in hosts), sum(explained.today for explained, _ in hosts)
    kept = sum(len(explained.decisions) for explained, _ in hosts) - going
    print_wrapped(f"{counted(len(hosts), 'host')}: {kept:,} kept, {_go(asked, going, today)}" if hosts else "no backups yet")
    if limits.stop:
        print_wrapped(f"an expiry would not start: {expiry_words(limits.stop)}")
    if asked.now > asked.context.clock.now():
        print_wrapped(f"as of {local_time(asked.now)}, with the present backups")


def _notes(explained: ExplainedHost, policy: Retention, skipped_hosts: Mapping[str, DeletedShare]) -> Iterator[str]:
    if note := note_of(explained, policy):
        yield note
    if why := skipped_hosts.get(explained.facts.host):
        yield f"skipped: {skip_words(explained.facts.host, why)}"
