"""The verdict about everything that a viewer may see, on every page as its icon and on the overview as a banner; and the list of
problems below it, which has a line for each cause.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue import model_alarm as kinds
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.decisions.copy_status import CopyState, age_words
from btrkeep.decisions.findings import CATALOGUE, CHECKS, NOTE, OK, SCHEDULE, UNUSABLE, PoolVerdict
from btrkeep.decisions.overall import (
    ALARM_OF_CHECK,
    NEVER_COPIED,
    PROBLEM_STATES,
    SILENCED,
    Overall,
    OverallFacts,
    ProblemCount,
    alarm_kind,
    judge,
)
from btrkeep.decisions.silences import without_silenced
from btrkeep.decisions.verification import in_doubt_words, read_in_doubt
from btrkeep.serving.viewer import Viewer
from btrkeep.units import counted
from web.alarms import OpenAlarm, active_alarms, silences, visible_alarms
from web.copies import ReplicaView, copies
from web.hosts import data as hosts
from web.pool.data import pool_health
from web.source import RequestContext

EVERYTHING = Viewer("", "viewer")
"""For numbers that have no viewer."""

_PAGES = {
    **{state: f"hosts?state={state}" for state in (*PROBLEM_STATES, "damaged", "altered")},
    "copy-failing": "copies",
    "copy-late": "copies",
    NEVER_COPIED: "copies",
    SILENCED: "#silenced",
    **dict.fromkeys(CHECKS, "pool"),
    SCHEDULE: "doctor",
    UNUSABLE: "doctor",
    CATALOGUE: "doctor",
}
_SHOWN = 5
"""Hosts and details of a line of the list."""


def page_of_problem(kind: str) -> str:
    """Returns the address of the page that shows problems of this kind."""
    return f"/{_PAGES.get(kind, '#problems')}"


@dataclass(frozen=True, slots=True)
class _UncheckedPart:
    """Something that could not be checked, beside the checks of the pool."""

    words: str
    """A few words, for the verdict."""
    text: str
    """What that means."""
    since: datetime | None
    """When it was last known; None: unknown."""
    command: str = ""
    """What to type; "": nothing."""


@dataclass(frozen=True, slots=True)
class _JudgedFacts:
    """The verdict, and all that it is about."""

    overall: Overall
    """The verdict."""
    facts: OverallFacts
    """Its facts."""
    unchecked: tuple[_UncheckedPart, ...]
    """The members of `facts.unchecked`, with the reason and the command."""


def overall(source: RequestContext, viewer: Viewer) -> Overall:
    """Returns the verdict; cached between requests, separately for each limit of hosts."""
    return _judged(source, viewer).overall


def _judged(source: RequestContext, viewer: Viewer) -> _JudgedFacts:
    return source.cached(("overall", viewer.hosts), lambda: _judge(source, viewer))


def _judge(source: RequestContext, viewer: Viewer) -> _JudgedFacts:
    rows = [row for row in hosts.visible_to(viewer, hosts.every_row(source)) if row.enabled]
    bad = [count for host, count in hosts.bad_backups(source).items() if viewer.may_see(host)]
    health = pool_health(source)
    alarms = [
        alarm for alarm in active_alarms(source) if not viewer.limited or (alarm.host is not None and viewer.may_see(alarm.host))
    ]
    judged_hosts = without_silenced([(row.host, row.state) for row in rows], alarms, silences(source))
    unchecked = tuple(_unchecked(source, viewer))
    in_doubt = None if viewer.limited else read_in_doubt(source.catalogue)
    facts = OverallFacts(
        judged_hosts.states,
        damaged=sum(count.damaged for count in bad),
        altered=sum(count.altered for count in bad),
        pool=PoolVerdict() if viewer.limited else PoolVerdict(health.findings, health.unlooked),
        copies=() if viewer.limited else [replica.state for replica in copies(source, viewer).replicas if replica.state],
        in_doubt=len(in_doubt.backups) if in_doubt else 0,
        alarms=judged_hosts.alarms,
        unchecked=[member.words for member in unchecked],
        now=source.now,
        alarms_checked=health.looked,
        never=judged_hosts.never,
        silenced_hosts=len(judged_hosts.silenced),
        silenced_kinds=silences(source).problem_kinds,
    )
    return _JudgedFacts(judge(facts), facts, unchecked)


def _unchecked(source: RequestContext, viewer: Viewer) -> Iterator[_UncheckedPart]:
    """Yields what could not be checked. A viewer who is limited to hosts sees no names of files or of the pool."""
    doctor = "" if viewer.limited else command_for("backupd doctor", source.config.name, source.config.call)
    if source.problem:
        since, reason = source.problem
        text = "this page is not up to date" + ("" if viewer.limited else f": {reason}")
        yield _UncheckedPart("the catalogue cannot be used", text, since, doctor)
    if viewer.limited and (health := pool_health(source)).fault:
        yield _UncheckedPart("the pool cannot be read", "the administrator can see why", health.pool_looked)


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """A line of the list of problems: hosts, backups, copies or alarms with the same cause."""

    kind: str
    """A word for programs, as in the verdict."""
    level: str
    """error, warning or unknown."""
    count: int
    """Number of hosts, backups, copies or alarms. The lines of one kind add up to the number in the verdict."""
    words: str
    """A few words: `10 hosts failing`."""
    cause: str
    """Why; "": see `details`."""
    since: datetime | None
    """When the first of them began; null: unknown."""
    alarms: int
    """Number of its open alarms."""
    told: int
    """Number of its open alarms for which a notification was sent."""
    last_told: datetime | None
    """When a notification of one of these alarms was last sent; null: never."""
    hosts: tuple[str, ...]
    """The first hosts."""
    more: int
    """Number of further hosts or details."""
    details: tuple[str, ...]
    """One text for each finding; they may contain text from files and programs."""
    advice: str
    """What to do, with commands between backquotes."""
    command: str
    """What to type; "": nothing, or it is in the advice."""
    page: str
    """The page that shows them."""


def problems(source: RequestContext, viewer: Viewer) -> tuple[ProblemLine, ...]:
    """Returns a line for each cause of each problem of the verdict, in its order; of one kind the most frequent cause first. Cached
    between requests, separately for each limit of hosts.
    """
    return source.cached(("problems", viewer.hosts), lambda: tuple(_ProblemList(source, viewer).lines()))


class _ProblemList:
    """Makes the lines, from the facts of the verdict."""

    def __init__(self, source: RequestContext, viewer: Viewer) -> None:
        self._source, self._viewer, self._judged = source, viewer, _judged(source, viewer)
        call = "" if viewer.limited else source.config.call
        self._stored = [*self._judged.facts.alarms]
        shown = visible_alarms(self._stored, viewer, source.settings.pool, call)
        self._shown = {(alarm.what, alarm.subject): alarm for alarm in shown}
        self._bad_hosts = {host: bad for host, bad in hosts.bad_backups(source).items() if viewer.may_see(host)}

    def lines(self) -> Iterator[ProblemLine]:
        """Yields all lines."""
        unchecked = iter(self._judged.unchecked)
        for problem in self._judged.overall.problems:
            if problem.kind in PROBLEM_STATES:
                yield from self._of_hosts(problem)
            elif problem.kind in ("damaged", "altered"):
                yield self._of_bad_backups(problem)
            elif problem.kind.startswith("copy-"):
                yield self._of_copies(problem)
            elif problem.kind in CHECKS:
                yield self._of_pool(problem)
            elif problem.kind == "unchecked":
                yield self._of_unchecked(problem, unchecked)
            elif problem.kind == "in-doubt":
                yield self._of_doubt(problem)
            elif problem.kind != SILENCED:  # these are listed apart
                yield self._of_alarms(problem)

    def _of_hosts(self, problem: ProblemCount) -> Iterator[ProblemLine]:
        """Yields a line for each cause, the most frequent first."""
        facts, by_cause, words = hosts.every_facts(self._source), self._by_cause(problem.kind), PROBLEM_STATES[problem.kind][1]
        for cause, names in sorted(by_cause.items(), key=lambda pair: (-len(pair[1]), pair[0])):
            alarms = self._alarms(kinds.HOST, names)
            moments = {name: alarm.since for alarm in alarms if (name := alarm.host)}
            for name in names:
                if name not in moments and (host_facts := facts.get(name)):
                    moment = host_facts.last_complete if problem.kind == "late" else host_facts.last_run_started
                    moments |= {name: moment} if moment else {}
            page = page_of_problem(problem.kind) + (f"&cause={quote(cause)}" if len(by_cause) > 1 else "")
            advice = next((self._shown[alarm.key].advice for alarm in alarms if alarm.key in self._shown), None)
            yield self._line(
                problem,
                alarms,
                count=len(names),
                words=words(len(names)),
                cause=cause,
                since=min(moments.values(), default=None),
                hosts=names,
                advice=advice.words if advice else "",
                command=advice.command if advice and len(names) == 1 else "",
                page=page,
            )

    def _by_cause(self, state: str) -> dict[str, list[str]]:
        causes, by_cause = hosts.causes(self._source, self._viewer), dict[str, list[str]]()
        for row in hosts.visible_to(self._viewer, hosts.every_row(self._source)):
            if row.enabled and row.state == state and row.host in causes and "silenced" not in row.flags:
                by_cause.setdefault(causes[row.host], []).append(row.host)
        return by_cause

    def _of_bad_backups(self, problem: ProblemCount) -> ProblemLine:
        is_damaged = problem.kind == "damaged"
        names = sorted(host for host, bad in self._bad_hosts.items() if (bad.damaged if is_damaged else bad.altered))
        alarms = self._alarms(kinds.DAMAGED, names) if is_damaged else self._alarms(kinds.ALTERED_BACKUPS)
        advice = (
            "`backupd repair HOST --dry-run` lists the files that can be repaired from other backups or copies."
            if is_damaged
            else "Changed after the backup was final: `backupd verify HOST@BACKUP` names the files. Accept or delete the backup."
        )
        return self._line(problem, alarms, cause=f"on {counted(len(names), 'host')}", hosts=names, advice=advice)

    def _of_copies(self, problem: ProblemCount) -> ProblemLine:
        if problem.kind == NEVER_COPIED:
            return self._of_alarms(problem)
        state = CopyState(problem.kind.removeprefix("copy-"))
        replicas = [replica for replica in copies(self._source, self._viewer).replicas if replica.state == state]
        alarms = [alarm for replica in replicas for alarm in self._alarms(replica.kind, [replica.name])]
        return self._line(
            problem,
            alarms,
            since=min((replica.at for replica in replicas if replica.at), default=None),
            details=[_copy_words(replica) for replica in replicas],
            advice="The page Copies shows the reason, and the command that copies the missing backups.",
            command=replicas[0].command if len(replicas) == 1 else "",
        )

    def _of_pool(self, problem: ProblemCount) -> ProblemLine:
        findings = [finding for finding in self._judged.facts.pool.of(problem.kind) if finding.level not in (OK, NOTE)]
        alarms = self._alarms(ALARM_OF_CHECK[problem.kind][1])
        return self._line(
            problem,
            alarms,
            since=None if alarms or problem.kind != UNUSABLE else pool_health(self._source).pool_looked,
            details=[finding.text for finding in findings],
            advice=next((finding.hint for finding in findings if finding.hint), ""),
        )

    def _of_unchecked(self, problem: ProblemCount, unchecked: Iterator[_UncheckedPart]) -> ProblemLine:
        """Those of this module are in the order in which the verdict has them."""
        health, facts = pool_health(self._source), self._judged.facts
        if problem.words in facts.unchecked:
            member = next(unchecked)
            return self._line(problem, cause=member.text, since=member.since, command=member.command, page="/doctor")
        if problem.words.startswith("alarms"):
            advice = (
                ""
                if self._viewer.limited
                else "`backupd notify` checks the pool and the alarms; its timer does this every five minutes."
            )
            name = "" if self._viewer.limited else f"systemctl status btrkeep-news@{self._source.config.name}.timer"
            cause = "the state of the pool and of its alarms is unknown now"
            return self._line(problem, cause=cause, since=health.looked, advice=advice, command=name, page="/doctor")
        return self._line(problem, details=facts.pool.unlooked, page="/doctor")

    def _of_doubt(self, problem: ProblemCount) -> ProblemLine:
        in_doubt = read_in_doubt(self._source.catalogue)
        cause = in_doubt_words(in_doubt) if in_doubt else ""
        since = in_doubt.since if in_doubt else None
        return self._line(
            problem, cause=cause, since=since, advice="`backupd verify --after-crash` reads these backups.", page="/doctor"
        )

    def _of_alarms(self, problem: ProblemCount) -> ProblemLine:
        is_copy = problem.kind == NEVER_COPIED
        alarms = [
            alarm
            for alarm in self._stored
            if (alarm.what == kinds.SILENT and alarm.about.traits.of_copy if is_copy else alarm_kind(alarm) == problem.kind)
        ]
        shown = self._shown_of(alarms)
        names = [alarm.host for alarm in shown if alarm.host]
        return self._line(
            problem,
            alarms,
            details=[alarm.text for alarm in shown],
            hosts=names,
            advice=shown[0].advice.words if shown else "",
            command=shown[0].advice.command if len(shown) == 1 else "",
            page=f"/{shown[0].advice.page}" if shown and shown[0].advice.page else page_of_problem(problem.kind),
        )

    def _alarms(self, kind: str, names: Iterable[str] = ()) -> list[StoredAlarm]:
        """Returns the alarms about subjects of this kind; those with these names, if it has names."""
        wanted, is_named = {*names}, bool(names)
        return [alarm for alarm in self._stored if alarm.about.kind == kind and (not is_named or alarm.about.name in wanted)]

    def _shown_of(self, alarms: Iterable[StoredAlarm]) -> list[OpenAlarm]:
        return [self._shown[alarm.key] for alarm in alarms if alarm.key in self._shown]

    def _line(
        self,
        problem: ProblemCount,
        alarms: Sequence[StoredAlarm] = (),
        *,
        count: int | None = None,
        words: str = "",
        cause: str = "",
        since: datetime | None = None,
        hosts: Sequence[str] = (),
        details: Sequence[str] = (),
        advice: str = "",
        command: str = "",
        page: str = "",
    ) -> ProblemLine:
        sent = [alarm.told for alarm in alarms if alarm.is_notified and alarm.told]
        return ProblemLine(
            problem.kind,
            problem.level,
            problem.count if count is None else count,
            words or problem.words,
            cause,
            since or min((alarm.since for alarm in alarms), default=None),
            alarms=len(alarms),
            told=len(sent),
            last_told=max(sent, default=None),
            hosts=tuple(hosts[:_SHOWN]),
            more=max(len(hosts), len(details)) - _SHOWN if max(len(hosts), len(details)) > _SHOWN else 0,
            details=tuple(details[:_SHOWN]),
            advice=advice,
            command=command,
            page=page or page_of_problem(problem.kind),
        )


def _copy_words(replica: ReplicaView) -> str:
    words = f"{replica.name}: {age_words(replica.kind, replica.age)}"
    return f"{words}; {replica.error}" if replica.error else words


_SERVICES = {"mailto": "mail", "mailtos": "mail"}


def notified_by(source: RequestContext) -> str:
    """Returns the kinds of services that get alarms: "mail, ntfy"; "" if there is none or if that is unknown."""
    return ", ".join(dict.fromkeys(_SERVICES.get(scheme, scheme) for scheme in source.config.services or ()))
