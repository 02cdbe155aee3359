"""The verdict about a pool with all its hosts in one sentence, which `status`, the dashboard and the metrics share. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue import model_alarm as kinds
from btrkeep.decisions import findings
from btrkeep.decisions.copy_status import CopyState
from btrkeep.decisions.findings import ERROR, NOTE, OK, UNKNOWN, WARNING, PoolVerdict
from btrkeep.units import counted


@dataclass(frozen=True, slots=True)
class ProblemCount:
    """One kind of problem."""

    kind: str
    """A word for programs: a state of hosts, a check of the pool, a kind of alarm, ..."""
    level: str
    """error, warning or unknown."""
    count: int
    """Number of hosts, backups, copies or alarms."""
    words: str
    """A few words: `10 hosts failing`."""


@dataclass(frozen=True, slots=True)
class Overall:
    """The verdict. Without a problem all is well."""

    problems: tuple[ProblemCount, ...]
    """The worst first."""

    @property
    def level(self) -> str:
        """Returns ok, unknown, warning or error: that of the worst problem."""
        return max((problem.level for problem in self.problems), key=findings.LEVELS.index, default=OK)

    @property
    def sentence(self) -> str:
        """Returns the verdict in words."""
        words = ", ".join(problem.words for problem in self.problems)
        if not words:
            return "All is well"
        if self.level == OK:
            return f"Nothing else needs attention: {words}"
        return f"{'Not everything could be checked' if self.level == UNKNOWN else 'Needs attention'}: {words}"


@dataclass(frozen=True, slots=True)
class OverallFacts:
    """What the verdict is about."""

    states: Mapping[str, int]
    """Number of enabled hosts in each state."""
    damaged: int = 0
    """Number of backups with damaged files that were not repaired."""
    altered: int = 0
    """Number of backups that were changed after they were final."""
    pool: PoolVerdict = field(default_factory=PoolVerdict)
    """The findings about the pool."""
    copies: Collection[CopyState] = ()
    """The state of each copy."""
    in_doubt: int = 0
    """Number of backups that were written just before a crash and not read since."""
    alarms: Collection[StoredAlarm] = ()
    """The active alarms."""
    unchecked: Collection[str] = ()
    """What else could not be checked, in words."""
    now: datetime | None = None
    """The time; None: alarms are not considered, as for a viewer who may not see all."""
    alarms_checked: datetime | None = None
    """When alarms were last checked; None: never."""
    never: Collection[str] = ()
    """The enabled hosts that have no complete backup yet."""
    silenced_hosts: int = 0
    """Number of hosts that need attention and are silenced: they are not in `states`, `never` and `alarms`."""
    silenced_kinds: Collection[str] = ()
    """Kinds of problems that are silenced; their problems are counted as silenced only."""


_Words = Callable[[int], str]
_OLD = timedelta(hours=1)
"""`backupd notify` checks every five minutes; a time in the future is equally wrong."""


def _hosts(state: str) -> _Words:
    return lambda count: f"{counted(count, 'host')} {state}"


NEVER, NEVER_COPIED = "never", "copy-never"
SILENCED = "silenced"
"""The kind under which the verdict counts problems that are silenced until a date."""
PROBLEM_STATES: Mapping[str, tuple[str, _Words]] = {
    "failing": (ERROR, _hosts("failing")),
    "suspect": (WARNING, _hosts("with a suspect backup")),
    NEVER: (WARNING, _hosts("without a first backup")),
    "late": (WARNING, _hosts("late")),
    UNKNOWN: (UNKNOWN, _hosts("in an unknown state")),
}
"""The states of hosts that need attention, their levels and words. A host that was never backed up waits for its first night; it is
a problem when that has passed or its run failed, which is an alarm.
"""

_POOL = {
    findings.UNUSABLE: "pool unusable",
    findings.CATALOGUE: "catalogue unusable",
    findings.READ_ONLY: "pool read-only",
    findings.MISSING: "device missing",
    findings.ERRORS: "device errors",
    findings.ROOM: "pool almost full",
    findings.UNALLOCATED: "little unallocated space",
    findings.USED: "pool used above its limit",
    findings.SCHEDULE: "backups not scheduled in time",
}

ALARM_OF_CHECK = {
    findings.UNUSABLE: (kinds.FAILURE, kinds.POOL),
    findings.CATALOGUE: (kinds.FAILURE, kinds.CATALOGUE),
    findings.READ_ONLY: (kinds.FAILURE, kinds.READ_ONLY),
    findings.MISSING: (kinds.DEVICES, kinds.MISSING_DEVICE),
    findings.ERRORS: (kinds.DEVICES, kinds.DEVICE),
    findings.ROOM: (kinds.ROOM, kinds.MIN_FREE),
    findings.UNALLOCATED: (kinds.ROOM, kinds.UNALLOCATED),
    findings.USED: (kinds.ROOM, kinds.USED),
    findings.SCHEDULE: (kinds.FAILURE, kinds.SCHEDULE),
}
"""The event and the kind of subject of the alarm about each problem of the pool."""

_ALARMS: Mapping[str, _Words] = {
    kinds.CONDITION: lambda count: f"{counted(count, 'host')} with a lasting problem",
    kinds.HOST_KEY: lambda count: f"{counted(count, 'host')} with another host key",
    kinds.UNIT: lambda count: f"{counted(count, 'failed service')}",
    kinds.STEP: lambda count: f"{counted(count, 'repeated failure')}",
    kinds.STATE_FULL: lambda _: "state folder full",
    kinds.CONFIGURATION: lambda _: "mistakes in the configuration",
    kinds.CLOCK: lambda _: "clock wrong",
    kinds.DRILL: lambda _: "no recent restore drill",
    kinds.VERIFICATION: lambda _: "backups not verified in time",
    kinds.EXPIRY: lambda _: "expiry failing",
    kinds.BALANCE: lambda _: "balance failing",
    kinds.SERVICE: lambda count: f"{counted(count, 'notification service')} failing",
}
"""Alarms of kinds that nothing else of the verdict has."""
ALARM_KINDS = tuple(_ALARMS)


def overall_as_json(overall: Overall) -> dict[str, Any]:
    """Returns the verdict as a JSON object."""
    problems = [
        {"kind": problem.kind, "level": problem.level, "count": problem.count, "words": problem.words}
        for problem in overall.problems
    ]
    return {"level": overall.level, "sentence": overall.sentence, "problems": problems}


def judge(facts: OverallFacts) -> Overall:
    """Returns the verdict: errors first, then warnings, then what is unknown."""
    every = list(_problems(facts))
    problems = [problem for problem in every if problem.kind not in facts.silenced_kinds]
    silenced = facts.silenced_hosts + sum(problem.count for problem in every if problem.kind in facts.silenced_kinds)
    if silenced:
        problems.append(ProblemCount(SILENCED, OK, silenced, f"{silenced:,} silenced"))
    return Overall(tuple(sorted(problems, key=lambda problem: -findings.LEVELS.index(problem.level))))


def _problems(facts: OverallFacts) -> Iterator[ProblemCount]:
    yield from _of_pool(facts.pool)
    overdue = _overdue_hosts(facts)
    for state, (level, host_words) in PROBLEM_STATES.items():
        if count := len(overdue) if state == NEVER else facts.states.get(state, 0):
            yield ProblemCount(state, level, count, host_words(count))
    if facts.damaged:
        yield ProblemCount("damaged", ERROR, facts.damaged, f"{counted(facts.damaged, 'backup')} damaged")
    if facts.altered:
        yield ProblemCount("altered", ERROR, facts.altered, f"{counted(facts.altered, 'backup')} altered")
    copies = Counter(facts.copies)
    for copy_state, level in ((CopyState.FAILING, ERROR), (CopyState.LATE, WARNING)):
        if count := copies[copy_state]:
            yield ProblemCount(f"copy-{copy_state}", level, count, f"{_copies(count)} {copy_state}")
    if count := sum(alarm.what == kinds.SILENT and alarm.about.traits.of_copy for alarm in facts.alarms):
        yield ProblemCount(NEVER_COPIED, WARNING, count, f"{_copies(count)} never made")
    if facts.in_doubt:
        yield ProblemCount("in-doubt", WARNING, facts.in_doubt, f"{counted(facts.in_doubt, 'backup')} in doubt after a crash")
    yield from _of_alarms(facts.alarms)
    unchecked = [*facts.unchecked]
    if facts.now and (facts.alarms_checked is None or abs(facts.now - facts.alarms_checked) > _OLD):
        unchecked.append("alarms not checked in the last hour" if facts.alarms_checked else "alarms never checked")
    for words in unchecked:
        yield ProblemCount("unchecked", UNKNOWN, 1, words)


def _overdue_hosts(facts: OverallFacts) -> frozenset[str]:
    """Returns the hosts that are still without a first backup when they should have one, or failed at it: an alarm reports each."""
    reported = {alarm.about.name for alarm in facts.alarms if is_about_first_backup(alarm)}
    return frozenset(reported.intersection(facts.never))


def is_about_first_backup(alarm: StoredAlarm) -> bool:
    """Returns True if the alarm makes a problem of a host that has no complete backup yet."""
    return alarm.what in (kinds.SILENT, kinds.FAILURE) and alarm.about.kind == kinds.HOST


def _copies(count: int) -> str:
    return f"{count} {'copy' if count == 1 else 'copies'}"


def _of_pool(pool: PoolVerdict) -> Iterator[ProblemCount]:
    for check in findings.CHECKS:
        members = [finding for finding in pool.of(check) if finding.level not in (OK, NOTE)]
        if members:
            yield ProblemCount(check, pool.level_of(check), len(members), _POOL[check])
    if pool.unlooked:
        yield ProblemCount("unchecked", UNKNOWN, len(pool.unlooked), f"{counted(len(pool.unlooked), 'check')} of the pool not made")


def _of_alarms(alarms: Iterable[StoredAlarm]) -> Iterator[ProblemCount]:
    counts = Counter(alarm_kind(alarm) for alarm in alarms)
    for kind, words in _ALARMS.items():
        if count := counts[kind]:
            yield ProblemCount(kind, WARNING, count, words(count))


def alarm_kind(alarm: StoredAlarm) -> str:
    """Returns the kind of problem under which the verdict counts the alarm, if it counts it as an alarm."""
    return kinds.SERVICE if alarm.what == kinds.SERVICE else alarm.about.kind


def night_level(poor: int, hosts: int, red: float) -> str:
    """Returns the level of a finished night. `poor`: number of hosts without a complete backup; `red`: the share of them from which
    it is an error.
    """
    if not poor:
        return OK
    return ERROR if poor >= red * hosts else WARNING
