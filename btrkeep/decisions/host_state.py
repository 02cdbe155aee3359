"""The state of a host in one word, and why; whether an optional host is absent, or refuses. Pure.

A laptop that is switched off has no route, does not answer, or refuses the connection because another machine has its address. A
host that rejects the key, or has another host key, is present: if it counted as absent, the problem would not be reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.backup_states import Cause
from btrkeep.catalogue import HostFacts
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.cause_words import error_words
from btrkeep.decisions.due import due_when, host_late_from, latest
from btrkeep.decisions.lasting import condition_words, lasting, standing_words
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.units import local_time

UNKNOWN = "unknown"
"""The state of a host that was due when the catalogue, which was lost since, recorded no runs."""
STATES = ("ok", "late", "failing", "suspect", "never", UNKNOWN)
COPY = "copy"
"""The state of a host whose backups are fetched from another pool: it is not backed up here, configured or not."""


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A line of `backupd status`. A backup with a time in the future is ignored, and a warning names it."""

    host: str
    """Its name."""
    state: str
    """One of STATES, or COPY."""
    last_complete: datetime | None
    """When its newest complete backup started; None: it has none."""
    age: float | None
    """Seconds since then."""
    next_due: datetime | None
    """When it is due next; None: never, because it is not enabled."""
    error: str | None
    """Why its last run failed; None if it did not."""
    warnings: Sequence[str] = ()
    """Other information for an administrator, one line each."""


UnknownSpans = Sequence[tuple[datetime, datetime]]
"""From when until when runs may be missing in the catalogue."""


def host_statuses(
    config: Config, facts: Mapping[str, HostFacts], fetched: Mapping[str, str], now: datetime, unknown: UnknownSpans = ()
) -> tuple[HostStatus, ...]:
    """Returns the state of each configured host. `fetched`: the replica of each host that is fetched from another pool."""
    return tuple(
        copy_of_host(name, facts.get(name), fetched[name], now)
        if name in fetched
        else host_status(host, facts.get(name), config.pool.zone, now, unknown)
        for name, host in config.every_host.items()
    )


def copy_of_host(host: str, facts: HostFacts | None, replica: str, now: datetime) -> HostStatus:
    """Returns the state of a host that is fetched from another pool: no backup is due here, and no run counts."""
    last = facts.last_complete if facts else None
    age = max(0.0, (now - last).total_seconds()) if last else None
    return HostStatus(host, COPY, last, age, None, None, (f"copy: fetched from another pool by replica {replica}",))


def host_status(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, now: datetime, unknown: UnknownSpans = ()) -> HostStatus:
    """Returns the state of a host. The first that applies: suspect, never, failing, late, unknown, ok. An optional host is late
    when it has been away for `max_absence`. A host whose configuration is wrong is failing.
    """
    last = facts.last_complete if facts else None
    age = max(0.0, (now - last).total_seconds()) if last else None
    following = due_when(last, host.every, host.window, zone, now)[1] if host.enabled else None
    if host.fault:
        return HostStatus(host.name, "failing", last, age, None, f"not backed up: {host.fault}", _warnings(facts))
    state, warnings = _state(host, facts, zone, now), _warnings(facts)
    if state == "ok" and unknown and facts and (until := _unrecorded_until(host, facts, zone, unknown)):
        state = UNKNOWN
        words = f"it was due before {local_time(until)}, and the runs of that time are not recorded: a run may have failed"
        warnings = (words, *warnings)
    if host.calls and state in ("late", "never"):
        warnings = (NOT_CALLED, *warnings)
    return HostStatus(host.name, state, last, age, following, error_words(*status_error(facts)), warnings)


def _unrecorded_until(host: HostConfig, facts: HostFacts, zone: ZoneInfo, unknown: UnknownSpans) -> datetime | None:
    """Returns the end of the time without recorded runs in which the host was due, if no backup or run is newer; else None."""
    newest = max(moment for moment in (facts.last_complete, facts.last_run_started) if moment)
    ends = [end for _, end in unknown if end > newest and host.enabled]
    return max((end for end in ends if due_when(facts.last_complete, host.every, host.window, zone, end)[0]), default=None)


NOT_CALLED = (
    "it has not called this server: on the host, `systemctl list-timers 'btrkeep-call@*'` shows when it calls, and "
    "`btrkeep-source call root@SERVER` calls now"
)
"""The warning about a host that calls, and is late."""
SKIPPED = "the last run skipped it"
"""Start of the warning about that."""


def _warnings(facts: HostFacts | None) -> tuple[str, ...]:
    if facts is None:
        return ()
    warnings = facts.newest_warnings
    if facts.lasting:
        alarming = map(condition_words, lasting(facts.lasting, facts.last_complete))
        warnings = (*alarming, *standing_words(facts.lasting), *warnings)
    if facts.last_run_outcome == "skipped" and _newer_than_complete(facts):
        reason = error_words(facts.last_run_error, facts.last_run_cause) or "no reason is recorded"
        warnings = (f"{SKIPPED}: {reason}", *warnings)
    if facts.ahead is None:
        return warnings
    words = f"the time of a backup, {local_time(facts.ahead)}, is in the future, so it does not count; a clock was probably wrong"
    return (words, *warnings)


def _state(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, now: datetime) -> str:
    if facts is None:
        return "never"
    if facts.newest_state == "suspect":
        return "suspect"
    if facts.last_complete is None:
        return "never"
    if facts.last_run_outcome in ("failed", "partial") and _newer_than_complete(facts):
        return "failing"
    late = host_late_from(host, facts.last_complete, zone)
    if host.enabled and late is not None and (now > late or facts.last_complete > latest(now)):
        return "late"
    return "ok"


def _newer_than_complete(facts: HostFacts) -> bool:
    return facts.last_run_started is not None and (facts.last_complete is None or facts.last_run_started >= facts.last_complete)


def status_error(facts: HostFacts | None) -> tuple[str | None, Cause | None]:
    """Returns the problem of the newest backup or run as stored: its text, and its cause if there is one."""
    if facts is None:
        return None, None
    if facts.newest_state == "suspect":
        return facts.newest_error, facts.newest_cause
    if facts.last_run_outcome in ("failed", "partial") and _newer_than_complete(facts):
        return facts.last_run_error, facts.last_run_cause
    return None, None  # also for an accepted suspect backup


_ABSENT = frozenset({ExitCause.NO_ROUTE, ExitCause.SILENT, ExitCause.REFUSED, ExitCause.NO_ANSWER_CONNECTING})


def is_absent(cause: ExitCause, *, has_resolved: bool) -> bool:
    """Returns True if a host to which ssh could not connect is offline. `has_resolved`: its name had an address before."""
    return cause in _ABSENT or (cause is ExitCause.NO_SUCH_NAME and has_resolved)


def has_other_key(facts: HostFacts) -> bool:
    """Returns True if the newest run ended because a host that was backed up before has no recorded key, or another one."""
    cause = facts.last_run_cause
    return cause is not None and cause.facts.get("exit_cause") == ExitCause.HOST_KEY and facts.last_complete is not None
