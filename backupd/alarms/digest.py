"""The summary of the day: when it is due, and what it says. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

from backupd.alarms.words import Message, harmless, section, sender
from backupd.health.status_report import StatusReport
from btrkeep.catalogue import RunTotals, StoredAlarm
from btrkeep.decisions.due import latest
from btrkeep.decisions.host_state import STATES
from btrkeep.units import counted, format_duration, format_share, format_size


def is_due(at: time | None, zone: ZoneInfo, last: datetime | None, now: datetime) -> bool:
    """Whether `at`, in that zone, has passed today and none was sent since. One that was missed comes later that day, or never."""
    if at is None:
        return False
    today = datetime.combine(now.astimezone(zone).date(), at, zone).astimezone(UTC)
    return today <= now and (last is None or last < today or last > latest(now))


def of_day(pool: str, machine: str, seen: StatusReport, standing: Sequence[StoredAlarm]) -> Message:
    """The digest: how everybody is, what stands, what the last 24 hours brought."""
    unwell = [status for status in seen.hosts if status.state != "ok" and seen.config.hosts[status.host].enabled]
    parts = [_hosts_line(seen)]
    for state in STATES[1:]:
        lines = [harmless(f"{one.host}: {_why(one.error, one.age)}") for one in unwell if one.state == state]
        if lines:
            parts.append(section(state.capitalize(), lines))
    others = [harmless(row.text) for row in standing if row.host is None]
    if others:
        parts.append(section("Alarms that stand", others))
    parts.append("\n".join(["The last 24 hours:", *(f"- {line}" for line in _day_lines(seen))]))
    well = len(seen.hosts) - len(unwell)
    title = f"btrkeep {pool}: {well:,} of {len(seen.hosts):,} hosts well"
    if others:
        title += f", {counted(len(others), 'alarm')}"
    return Message(title, "\n\n".join([*parts, sender(machine)]), "warning" if unwell or others else "success")


def _hosts_line(seen: StatusReport) -> str:
    states = [f"{count:,} {state}" for state in STATES if (count := sum(status.state == state for status in seen.hosts))]
    return f"{counted(len(seen.hosts), 'host')}: {', '.join(states)}." if states else "No host is configured."


def _why(error: str | None, age: float | None) -> str:
    if error:
        return error
    return f"last complete backup {format_duration(age)} ago" if age is not None else "no complete backup yet"


def _day_lines(seen: StatusReport) -> list[str]:
    lines = [_runs_line(seen.day)]
    if seen.room:
        lines.append(f"room: {seen.room}, of {format_size(seen.room.total)}")
    elif seen.fault:
        lines.append(f"the pool cannot be used: {harmless(seen.fault)}")
    if seen.numbers and seen.numbers.size:
        used, allocated = seen.numbers.used / seen.numbers.size, seen.numbers.allocated / seen.numbers.size
        lines.append(f"devices: {format_share(allocated)} allocated, {format_share(used)} used")
    if seen.expiry and _today(seen, seen.expiry.started):
        lines.append(f"expiry: {counted(seen.expiry.deleted, 'backup')} deleted, {seen.expiry.outcome or 'killed'}")
    if seen.balance and _today(seen, seen.balance.started):
        moved = f"{counted(seen.balance.block_groups, 'block group')}, {format_size(seen.balance.moved)} moved"
        lines.append(f"balance: {moved}, {harmless(seen.balance.why or seen.balance.outcome or 'killed')}")
    return lines


def _runs_line(day: Sequence[RunTotals]) -> str:
    if not day:
        return "no backup was tried"
    told = ", ".join(f"{one.runs:,} {one.outcome}" for one in day)
    return f"backups: {told}; {format_size(sum(one.literal_bytes for one in day))} of new data"


def _today(seen: StatusReport, moment: datetime) -> bool:
    return (seen.now - moment).total_seconds() < 86400
