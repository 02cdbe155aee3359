"""The daily summary: when it is due, and its text. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

from backupd.alarms.alarm_messages import Message, alarm_lines, harmless, listed, section, sender
from backupd.health.status_report import StatusReport
from btrkeep.catalogue import RunTotals, StoredAlarm
from btrkeep.catalogue.model_alarm import CONDITION, HOST_KEY
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.cause_words import grouped_alike, without_host
from btrkeep.decisions.due import latest
from btrkeep.decisions.host_state import COPY, STATES, UNKNOWN, HostStatus
from btrkeep.decisions.repeated import dedupe_words
from btrkeep.decisions.silences import silence_words
from btrkeep.units import counted, format_duration, format_share, format_size, local_time


def is_due(at: time | None, zone: ZoneInfo, last: datetime | None, now: datetime) -> bool:
    """Returns True if `at`, in that zone, has passed today and no digest was sent since. A missed digest is sent later that day, or
    never.
    """
    if at is None:
        return False
    today = datetime.combine(now.astimezone(zone).date(), at, zone).astimezone(UTC)
    return today <= now and (last is None or last < today or last > latest(now))


def digest_message(pool: str, machine: str, report: StatusReport, open_alarms: Sequence[StoredAlarm]) -> Message:
    """Returns the digest: the state of all hosts, current alarms, and the last 24 hours."""
    unknown, call = _unknown(report), backupd_command(report.config.name, report.config.file)
    unwell = [
        status for status in report.hosts if status.state not in ("ok", COPY) and report.config.host_named(status.host).enabled
    ]
    since: dict[str, datetime] = {}
    for row in open_alarms:
        if row.host is not None:
            since[row.host] = min(row.since, since.get(row.host, row.since))
    parts = (
        [section("The configuration is wrong", listed(map(harmless, report.faults)), len(report.faults), call)]
        if report.faults
        else []
    )
    parts += [unknown] if unknown else []
    parts.append(_hosts_line(report) if report.is_catalogue_read else "The state of the hosts is unknown.")
    for state in STATES[1:]:
        of_state = grouped_alike((status for status in unwell if status.state == state), _reason)
        lines = [_hosts_words(same, since, call) for same in of_state]
        if lines:
            parts.append(section(state.capitalize(), listed(lines), len(lines), call))
    lasting = [row for row in open_alarms if row.about.kind in (CONDITION, HOST_KEY)]
    if lasting:
        parts.append(section("Lasting conditions and changed host keys", alarm_lines(lasting, pool, call)))
    others = [row for row in open_alarms if row.host is None]
    if others:
        parts.append(section("Open alarms", alarm_lines(others, pool, call)))
    if report.silences.active:
        rows = sorted(report.silences.active, key=lambda row: row.kind == "host")  # the widest first: a list is cut
        lines = [harmless(f"{row.kind} {row.name}: {silence_words(row)}") for row in rows]
        parts.append(section("Silenced, so no alarms are sent", listed(lines), len(lines), call))
    parts.append("\n".join(["The last 24 hours:", *(f"- {line}" for line in _day_lines(report))]))
    well = len(report.hosts) - len(unwell)
    hosts = f"{well:,} of {len(report.hosts):,} hosts ok" if report.is_catalogue_read else "the state of the hosts is unknown"
    wrong = ["the configuration is wrong"] if report.faults else []
    wrong += ["the state of the pool is unknown"] if unknown else []
    title = f"btrkeep {pool}: {', '.join([*wrong, hosts])}"
    if others or lasting:
        title += f", {counted(len(others) + len(lasting), 'alarm')}"
    is_warning = wrong or unwell or others or lasting or not report.is_catalogue_read
    return Message(title, "\n\n".join([*parts, sender(machine)]), "warning" if is_warning else "success")


def _unknown(report: StatusReport) -> str:
    """Formats that the pool cannot be read, and when it last could be; "" if it can."""
    if not report.fault:
        return ""
    last = (
        f"It was last readable {local_time(report.pool_looked)}."
        if report.pool_looked
        else "It is unknown when it was last readable."
    )
    return f"The pool cannot be read: {harmless(report.fault)}. {last}"


def _host_line(status: HostStatus, alarm_since: datetime | None, call: str) -> str:
    """Formats a host that is not ok: the reason, since when, and the command that shows more."""
    since = f"; since {local_time(alarm_since)}" if alarm_since else ""
    since += f"; last complete backup {local_time(status.last_complete)}" if status.last_complete else ""
    command = f"{call} {'list' if status.state == 'suspect' else 'log'} {status.host}"
    return f"{harmless(f'{status.host}: {_error_or_age(_error(status), status.age)}')}{since}; {command}"


def _reason(status: HostStatus) -> str | None:
    error = _error(status)
    return without_host(error, status.host) if error else None


def _error(status: HostStatus) -> str | None:
    return status.warnings[0] if status.state == UNKNOWN else status.error


def _hosts_words(same: Sequence[HostStatus], since: Mapping[str, datetime], call: str) -> str:
    """Returns a line for one host, or for many that are not ok for the same reason."""
    first = same[0]
    if len(same) == 1:
        return _host_line(first, since.get(first.host), call)
    times = [since[status.host] for status in same if status.host in since]
    begun = f"; since {local_time(min(times))}" if times else ""
    text = harmless(f"{counted(len(same), 'host')}: {_error_or_age(_error(first), first.age)}")
    return f"{text}{begun}; {call} status --state {shlex.quote(first.state)}"


def _hosts_line(report: StatusReport) -> str:
    states = [f"{count:,} {state}" for state in (*STATES, COPY) if (count := sum(status.state == state for status in report.hosts))]
    return f"{counted(len(report.hosts), 'host')}: {', '.join(states)}." if states else "No host is configured."


def _error_or_age(error: str | None, age: float | None) -> str:
    if error:
        return error
    return f"last complete backup {format_duration(age)} ago" if age is not None else "no complete backup yet"


def _day_lines(report: StatusReport) -> list[str]:
    lines = [_runs_line(report.day) if report.is_catalogue_read else f"backups: unknown: {harmless(report.catalogue_fault)}"]
    if report.room:
        lines.append(f"free space: {report.room}, of {format_size(report.room.total)}")
    elif report.fault:
        lines.append(f"the pool cannot be used: {harmless(report.fault)}")
    if report.numbers and report.numbers.size:
        used, allocated = report.numbers.used / report.numbers.size, report.numbers.allocated / report.numbers.size
        lines.append(f"devices: {format_share(allocated)} allocated, {format_share(used)} used")
    if report.expiry and _today(report, report.expiry.started):
        lines.append(f"expiry: {counted(report.expiry.deleted, 'backup')} deleted, {report.expiry.outcome or 'killed'}")
    if report.dedupe and _today(report, report.dedupe.started):
        lines.append(f"dedupe: {dedupe_words(report.dedupe)}")
    if report.balance and _today(report, report.balance.started):
        moved = f"{counted(report.balance.block_groups, 'block group')}, {format_size(report.balance.moved)} moved"
        lines.append(f"balance: {moved}, {harmless(report.balance.why or report.balance.outcome or 'killed')}")
    return lines


def _runs_line(day: Sequence[RunTotals]) -> str:
    if not day:
        return "no backup was attempted"
    outcomes = ", ".join(f"{run_totals.runs:,} {run_totals.outcome}" for run_totals in day)
    return f"backups: {outcomes}; {format_size(sum(run_totals.literal_bytes for run_totals in day))} of new data"


def _today(report: StatusReport, moment: datetime) -> bool:
    return (report.now - moment).total_seconds() < 86400
