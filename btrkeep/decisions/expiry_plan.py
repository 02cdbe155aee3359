"""Decides what an expiry marks, unmarks, deletes now or deletes later, host by host, with reasons. Pure.

The same function is called twice: for the plan, from catalogue and names; and again under the host's lock, from the backups
themselves. Only actions in both results are carried out.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.backup_states import COMPLETE, DELETING, EXPIRED, GOING
from btrkeep.config import Retention
from btrkeep.decisions.due import latest
from btrkeep.decisions.retention import Candidate, Decision, Reason, decide
from btrkeep.decisions.safety_limits import DeletedShare, Forced, too_many


@dataclass(frozen=True, slots=True)
class UnreadableHost:
    """A host whose holds cannot be read, with the error."""

    error: str


@dataclass(frozen=True, slots=True)
class HostBackups:
    """The facts about a host that its plan depends on."""

    host: str
    """Its name."""
    candidates: Sequence[Candidate]
    """Its final backups, marked ones included."""
    policy: Retention
    """The retention that applies to it."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The states in the catalogue, by the backup's name."""
    forgotten: datetime | None = None
    """When `backupd forget` was called for it; None: never."""
    configured: bool = True
    """True if the configuration has this host."""
    problem: UnreadableHost | None = None
    """Why its data cannot be read completely, which prevents any change; None: everything was read."""
    stale: bool = False
    """True if its notes contain expired backups that no longer exist."""
    unread: tuple[str, ...] = ()
    """Names of backups without a row that the disk cannot read; they are kept."""


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """The action for one backup and its reasons."""

    name: str
    """The backup's name."""
    reasons: tuple[Reason, ...]
    """Why it is kept or deleted."""
    expires: datetime | None = None
    """When it may be deleted; None if it is kept."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The plan for one host."""

    host: str
    """Its name."""
    total: int = 0
    """Number of its final backups."""
    mark: tuple[ExpiryStep, ...] = ()
    """Backups to be marked for deletion; those without a grace period are also in `delete`."""
    revive: tuple[ExpiryStep, ...] = ()
    """Marked backups whose mark is removed."""
    delete: tuple[ExpiryStep, ...] = ()
    """Marked backups whose grace period is over."""
    wait: tuple[ExpiryStep, ...] = ()
    """Marked backups whose grace period is not over."""
    amend: tuple[tuple[str, str], ...] = ()
    """Backups with wrong rows, by name, with the right state."""
    going: int = 0
    """Number of backups to be deleted that the catalogue does not yet have as such: the safety limits count these."""
    forgotten: bool = False
    """True if `backupd forget` was called for it."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The states in the catalogue, by the backup's name."""

    @property
    def names(self) -> frozenset[str]:
        """Returns the backups that will be changed."""
        return frozenset(step.name for step in (*self.mark, *self.revive, *self.delete))

    @property
    def changes_notes(self) -> bool:
        """True if notes.json must be written."""
        return bool(self.mark or self.revive or self.amend)

    @property
    def goes_at_once(self) -> bool:
        """Returns True if a backup will be deleted that is not yet marked."""
        return not {step.name for step in self.mark}.isdisjoint(step.name for step in self.delete)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan. `hosts`: those with changes or waiting deletions; `skipped_hosts`: other hosts and the reasons.

    `stop`: why nothing may be done at all. `unruled`: hosts without a policy, whose backups are all kept; `unconfigured`: those of
    them that are not configured. `stale`: hosts whose notes contain deleted backups. `total`: number of final backups.
    """

    hosts: tuple[HostPlan, ...]
    skipped_hosts: Mapping[str, DeletedShare | UnreadableHost]
    stop: DeletedShare | None
    total: int
    unruled: tuple[str, ...] = ()
    unconfigured: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    def count(self, list_name: str) -> int:
        """Returns the number of backups in one field: those to be marked, revived, deleted, or waiting."""
        return sum(len(getattr(host, list_name)) for host in self.hosts)


def plan_host(facts: HostBackups, zone: ZoneInfo, now: datetime, *, clock_waits: bool) -> HostPlan:
    """Returns the plan of one host. `clock_waits`: the clock is doubted, so no grace period and no hold ends in this run."""
    candidates = [_with_extended_hold(candidate, now) for candidate in facts.candidates] if clock_waits else facts.candidates
    decisions = decide(candidates, facts.policy, zone, now, forgotten=facts.forgotten)
    by_name = {candidate.name: candidate for candidate in candidates}
    mark, revive, delete, wait, amend = [], [], [], [], []
    going = 0
    for decision in decisions:
        decided = by_name[decision.name]
        row = facts.rows.get(decided.name, decided.state)
        if decision.keep:
            if decided.expired:
                revive.append(_step(decision))
            elif row != decided.state:
                amend.append((decided.name, decided.state))
            continue
        step = _step(decision)
        going += row not in GOING and not decided.asked  # an operator's own request needs no guard
        if decided.marked(now) is None:
            mark.append(step)
        needs_no_clock = row == DELETING or (decided.asked is not None and decided.asked.at_once)
        over = decision.expires is not None and decision.expires <= now and (needs_no_clock or not clock_waits)
        if over:
            delete.append(step)
        elif decided.marked(now):
            wait.append(step)
            if row != EXPIRED:
                amend.append((decided.name, EXPIRED))
    lists = tuple(mark), tuple(revive), _without_the_last(facts, delete, now), tuple(wait), tuple(amend)
    return HostPlan(facts.host, len(candidates), *lists, going, facts.forgotten is not None, facts.rows)


def _step(decision: Decision) -> ExpiryStep:
    return ExpiryStep(decision.name, decision.reasons, decision.expires)


def _with_extended_hold(candidate: Candidate, now: datetime) -> Candidate:
    """Returns the candidate with an extended hold, if its hold would have ended by `now`."""
    if candidate.hold is None or candidate.hold.is_in_force(now):
        return candidate
    return replace(candidate, hold=replace(candidate.hold, until=None))


def _without_the_last(facts: HostBackups, delete: Sequence[ExpiryStep], now: datetime) -> tuple[ExpiryStep, ...]:
    """Checks again that the last complete backup is kept, because a deletion cannot be undone.

    Returns no deletion at all if a host that was not given up would lose its last complete backup. Backups whose deletion was
    requested even as the last ones do not count.
    """
    if facts.forgotten is None and delete:
        doomed = {step.name for step in delete}
        complete = {
            candidate.name
            for candidate in facts.candidates
            if candidate.state == COMPLETE and candidate.started <= latest(now) and not (candidate.asked and candidate.asked.last)
        }
        if complete and complete <= doomed:
            return ()
    return tuple(delete)


def make_plan(
    all_facts: Iterable[HostBackups], zone: ZoneInfo, now: datetime, forced: Forced, *, clock_waits: bool = False
) -> Plan:
    """Returns the plan of all hosts, including the safety limits. The administrator has given up some hosts explicitly, so no limit
    counts their backups.
    """
    plans, shares = [], {}
    skipped_hosts: dict[str, DeletedShare | UnreadableHost] = {}
    unruled: list[str] = []
    unconfigured: list[str] = []
    stale: list[str] = []
    total = 0
    for facts in all_facts:
        total += len(facts.candidates)
        if facts.problem:
            skipped_hosts[facts.host] = facts.problem
            continue
        if facts.stale:
            stale.append(facts.host)
        if facts.policy.missing and facts.candidates and facts.forgotten is None:
            (unruled if facts.configured else unconfigured).append(facts.host)
        host_plan = plan_host(facts, zone, now, clock_waits=clock_waits)
        if facts.forgotten is None:
            shares[facts.host] = DeletedShare(host_plan.going, host_plan.total)
        if host_plan.changes_notes or host_plan.delete or host_plan.wait or host_plan.forgotten:
            plans.append(host_plan)
    guarded = too_many(shares, forced)
    skipped_hosts |= guarded.skipped_hosts
    hosts = tuple(plan for plan in plans if plan.host not in skipped_hosts)
    return Plan(hosts, skipped_hosts, guarded.stop, total, tuple(unruled), tuple(unconfigured), tuple(stale))


def deletions_of(plan: Plan, names: Container[tuple[str, str]]) -> Plan:
    """Returns only the deletions of these backups, by host and name."""
    hosts = (
        replace(
            host,
            mark=(),
            revive=(),
            wait=(),
            amend=(),
            delete=tuple(step for step in host.delete if (host.host, step.name) in names),
        )
        for host in plan.hosts
    )
    return replace(plan, hosts=tuple(host for host in hosts if host.delete), unruled=(), unconfigured=(), stale=())


def agreed(plan: HostPlan, seen: HostPlan) -> HostPlan:
    """Returns the actions that are in the plan and in the second result. To keep a backup, one of them is sufficient: all removed
    marks of the second result count.
    """
    return replace(
        seen,
        mark=_both(seen.mark, plan.mark),
        delete=_both(seen.delete, plan.delete),
    )


def _both(seen: Sequence[ExpiryStep], planned: Sequence[ExpiryStep]) -> tuple[ExpiryStep, ...]:
    names = {step.name for step in planned}
    return tuple(step for step in seen if step.name in names)
