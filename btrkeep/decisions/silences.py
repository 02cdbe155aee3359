"""What a silence covers: hosts, groups and kinds of problems about which no notifications are sent until a date. Pure.

A silence never covers damage: damaged and altered backups, failing devices, an unusable or read-only pool and a lost catalogue stay
in the verdict and are notified. When its date passes, all is as before: an alarm that is still there is notified.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from btrkeep.catalogue import Catalogue, Silence, StoredAlarm
from btrkeep.catalogue import model_alarm as kinds
from btrkeep.config import HostConfig
from btrkeep.decisions import findings
from btrkeep.decisions.overall import (
    ALARM_KINDS,
    ALARM_OF_CHECK,
    NEVER,
    NEVER_COPIED,
    PROBLEM_STATES,
    alarm_kind,
    is_about_first_backup,
)
from btrkeep.units import local_time

LONGEST = timedelta(days=92)
"""The longest silence that the dashboard sets: an attacker there cannot silence a pool for ever."""
COPY_KINDS = ("copy-failing", "copy-late", NEVER_COPIED)
PROBLEM_KINDS = (findings.ROOM, findings.UNALLOCATED, findings.USED, findings.SCHEDULE, *COPY_KINDS, *ALARM_KINDS)
"""The kinds of problems that can be silenced; those of hosts are silenced by host or group."""


@dataclass(frozen=True, slots=True)
class Silences:
    """The silences at one moment."""

    active: tuple[Silence, ...] = ()
    """Those that have not ended: the next to end first."""
    groups: Mapping[str, str | None] = field(default_factory=dict)
    """The group of each configured host."""
    _by_key: Mapping[tuple[str, str | None], Silence] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {row.key: row for row in self.active})

    @classmethod
    def of(cls, rows: Iterable[Silence], groups: Mapping[str, str | None], now: datetime) -> "Silences":
        """Returns those of the rows of the catalogue that have not ended."""
        active = sorted((row for row in rows if row.until > now), key=lambda row: (row.until, row.kind, row.name))
        return cls(tuple(active), groups)

    def of_host(self, host: str) -> Silence | None:
        """Returns the silence of a host, its own or that of its group, whichever ends last; None: it is not silenced."""
        return max(self._about(host), key=lambda row: row.until, default=None)

    def pause_of(self, host: str) -> Silence | None:
        """Returns the silence because of which nightly runs skip the host; None: they do not."""
        return max((row for row in self._about(host) if row.paused), key=lambda row: row.until, default=None)

    def _about(self, host: str) -> list[Silence]:
        keys = (("host", host), ("group", self.groups.get(host)))
        return [self._by_key[key] for key in keys if key in self._by_key]

    def of_problem(self, kind: str) -> Silence | None:
        """Returns the silence of a kind of problem; None: it is not silenced."""
        return self._by_key.get(("problem", kind)) if kind in PROBLEM_KINDS else None

    @property
    def problem_kinds(self) -> frozenset[str]:
        """Returns the silenced kinds of problems."""
        return frozenset(row.name for row in self.active if row.kind == "problem" and row.name in PROBLEM_KINDS)

    def of_alarm(self, alarm: StoredAlarm) -> Silence | None:
        """Returns the silence that covers an alarm; None: it is notified."""
        if not self.active:
            return None
        if alarm.host is not None and (silence := self.of_host(alarm.host)):
            return silence
        return next((silence for kind in _kinds_of(alarm) if (silence := self.of_problem(kind))), None)

    def visible_to(self, may_see: Callable[[str], bool], *, limited: bool) -> tuple[Silence, ...]:
        """Returns those about which a user may know: of hosts that the user sees, and the others only without limits."""
        return tuple(row for row in self.active if (row.kind == "host" and may_see(row.name)) or not limited)


def read_silences(catalogue: Catalogue, hosts: Mapping[str, HostConfig], now: datetime) -> Silences:
    """Returns the present silences."""
    return Silences.of(catalogue.silences(), {name: host.group for name, host in hosts.items()}, now)


def _kinds_of(alarm: StoredAlarm) -> tuple[str, ...]:
    """Returns the kinds of problems under which the verdict counts the alarm."""
    if alarm.about.traits.of_copy:
        return COPY_KINDS[:2] if alarm.what == kinds.FAILURE else COPY_KINDS[2:]
    of_check = tuple(check for check, about in ALARM_OF_CHECK.items() if about == (alarm.what, alarm.about.kind))
    return of_check or (alarm_kind(alarm),)


def silence_words(silence: Silence, time_words: Callable[[datetime], str] = local_time) -> str:
    """Returns until when, by whom and why."""
    until = f"{'disabled' if silence.paused else 'silenced'} until {time_words(silence.until)}, by {silence.who}"
    return f"{until}: {silence.why}" if silence.why else until


def silence_object(silence: Silence) -> dict[str, Any]:
    """Returns a silence as JSON."""
    return {
        "kind": silence.kind,
        "name": silence.name,
        "until": silence.until,
        "by": silence.who,
        "why": silence.why,
        "since": silence.since,
        "disabled": silence.paused,
    }


@dataclass(frozen=True, slots=True)
class HostsToJudge:
    """The hosts and alarms that the verdict counts, without silenced hosts."""

    states: Mapping[str, int]
    """Number of the other hosts in each state."""
    never: tuple[str, ...]
    """Those of them without a complete backup."""
    alarms: tuple[StoredAlarm, ...]
    """The active alarms, without those about silenced hosts."""
    silenced: frozenset[str]
    """The silenced hosts that need attention."""


def without_silenced(hosts: Iterable[tuple[str, str]], alarms: Iterable[StoredAlarm], silences: Silences) -> HostsToJudge:
    """Divides the hosts. `hosts`: the enabled hosts with their states; `alarms`: the active alarms."""
    rest, hidden, first = list[tuple[str, str]](), set[str](), set[str]()
    for name, state in hosts:
        if silences.active and silences.of_host(name):
            first |= {name} if state == NEVER else set()  # its alarm shows whether it should have a backup
            hidden |= {name} if state in PROBLEM_STATES and state != NEVER else set()
        else:
            rest.append((name, state))
    counted_alarms = list[StoredAlarm]()
    for alarm in alarms:
        if silences.active and alarm.host is not None and silences.of_host(alarm.host):
            is_overdue = is_about_first_backup(alarm) and alarm.host in first
            hidden |= {alarm.host} if is_overdue or alarm_kind(alarm) in ALARM_KINDS else set()
        else:
            counted_alarms.append(alarm)
    never = tuple(name for name, state in rest if state == NEVER)
    return HostsToJudge(Counter(state for _, state in rest), never, tuple(counted_alarms), frozenset(hidden))
