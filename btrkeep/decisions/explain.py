"""The result of `retention explain`: decisions about backups, counted, and as JSON. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.backup_states import GOING
from btrkeep.config import Retention
from btrkeep.decisions.calendar_strip import StripBackup, kind_of
from btrkeep.decisions.due import latest
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Decision, decide
from btrkeep.decisions.retention_words import reason_words
from btrkeep.decisions.safety_limits import DeletedShare, Forced, LimitsExceeded, too_many
from btrkeep.units import format_time, local_time


@dataclass(frozen=True, slots=True)
class ExplainedHost:
    """A host with the decision about each of its backups, oldest first. `today`: how many go by the policy as it is configured."""

    facts: HostBackups
    decisions: Sequence[Decision]
    today: int

    @property
    def going(self) -> int:
        """Returns how many backups will be deleted, including those already expired."""
        return sum(not decision.keep for decision in self.decisions)

    @property
    def oldest(self) -> str | None:
        """The oldest one that is kept."""
        return next((decision.name for decision in self.decisions if decision.keep), None)


def as_of(facts: HostBackups, at: datetime) -> HostBackups:
    """Returns the host as it was or will be at `at`: without later backups and marks. Future backups are not invented."""
    then = [
        replace(one, expired=None) if one.expired and one.expired > at else one for one in facts.candidates if one.started <= at
    ]
    return replace(facts, candidates=then)


def explain(facts: HostBackups, policy: Retention, zone: ZoneInfo, now: datetime) -> ExplainedHost:
    """The decisions by `policy`, which need not be the host's own."""

    def by(rules: Retention) -> list[Decision]:
        return decide(facts.candidates, rules, zone, now, forgotten=facts.forgotten)

    decisions = by(policy)
    own = decisions if policy == facts.policy else by(facts.policy)
    return ExplainedHost(facts, decisions, sum(not decision.keep for decision in own))


def guarded(hosts: Iterable[ExplainedHost]) -> LimitsExceeded:
    """Returns the hosts that an expiry would skip, or whether it would refuse to start, because too many backups would be deleted
    at once. Backups that are already being deleted do not count.
    """
    return too_many({one.facts.host: _share(one) for one in hosts if one.facts.forgotten is None}, Forced())


def _share(one: ExplainedHost) -> DeletedShare:
    rows = one.facts.rows
    new = sum(not decision.keep and rows.get(decision.name) not in GOING for decision in one.decisions)
    return DeletedShare(new, len(one.decisions))


def objects(host: ExplainedHost) -> Iterator[dict[str, Any]]:
    """Yields one JSON object for each backup."""
    name = host.facts.host
    for decision in host.decisions:
        yield {
            "host": name,
            "name": decision.name,
            "keep": decision.keep,
            "reasons": [reason_words(reason) for reason in decision.reasons],
            "rules": [reason.code for reason in decision.reasons],
            "expires": format_time(decision.expires) if decision.expires else None,
        }


def cells(host: ExplainedHost, zone: ZoneInfo) -> list[StripBackup]:
    """Returns the cells of the calendar strip."""
    by_name = {one.name: one for one in host.facts.candidates}
    return [
        StripBackup(
            by_name[decision.name].started.astimezone(zone).date(),
            kind_of(decision.keep, [reason.code for reason in decision.reasons], by_name[decision.name].state),
        )
        for decision in host.decisions
    ]


def note_of(host: ExplainedHost, policy: Retention) -> str:
    """Returns a remark about the host as a whole; mostly none."""
    facts = host.facts
    if facts.forgotten:
        return f"forgotten since {local_time(facts.forgotten)}"
    if policy.missing and facts.candidates:
        return "no retention policy" if facts.configured else "no retention policy, since it is not configured"
    return ""


def future_names(host: ExplainedHost, now: datetime) -> list[str]:
    """Backups that the strip cannot show, since a wrong clock stamped them."""
    return [one.name for one in host.facts.candidates if one.started > latest(now)]
