"""The decisions of the retention, in words and as JSON: the one place where a reason becomes text. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.backup_states import GOING
from btrkeep.config import Retention
from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.decisions.calendar_strip import StripBackup, kind_of
from btrkeep.decisions.due import latest
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Decision, DeletionRequest, Hold, Reason, RetentionCode, decide
from btrkeep.decisions.safety_limits import DeletedShare, Forced, LimitsExceeded, too_many
from btrkeep.units import format_duration, format_time, local_time

REASONS: dict[str, str] = {
    **{name: f"{name} {{number}} of {{of}}" for name in PERIOD_NAMES},
    RetentionCode.NEWEST: "newest {number} of {of}",
    RetentionCode.MIN_KEEP: "min_keep {number} of {of}",
    RetentionCode.NEWEST_COMPLETE: "newest complete",
    RetentionCode.BEFORE_SUSPECT: "last complete before the suspect {text}",
    RetentionCode.COMMON: "common with replica {text}",
    RetentionCode.IN_USE: "base of the run in progress",
    RetentionCode.NO_POLICY: "no retention policy",
    RetentionCode.IN_FUTURE: "its time is in the future",
    RetentionCode.ALTERED: "changed after it was final",
    RetentionCode.UNKNOWN_STATE: "unknown state {text}",
    RetentionCode.NO_RULE: "no rule keeps it",
    RetentionCode.REPLACED: "two newer complete backups",
    RetentionCode.FORGOTTEN: "host forgotten",
    RetentionCode.BY_HAND: "deleted by hand",
}


@lru_cache(4096)  # thousands of hosts share most of them
def reason_words(reason: Reason) -> str:
    """Formats one reason: "daily 3 of 14", "suspect: two newer complete backups", "held until 2027-01-01T00:00:00Z: the audit"."""
    if reason.code is RetentionCode.HELD:
        return hold_words(Hold(reason.until, reason.text))
    words = REASONS[reason.code].format(number=reason.number, of=reason.of, text=reason.text)
    if reason.code is RetentionCode.BY_HAND and reason.text:
        return f"{words}: {reason.text}"
    return f"{reason.state}: {words}" if reason.state else words


def reasons_words(reasons: Iterable[Reason]) -> str:
    """Formats all reasons of one decision."""
    return ", ".join(map(reason_words, reasons))


def hold_words(hold: Hold, time_words: Callable[[datetime], str] = local_time) -> str:
    """ "held until 2027-01-01T00:00:00Z: the audit", "held"."""
    until = f"held until {time_words(hold.until)}" if hold.until else "held"
    return f"{until}: {hold.why}" if hold.why else until


def by_hand(asked: DeletionRequest | None) -> str:
    """Formats who deleted it, and why; "" if it was not deleted."""
    return reason_words(Reason(RetentionCode.BY_HAND, text=asked.why)) if asked else ""


def deletion_words(expires: datetime, now: datetime) -> str:
    """Formats when a backup is deleted that may be deleted from `expires` on: by the next expiry, if that time is past."""
    return f"due for deletion since {local_time(expires)}" if expires <= now else f"expires {local_time(expires)}"


def words_of(decision: Decision, now: datetime) -> str:
    """Formats why a backup is kept, or when it is deleted and why."""
    why = reasons_words(decision.reasons)
    return f"{deletion_words(decision.expires, now)}: {why}" if decision.expires else why


def policy_words(policy: Retention) -> str:
    """Formats the policy in one line."""
    if policy.missing:
        return "no retention policy, so everything is kept"
    rules = ", ".join(f"{name} {count}" for name in PERIOD_NAMES if (count := getattr(policy, name)))
    return f"{rules}; min_keep {policy.min_keep}, grace {format_duration(policy.grace)}"


@dataclass(frozen=True, slots=True)
class ExplainedHost:
    """A host with the decisions about its backups."""

    facts: HostBackups
    """The facts that they depend on."""
    decisions: Sequence[Decision]
    """The decisions, one for each backup, oldest first."""
    today: int
    """Number of backups that are deleted by the configured policy."""

    @property
    def going(self) -> int:
        """Returns how many backups will be deleted, including those already expired."""
        return sum(not decision.keep for decision in self.decisions)

    @property
    def oldest(self) -> str | None:
        """Returns the oldest backup that is kept."""
        return next((decision.name for decision in self.decisions if decision.keep), None)


def as_of(facts: HostBackups, at: datetime) -> HostBackups:
    """Returns the host at the time `at`: without later backups and marks. A time in the future adds no backups."""
    then = [
        replace(candidate, expired=None) if candidate.expired and candidate.expired > at else candidate
        for candidate in facts.candidates
        if candidate.started <= at
    ]
    return replace(facts, candidates=then)


def explain(facts: HostBackups, policy: Retention, zone: ZoneInfo, now: datetime) -> ExplainedHost:
    """Returns the decisions by `policy`, which may differ from the host's own."""

    def by(rules: Retention) -> list[Decision]:
        return decide(facts.candidates, rules, zone, now, forgotten=facts.forgotten)

    decisions = by(policy)
    own = decisions if policy == facts.policy else by(facts.policy)
    return ExplainedHost(facts, decisions, sum(not decision.keep for decision in own))


def guarded(hosts: Iterable[ExplainedHost]) -> LimitsExceeded:
    """Returns the hosts that an expiry would skip, or whether it would refuse to start, because too many backups would be deleted
    together. Backups that are already being deleted do not count.
    """
    return too_many({host.facts.host: _share(host) for host in hosts if host.facts.forgotten is None}, Forced())


def _share(explained: ExplainedHost) -> DeletedShare:
    rows = explained.facts.rows
    new = sum(not decision.keep and rows.get(decision.name) not in GOING for decision in explained.decisions)
    return DeletedShare(new, len(explained.decisions))


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
    by_name = {candidate.name: candidate for candidate in host.facts.candidates}
    return [
        StripBackup(
            by_name[decision.name].started.astimezone(zone).date(),
            kind_of(decision.keep, [reason.code for reason in decision.reasons], by_name[decision.name].state),
        )
        for decision in host.decisions
    ]


def note_of(host: ExplainedHost, policy: Retention) -> str:
    """Returns a remark about the whole host; usually none."""
    facts = host.facts
    if facts.forgotten:
        return f"forgotten since {local_time(facts.forgotten)}"
    if policy.missing and facts.candidates:
        return "no retention policy" if facts.configured else "no retention policy, since it is not configured"
    return ""


def future_names(host: ExplainedHost, now: datetime) -> list[str]:
    """Returns the backups that the strip cannot show, because their times are in the future."""
    return [candidate.name for candidate in host.facts.candidates if candidate.started > latest(now)]
