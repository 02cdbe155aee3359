"""The words for what retention decides: the one place where a reason becomes text. Pure."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache

from btrkeep.config import Retention
from btrkeep.config.retention import PERIOD_NAMES
from btrkeep.decisions.retention import Decision, DeletionRequest, Hold, Reason, RetentionCode
from btrkeep.units import format_duration, local_time

REASONS: dict[str, str] = {
    **{name: f"{name} {{number}} of {{of}}" for name in PERIOD_NAMES},
    RetentionCode.NEWEST: "newest {number} of {of}",
    RetentionCode.MIN_KEEP: "min_keep {number} of {of}",
    RetentionCode.NEWEST_COMPLETE: "newest complete",
    RetentionCode.BEFORE_SUSPECT: "last complete before the suspect {text}",
    RetentionCode.COMMON: "common with replica {text}",
    RetentionCode.IN_USE: "base of the run in progress",
    RetentionCode.NO_POLICY: "no retention policy",
    RetentionCode.IN_FUTURE: "stamped in the future",
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
    """All reasons of one decision."""
    return ", ".join(map(reason_words, reasons))


def hold_words(hold: Hold, time_words: Callable[[datetime], str] = local_time) -> str:
    """ "held until 2027-01-01T00:00:00Z: the audit", "held"."""
    until = f"held until {time_words(hold.until)}" if hold.until else "held"
    return f"{until}: {hold.why}" if hold.why else until


def by_hand(asked: DeletionRequest | None) -> str:
    """Formats that an operator deleted it, and why; "" if none did."""
    return reason_words(Reason(RetentionCode.BY_HAND, text=asked.why)) if asked else ""


def goes_words(expires: datetime, now: datetime) -> str:
    """Formats when a backup is deleted that may be deleted from `expires` on: by the next expiry, if that is past."""
    return f"to be deleted since {local_time(expires)}" if expires <= now else f"expires {local_time(expires)}"


def words_of(decision: Decision, now: datetime) -> str:
    """Formats why a backup is kept, or when it is deleted and why."""
    why = reasons_words(decision.reasons)
    return f"{goes_words(decision.expires, now)}: {why}" if decision.expires else why


def policy_words(policy: Retention) -> str:
    """The policy in one line."""
    if policy.missing:
        return "no retention policy, so everything is kept"
    rules = ", ".join(f"{name} {count}" for name in PERIOD_NAMES if (count := getattr(policy, name)))
    return f"{rules}; min_keep {policy.min_keep}, grace {format_duration(policy.grace)}"
