"""Retention over years: successive decisions, each about the backups that the decisions before have kept."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.config import Retention
from btrkeep.decisions.retention import Candidate, decide
from btrkeep.decisions.retention_words import reason_words
from tests.backupd.golden.reference import Backup


def candidate(backup: Backup) -> Candidate:
    return Candidate(backup.name, datetime.fromtimestamp(backup.epoch, UTC), backup.state)


def names(backups: Iterable[Candidate]) -> list[str]:
    return sorted(backup.name for backup in backups)


def kept(backups: Sequence[Candidate], policy: Retention, zone: str, now: datetime) -> dict[str, set[str]]:
    """Returns the reasons of all kept backups, by name."""
    return {
        decision.name: set(map(reason_words, decision.reasons))
        for decision in decide(backups, policy, ZoneInfo(zone), now)
        if decision.keep
    }


def prune(backups: Sequence[Candidate], policy: Retention, zone: str, now: datetime) -> list[Candidate]:
    """Returns the backups that are left when all due ones are deleted at once."""
    left = kept(backups, policy, zone, now)
    return [backup for backup in backups if backup.name in left]


def pruned_each_time(backups: Iterable[Candidate], policy: Retention, zone: str) -> list[Candidate]:
    """Returns the backups that are left when each new backup is followed by a pruning."""
    left: list[Candidate] = []
    for backup in backups:
        left = prune([*left, backup], policy, zone, backup.started)
    return left


def expire(backups: Sequence[Candidate], policy: Retention, zone: str, now: datetime) -> list[Candidate]:
    """Returns the state after an expiry: due backups are marked, kept ones unmarked, and those whose grace period has ended are
    deleted.
    """
    left = []
    for backup, decision in zip(
        sorted(backups, key=lambda backup: backup.started), decide(backups, policy, ZoneInfo(zone), now), strict=True
    ):
        assert backup.name == decision.name
        if decision.keep:
            left.append(replace(backup, expired=None))
        elif backup.expired is None or backup.expired + timedelta(seconds=policy.grace) > now:
            left.append(replace(backup, expired=backup.expired or now))
    return left
