"""The state of a host in one word, and why. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from backupd.due import FUTURE, is_due, is_late
from btrkeep.catalogue import HostFacts
from btrkeep.config import HostConfig

STATES = ("ok", "late", "failing", "suspect", "never")


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One line of `backupd status`. `age` is seconds since the newest complete backup started."""

    host: str
    state: str
    last_complete: datetime | None
    age: float | None
    next_due: datetime | None
    error: str | None
    warnings: Sequence[str] = ()


def host_status(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, now: datetime) -> HostStatus:
    """What `status` says of a host. The first that fits: suspect, never, failing, late, ok; an absent optional host is not late."""
    last = facts.last_complete if facts else None
    age = (now - last).total_seconds() if last else None
    following = is_due(last, host.every, host.window, zone, now).when if host.enabled else None
    return HostStatus(
        host.name, _state(host, facts, now), last, age, following, _error(facts, last, now), facts.newest_warnings if facts else ()
    )


def _state(host: HostConfig, facts: HostFacts | None, now: datetime) -> str:
    if facts is None:
        return "never"
    if facts.newest_state == "suspect":
        return "suspect"
    if facts.last_complete is None:
        return "never"
    if facts.last_run_outcome in ("failed", "partial") and _newer_than_complete(facts):
        return "failing"
    if host.enabled and not host.optional and is_late(facts.last_complete, host.every, now):
        return "late"
    return "ok"


def _newer_than_complete(facts: HostFacts) -> bool:
    return facts.last_run_started is not None and (facts.last_complete is None or facts.last_run_started >= facts.last_complete)


def _error(facts: HostFacts | None, last: datetime | None, now: datetime) -> str | None:
    if facts is None:
        return None
    if last and last > now + FUTURE:
        return "the newest complete backup is stamped in the future: was a clock wrong?"
    if facts.newest_state == "suspect":
        return facts.newest_error
    if facts.last_run_outcome in ("failed", "partial") and _newer_than_complete(facts):
        return facts.last_run_error
    return None  # also for a suspect backup that was accepted
