"""Which hosts a run takes, and in which order, with the reason for each. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo

from backupd.run.verdict import is_timeout
from btrkeep.backup_states import CauseCode
from btrkeep.catalogue import HostFacts
from btrkeep.config import Config, HostConfig
from btrkeep.config.config_model import not_configured
from btrkeep.decisions.due import is_due, is_late, next_chance, next_window, retry_from, window_end
from btrkeep.decisions.silences import Silences, silence_words
from btrkeep.errors import UsageError
from btrkeep.units import local_time

_TRIED = frozenset({"failed", "partial", "suspect", "skipped"})
_NO_SILENCES = Silences()
_STOPPED = frozenset({CauseCode.SIGNAL, CauseCode.WINDOW_CLOSED})


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """A host, and whether this run takes it."""

    host: HostConfig
    """The host."""
    runs: bool
    """True if this run takes it."""
    reason: str
    """Why, in words."""
    bound: bool = False
    """True if its window limits this run."""
    opens: datetime | None = None
    """When its window opens, if it is due and its window is closed; otherwise None."""
    is_copy: bool = False
    """True if it is fetched from another pool."""


def plan(
    config: Config,
    facts: Mapping[str, HostFacts],
    now: datetime,
    *,
    names: Sequence[str] = (),
    everything: bool = False,
    catch_up: bool = False,
    scheduled: bool = False,
    copies: Mapping[str, str] = MappingProxyType({}),
    silences: Silences = _NO_SILENCES,
) -> list[PlannedHost]:
    """Returns what a run would do, in its order. Raises UsageError for a name that is not configured.

    `copies`: the replica of each host that is fetched from another pool: no night backs it up. `scheduled`: a timer starts runs
    often, so a host whose last attempt made no complete backup waits before the next attempt. `silences`: hosts that a user has
    disabled until a date are skipped unless they are named.

    The host whose last attempt is the oldest comes first, so that a host which fails or takes long cannot starve the others. A host
    that was silent until a time limit would occupy a slot again for as long: it comes after the others, for one night only.
    """
    if names:
        return [_named(config, name) for name in dict.fromkeys(names)]
    hosts = [host for host in config.hosts.values() if host.enabled]
    hosts = sorted(hosts, key=lambda host: _turn(facts.get(host.name), len(hosts)))
    left = [_copy(host, copies[host.name]) for host in hosts if host.name in copies]
    left += [PlannedHost(host, False, CALLS) for host in hosts if host.calls and host.name not in copies]
    own = [host for host in hosts if host.name not in copies and not host.calls]
    left += [PlannedHost(host, False, reason) for host in own if (reason := why_paused(host.name, silences))]
    own = [host for host in own if not why_paused(host.name, silences)]
    if everything:
        return [PlannedHost(host, True, "requested with --all") for host in own] + left
    nights = [_of_the_night(host, facts.get(host.name), config.pool.zone, now, catch_up) for host in own]
    return [_unless_tried(entry, facts.get(entry.host.name), now) if scheduled else entry for entry in nights] + left


def why_paused(host: str, silences: Silences) -> str:
    """Returns until when, by whom and why nightly runs skip the host; "": they do not."""
    silence = silences.pause_of(host)
    return silence_words(silence) if silence else ""


def _named(config: Config, name: str) -> PlannedHost:
    if name in config.excluded:
        raise UsageError(f"{name} cannot be backed up: {config.excluded[name].fault}", "correct that line of its configuration")
    if name not in config.hosts:
        raise not_configured(name, config.hosts)
    return PlannedHost(config.hosts[name], True, "requested by name")


CALLS = "it calls this server: `btrkeep-source call` on the host starts its backup"
CALL_RETRY = timedelta(minutes=15)
"""When a host calls again whose connection ended during its backup."""
_LONGEST_UNTIL_CALL, _SHORTEST_UNTIL_CALL = timedelta(days=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """What a host that calls is told."""

    entry: PlannedHost
    """Whether its backup starts, and why."""
    again: timedelta
    """When it is to call again; after a complete backup, if one starts."""
    retry: timedelta = CALL_RETRY
    """The same after any other result."""


def answer_call(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, now: datetime) -> AnsweredCall:
    """Returns whether the backup of a host that calls starts now: as in a night, but a host whose connection ended during its last
    backup waits only CALL_RETRY. Pure.
    """
    entry = _of_the_night(host, facts, zone, now, catch_up=False)
    if entry.runs and facts and facts.last_run_outcome == "partial" and facts.last_run_started:
        wait = facts.last_run_started + CALL_RETRY - now
        if timedelta(0) < wait <= CALL_RETRY:
            return AnsweredCall(replace(entry, runs=False, reason="its last backup was interrupted a moment ago"), _until(wait))
    elif entry.runs:
        entry = _unless_tried(entry, facts, now)
        if not entry.runs and facts and facts.last_run_started:
            return AnsweredCall(entry, _until(retry_from(facts.last_run_started, host.every) - now))
    last = now if entry.runs else facts.last_complete if facts else None
    return AnsweredCall(entry, _until(next_chance(last, host.every, host.window, zone, now) - now))


def _until(wait: timedelta) -> timedelta:
    return max(_SHORTEST_UNTIL_CALL, min(wait, _LONGEST_UNTIL_CALL))


def _turn(facts: HostFacts | None, hosts: int) -> int:
    """Returns the number of the host's last run. A silent host counts as tried after all others: if a night does not reach it, the
    runs of that night have higher numbers. A host whose window closed before its turn comes first.
    """
    if not facts or facts.last_run is None:
        return 0
    if facts.last_run_outcome == "skipped" and facts.last_run_cause and facts.last_run_cause.code is CauseCode.WINDOW_CLOSED:
        return 0  # its turn did not come
    return facts.last_run + (hosts if is_timeout(facts.last_run_cause) else 0)


def _of_the_night(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, now: datetime, catch_up: bool) -> PlannedHost:
    last = facts.last_complete if facts else None
    due = is_due(last, host.every, host.window, zone, now)
    if not due.due or host.window is None:
        return PlannedHost(host, due.due, due.reason)
    if window_end(host.window, zone, now):
        return PlannedHost(host, True, due.reason, bound=True)
    if catch_up and is_late(last, host.every, host.window, zone, now, host.late):
        return PlannedHost(host, True, f"{due.reason}; --catch-up ignores the window {host.window}")
    opens = next_window(host.window, zone, now)
    return PlannedHost(host, False, f"due, but outside the window {host.window}, which opens {local_time(opens)}", opens=opens)


def _unless_tried(entry: PlannedHost, facts: HostFacts | None, now: datetime) -> PlannedHost:
    """Returns the host as waiting if its last attempt was a short time ago and made no complete backup. A host whose run was
    stopped by a signal, by its window or by a crash continues at once.
    """
    if not entry.runs or facts is None or facts.last_run_outcome not in _TRIED or facts.last_run_started is None:
        return entry
    if facts.last_run_cause and facts.last_run_cause.code in _STOPPED:
        return entry
    again = retry_from(facts.last_run_started, entry.host.every)
    is_newer = facts.last_complete is None or facts.last_run_started >= facts.last_complete
    if not is_newer or not facts.last_run_started <= now < again:
        return entry
    return PlannedHost(
        entry.host,
        False,
        f"due, but last tried at {local_time(facts.last_run_started)}; the next attempt is at {local_time(again)} or later",
    )


def _copy(host: HostConfig, replica: str) -> PlannedHost:
    return PlannedHost(host, False, f"a copy: replica {replica} fetches it from another pool", is_copy=True)
