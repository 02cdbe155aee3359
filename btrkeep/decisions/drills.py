"""Decides which host's backup is restored next by a drill, and summarises past drills. Pure.

`backupd drill` records each result in the catalogue; `status`, alarms, metrics and the dashboard read it from there.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Protocol

from btrkeep.decisions import parse_fact
from btrkeep.decisions.due import latest
from btrkeep.units import counted, format_duration, format_size, format_time, parse_time, printable

DRILLS = "drill:"
"""Start of the name of the fact with a host's drills."""
_KEPT = 8  # newest drills of a host


class DrillOutcome(StrEnum):
    """`proven`: everything that was tried was restored and is identical. `failed`: a file is missing or differs.

    `unfinished`: the time limit was reached, this machine had too little free space, or a process was killed, which proves nothing
    about the backup.
    """

    PROVEN = "proven"
    FAILED = "failed"
    UNFINISHED = "unfinished"


class DrillKind(StrEnum):
    """`restore`: files were restored and compared. `boot`: the whole system was booted. `load`: dumps were loaded."""

    RESTORE = "restore"
    BOOT = "boot"
    LOAD = "load"


class DrillState(StrEnum):
    """`failing`: the newest drill of some host has failed. `late`: the newest proven restore is older than `max_age`."""

    OK = "ok"
    LATE = "late"
    FAILING = "failing"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class DrillResult:
    """The result of one drill. A boot and a load have only `text`, also if they succeeded."""

    host: str
    """The host's name."""
    backup: str
    """The name of the backup that was restored."""
    at: datetime
    """When the drill started."""
    outcome: DrillOutcome
    """Whether it proved the backup."""
    seconds: float = 0.0
    """How long it took."""
    sample: str = ""
    """How much was chosen, as in [drill]."""
    names: int = 0
    """Number of names that were restored and compared."""
    bytes: int = 0
    """Bytes of file data in these."""
    restoring: float = 0.0
    """Duration of the restore in seconds, without the comparison."""
    of: int | None = None
    """Number of names in the backup; None: not counted."""
    left_out: int = 0
    """Number of chosen names that were too large for the free space here."""
    differences: int = 0
    """Number of differences."""
    text: str = ""
    """What went wrong; "": nothing."""
    kind: DrillKind = DrillKind.RESTORE
    """What was tried."""

    @property
    def rate(self) -> float | None:
        """Bytes per second of the restore without the comparison."""
        return self.bytes / self.restoring if self.bytes and self.restoring > 0 else None


@dataclass(frozen=True, slots=True)
class DrillStatus:
    """The state of all drills. `last`: the newest proven restore; `failed`: the newest drill of each host, if it failed.

    `age`: seconds since `last`; `oldest`: the age at which it counts as late.
    """

    state: DrillState
    oldest: float
    age: float | None = None
    last: DrillResult | None = None
    failed: tuple[DrillResult, ...] = ()


class DrillFacts(Protocol):
    """The catalogue, as far as it is needed here."""

    def facts(self, beginning: str) -> Mapping[str, str]:
        """Returns all facts whose names start with `beginning`."""


class DrillNotes(DrillFacts, Protocol):
    """The catalogue, for reading and writing results of drills."""

    def set_fact(self, name: str, value: str | None) -> None:
        """Stores a fact; None deletes it."""


def in_turn(hosts: Iterable[str], drills: Mapping[str, Sequence[DrillResult]], chance: Random, now: datetime) -> list[str]:
    """Returns the hosts in the order in which they are to be drilled: those without a drill first, then those whose last drill is
    the oldest.

    Hosts with the same wait are in random order. Drills in the future, by a clock that was ahead, do not count.
    """
    ordered = sorted(hosts)
    chance.shuffle(ordered)
    until = latest(now)
    newest = {
        host: max((drill.at.timestamp() for drill in drills.get(host, ()) if drill.at <= until), default=0.0) for host in ordered
    }
    return sorted(ordered, key=lambda host: newest[host])


def drill_status(
    drills: Mapping[str, Sequence[DrillResult]],
    hosts: Collection[str],
    oldest: float,
    now: datetime,
    *,
    is_asked: bool = False,
    loads: bool = True,
) -> DrillStatus:
    """Returns the state of all drills. Failures count only for `hosts`, the configured ones. `is_asked`: a maximum age is
    configured, so having no proven restore also counts as late. `loads`: dumps are configured to be loaded; without any, an earlier
    failure of one can no longer end, and does not count.
    """
    proven = [
        drill
        for host in drills.values()
        for drill in host
        if drill.outcome == DrillOutcome.PROVEN and drill.kind == DrillKind.RESTORE
    ]
    until = latest(now)  # later ones come from a clock that was ahead, and count only if there are no others
    last = max(proven, key=lambda drill: (drill.at <= until, drill.at), default=None)
    newest = [
        drill
        for host, drill_results in drills.items()
        if host in hosts
        for kind in DrillKind
        if (loads or kind != DrillKind.LOAD) and (drill := _newest(drill_results, kind))
    ]
    failed = sorted((drill for drill in newest if drill.outcome == DrillOutcome.FAILED), key=lambda drill: drill.host)
    age = max(0.0, (now - last.at).total_seconds()) if last else None
    if failed:
        state = DrillState.FAILING
    elif last is None:
        state = DrillState.LATE if is_asked else DrillState.NEVER
    else:
        is_late = now - last.at > timedelta(seconds=oldest) or last.at > until
        state = DrillState.LATE if is_late else DrillState.OK
    return DrillStatus(state, oldest, age, last, tuple(failed))


def _newest(drills: Sequence[DrillResult], kind: DrillKind) -> DrillResult | None:
    """Returns the drill that was recorded last, whatever its time."""
    return next((drill for drill in drills if drill.outcome != DrillOutcome.UNFINISHED and drill.kind == kind), None)


def note_drill(facts: DrillNotes, done: DrillResult) -> None:
    """Stores the result of a drill, with the newest earlier ones of the host."""
    name = DRILLS + done.host
    before = _read(done.host, facts.facts(name).get(name))
    drill_results = [done, *before]
    kept = drill_results[:_KEPT]
    for kind in DrillKind:  # the newest success of each kind, and a failure until a later success
        of_kind = [drill for drill in drill_results if drill.kind == kind]
        for last in (next((drill for drill in of_kind if drill.outcome == DrillOutcome.PROVEN), None), _newest(of_kind, kind)):
            kept += [last] if last and last not in kept else []
    facts.set_fact(name, json.dumps([_plain(drill) for drill in kept]))


def read_drills(facts: DrillFacts) -> dict[str, tuple[DrillResult, ...]]:
    """Reads the drills of each host, the last recorded one first. Invalid entries are ignored."""
    texts = facts.facts(DRILLS)
    return {name.removeprefix(DRILLS): _read(name.removeprefix(DRILLS), text) for name, text in texts.items()}


def _plain(drill: DrillResult) -> dict[str, object]:
    """Encodes a drill without default values, because there may be thousands."""
    usual = asdict(DrillResult("", "", drill.at, drill.outcome))
    return {
        **{key: value for key, value in asdict(drill).items() if value != usual[key]},
        "host": None,
        "outcome": drill.outcome.value,
        "at": format_time(drill.at),
    }


def _read(host: str, text: str | None) -> tuple[DrillResult, ...]:
    return parse_fact(text, lambda drills: tuple(_parsed(host, drill) for drill in drills), ())


def _parsed(host: str, given: Mapping[str, object]) -> DrillResult:
    plain = {key: value for key, value in given.items() if key not in ("host", "at", "outcome", "backup")}
    plain["kind"] = DrillKind(str(plain.get("kind", DrillKind.RESTORE)))
    drill = DrillResult(host, str(given["backup"]), parse_time(str(given["at"])), DrillOutcome(str(given["outcome"])))
    return replace(drill, **plain)  # type: ignore[arg-type]  # a key that this version does not know is a TypeError


def proven_words(drill: DrillResult) -> str:
    """Describes a proven restore in one line: which backup, how much and how fast."""
    rate = f", {format_size(round(drill.rate))}/s" if drill.rate else ""
    of = f" of {drill.of:,}" if drill.of is not None and drill.of != drill.names else ""
    names = f"{drill.names:,}{of} names" if of else counted(drill.names, "name")
    return f"{drill.host}@{drill.backup}, {names}, {format_size(drill.bytes)} in {format_duration(drill.restoring)}{rate}"


_FAILURES = {
    DrillKind.RESTORE: "was restored with differences",
    DrillKind.BOOT: "did not boot correctly",
    DrillKind.LOAD: "has a dump that could not be loaded",
}


def failure_words(drill: DrillResult) -> str:
    """Describes a failed drill in one line."""
    return f"{drill.host}@{drill.backup} {_FAILURES[drill.kind]}: {drill.text}"


def repeat_arguments(drill: DrillResult) -> str:
    """Returns the arguments of `backupd drill` that repeat a failed drill. A failed dump is
    tested again in the newest backup.
    """
    match drill.kind:
        case DrillKind.LOAD:
            return f"{drill.host}@latest"
        case DrillKind.BOOT:
            return f"{drill.host} --boot"
        case DrillKind.RESTORE:
            return drill.host


def drill_object(done: DrillResult) -> dict[str, object]:
    """Returns a drill as JSON."""
    fields = asdict(replace(done, text=printable(done.text)))
    rate = round(done.rate) if done.rate else None
    return {**fields, "outcome": done.outcome.value, "at": format_time(done.at), "rate": rate}
