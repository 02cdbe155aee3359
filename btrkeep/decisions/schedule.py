"""Decides which hosts will not be backed up in time, from the timers and other callers that start runs. Pure.

Each host is followed through the coming starts as if each of its backups succeeded: it is missed if one comes only after
`late_from`, the time from which the host is late.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.config import HostConfig
from btrkeep.decisions import parse_fact
from btrkeep.decisions.due import is_due, late_from, window_end
from btrkeep.decisions.findings import SCHEDULE, WARNING, Finding
from btrkeep.units import counted, format_duration, format_time, local_time, parse_time

SCHEDULE_FACT = "schedule"
"""The name of the fact in the catalogue with the newest schedule, for the dashboard."""
CALLERS_FACT = "run_callers"
"""The name of the fact in the catalogue with the callers that started the last runs."""
PAST = timedelta(days=3)
"""Callers of which only past runs are known are expected to continue as in this period."""
_KEPT_CALLS = 200


@dataclass(frozen=True, slots=True)
class Start:
    """A coming start of `backupd run` for this pool."""

    at: datetime
    """When it starts."""
    hosts: tuple[str, ...] = ()
    """Patterns of the named hosts; empty: those that are due."""
    regardless: bool = False
    """True if it takes its hosts whether they are due or not, and outside of their windows."""

    def takes(self, host: str) -> bool:
        """Returns True if it includes that host."""
        return not self.hosts or any(fnmatchcase(host, pattern) for pattern in self.hosts)


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Everything that starts runs of this pool."""

    starts: tuple[Start, ...]
    """The coming starts, complete until `until`."""
    until: datetime
    """Until when `starts` is complete."""
    starters: tuple[str, ...] = ()
    """The timers, files of cron and others that start runs."""
    unknown: str = ""
    """Why not everything could be read; "" if it could."""
    by_units: bool = True
    """True if systemd's units read this configuration, so that the installed timer can start its runs."""
    pool: str = "main"
    """The pool's name."""
    command: str = "backupd"
    """The command line of `backupd` for this pool, for hints."""


@dataclass(frozen=True, slots=True)
class ScheduleVerdict:
    """Whether runs start in time."""

    missed: tuple[str, ...] = ()
    """The hosts that will not be backed up in time."""
    terms: str = ""
    """`every`, the window and the zone of the first of them, in words."""
    first: datetime | None = None
    """The next start that includes a host; None: none."""
    starters: tuple[str, ...] = ()
    """The timers, files of cron and others that start runs."""
    unknown: str = ""
    """Why nothing can be decided; "": it can."""
    by_hand: bool = False
    """True if nothing starts runs and no unit reads the configuration: it is run manually, or not installed yet."""
    by_units: bool = True
    """True if systemd's units read this configuration."""
    pool: str = "main"
    """The pool's name."""
    command: str = "backupd"
    """The command line of `backupd` for this pool, for hints."""


NOTHING_MISSED = ScheduleVerdict()


def judge_schedule(hosts: Iterable[HostConfig], zone: ZoneInfo, facts: StartFacts, now: datetime) -> ScheduleVerdict:
    """Returns which of these hosts will not be backed up in time; only enabled hosts count."""
    enabled = [host for host in hosts if host.enabled]
    starts = sorted((start for start in facts.starts if start.at > now), key=lambda start: start.at)
    named = any(start.hosts for start in starts)
    answers: dict[Any, tuple[bool, datetime | None]] = {}
    missed, first = [], []
    for host in enabled:
        key = (host.every, host.window, host.late, host.name if named else "")
        if key not in answers:
            answers[key] = _follow(host, zone, [start for start in starts if start.takes(host.name)], facts.until, now)
        is_missed, begin = answers[key]
        if is_missed:
            missed.append(host)
        if begin is not None:
            first.append(begin)
    by_hand = bool(missed) and not facts.starters and not facts.by_units and not facts.unknown
    return ScheduleVerdict(
        missed=() if facts.unknown or by_hand else tuple(host.name for host in missed),
        terms=_terms(missed[0], zone) if missed else "",
        first=min(first, default=None),
        starters=facts.starters,
        unknown=facts.unknown if missed else "",
        by_hand=by_hand,
        by_units=facts.by_units,
        pool=facts.pool,
        command=facts.command,
    )


def _follow(
    host: HostConfig, zone: ZoneInfo, starts: Sequence[Start], until: datetime, now: datetime
) -> tuple[bool, datetime | None]:
    """Returns whether the host is missed, and the first start whose run may include it: one while its window is open."""
    last, begin = now, None
    for start in starts:
        if start.at > until:
            break
        if host.window and not start.regardless and window_end(host.window, zone, start.at) is None:
            continue
        begin = begin or start.at
        if not start.regardless and not is_due(last, host.every, host.window, zone, start.at).due:
            continue
        if start.at > late_from(last, host.every, host.window, zone, host.late):
            return True, begin
        last = start.at
    ends_too_soon = late_from(last, host.every, host.window, zone, host.late) <= until
    return begin is None or ends_too_soon, begin


def _terms(host: HostConfig, zone: ZoneInfo) -> str:
    window = f", window {host.window} {zone.key}" if host.window else ""
    return f"every {format_duration(host.every)}{window}"


def schedule_findings(verdict: ScheduleVerdict) -> Iterable[Finding]:
    """Yields the one finding about all hosts that will not be backed up in time."""
    if not verdict.missed:
        return
    others = f" and {counted(len(verdict.missed) - 1, 'other host')}" if len(verdict.missed) > 1 else ""
    who = f"{verdict.missed[0]}{others}"
    if not verdict.starters:
        text = f"nothing starts the backups: no active timer and no line of cron starts `backupd run` ({who})"
    else:
        start = f", the next at {local_time(verdict.first)}" if verdict.first else ", none of them in the window"
        text = f"{who} will not be backed up in time ({verdict.terms}): {_listed(verdict.starters)} start runs{start}"
    yield Finding(SCHEDULE, WARNING, text, schedule_hint(verdict), count=len(verdict.missed))


def schedule_hint(verdict: ScheduleVerdict) -> str:
    """Returns the command for starting runs often enough."""
    timer = f"btrkeep-backup@{verdict.pool}.timer"
    if not verdict.by_units:
        return f"this line in /etc/cron.d/btrkeep-{verdict.pool} starts runs: `{cron_line(verdict)}`"
    if timer in verdict.starters:
        return f"start runs more often: `systemctl edit {timer}`, or restore the shipped unit: `systemctl revert {timer}`"
    return f"`systemctl enable --now {timer}`"


def cron_line(verdict: ScheduleVerdict) -> str:
    """Returns the line for cron that does the same as the shipped timer.

    The path is that of install.sh, because cron's PATH has only /usr/bin and /bin. A percent sign would end the command.
    """
    command = verdict.command.replace("backupd", "/usr/local/sbin/backupd", 1)
    return f"*/15 * * * * root {command} run --scheduled".replace("%", "\\%")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


def schedule_text(verdict: ScheduleVerdict, now: datetime) -> str:
    """Encodes the schedule for the catalogue and the dashboard."""
    return json_text(
        {
            "looked": format_time(now),
            "first": format_time(verdict.first) if verdict.first else None,
            "starters": list(verdict.starters),
            "unknown": verdict.unknown,
        }
    )


def json_text(value: Mapping[str, Any] | list[Any]) -> str:
    """Returns the JSON of a fact."""
    import json

    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """The schedule at a time, as stored in the catalogue."""

    looked: datetime
    """When it was read."""
    first: datetime | None
    """The next start that includes a host; None: none."""
    starters: tuple[str, ...]
    """The timers, files of cron and others that start runs."""
    unknown: str
    """Why nothing can be decided; "": it can."""


def stored_schedule(text: str | None) -> StoredSchedule | None:
    """Decodes the catalogue's schedule; None if there is none."""

    def parse(value: Mapping[str, Any]) -> StoredSchedule:
        first = parse_time(value["first"]) if value["first"] else None
        return StoredSchedule(parse_time(value["looked"]), first, tuple(value["starters"]), value["unknown"])

    return parse_fact(text, parse, None)


def parse_calls(text: str | None) -> tuple[tuple[datetime, str], ...]:
    """Decodes who started the last runs: when, and by what; () if nothing is recorded."""
    return parse_fact(text, lambda value: tuple((parse_time(at), str(caller)) for at, caller in value), ())


def with_call(text: str | None, now: datetime, caller: str) -> str:
    """Returns the recorded calls with one more, without those that are too old to count."""
    calls = [call for call in parse_calls(text) if now - PAST <= call[0] <= now]
    return json_text([[format_time(at), by] for at, by in [*calls, (now, caller)][-_KEPT_CALLS:]])


def expected_calls(
    calls: Iterable[tuple[datetime, str]], until: datetime, now: datetime
) -> tuple[tuple[Start, ...], tuple[str, ...]]:
    """Returns the expected starts of callers which started runs on two of the last three days, and these callers."""
    past: dict[str, list[datetime]] = {}
    for at, caller in calls:
        if now - PAST < at <= now:
            past.setdefault(caller, []).append(at)
    regular = {caller: times for caller, times in past.items() if len({at.date() for at in times}) > 1}
    starts = []
    for times in regular.values():
        for at in times:
            following = at + PAST
            while following <= until:
                starts.append(Start(following))
                following += PAST
    return tuple(starts), tuple(f"{caller} (as its past runs show)" for caller in regular)
