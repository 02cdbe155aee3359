"""The samples that `backupd metrics` and the dashboard's /metrics share: which value belongs to which metric
and labels.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

from btrkeep import metrics as table
from btrkeep.catalogue import BalanceTotals, ExpiryTotals, FreeSpaceScore, StoredAlarm
from btrkeep.choices import ALARM_EVENTS
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.findings import CHECKS, LEVELS, NOTE, PoolVerdict, grade
from btrkeep.decisions.overall import Overall
from btrkeep.decisions.trend import PoolNumbers
from btrkeep.metrics import Metric

Kind = TypeVar("Kind", bound=str)


class AddSample(Protocol):
    """Adds one sample. The labels are those of the metric without the pool's name; a value of None is unknown and adds none."""

    def __call__(self, metric: Metric, value: float | None, *labels: str) -> None: ...


def add_state(add: AddSample, metric: Metric, states: Iterable[str], state: str, *labels: str) -> None:
    """Adds 1 for the present state, and 0 for each other one."""
    for each in states:
        add(metric, each == state, *labels, each)


def add_counts(add: AddSample, metric: Metric, kinds: Iterable[Kind], counts: Mapping[Kind, int]) -> None:
    """Adds the count of each kind, 0 for missing ones."""
    for kind in kinds:
        add(metric, counts.get(kind, 0), kind)


def add_numbers(add: AddSample, numbers: PoolNumbers) -> None:
    """Adds the known facts about the pool's filesystem."""
    add(table.DEVICES_SIZE, numbers.size)
    add(table.DEVICES_ALLOCATED, numbers.allocated)
    add(table.DEVICES_USED, numbers.used)
    for kind, (allocated, used) in sorted(numbers.spaces.items()):
        add(table.SPACE_ALLOCATED, allocated, kind)
        add(table.SPACE_USED, used, kind)
    for devid, errors in numbers.errors.items():
        for error, count in errors.items():
            add(table.DEVICE_ERRORS, count, str(devid), error)
    add(table.ORPHANS, numbers.orphans)
    add(table.SAMPLED, numbers.taken.timestamp())


def add_score(add: AddSample, score: FreeSpaceScore) -> None:
    """Adds the score of the free space."""
    add(table.SCORE, score.score)
    add(table.BAD, score.bad)
    add(table.FRAGMENTS, score.fragments)
    add(table.FREE_LARGE, score.free_in_large)
    add(table.SCORED, score.taken.timestamp())


def add_expiry_totals(add: AddSample, totals: ExpiryTotals) -> None:
    """Adds the totals of all expiries."""
    add(table.EXPIRY_RUNS, totals.runs)
    add(table.EXPIRY_DELETED, totals.deleted)


def add_balance_totals(add: AddSample, totals: BalanceTotals) -> None:
    """Adds the totals of all balances of the filesystem."""
    add(table.BALANCE_RUNS, totals.runs)
    add(table.BALANCE_GROUPS, totals.block_groups)
    add(table.BALANCE_MOVED, totals.moved)
    add(table.BALANCE_WRITTEN, totals.written)


def add_health(add: AddSample, verdict: PoolVerdict) -> None:
    """Adds the level of each check of the pool."""
    for check in CHECKS:
        add(table.HEALTH, grade(verdict.level_of(check)), check)


def add_alarms(add: AddSample, alarms: Iterable[StoredAlarm], now: datetime, patience: AlarmPatience) -> None:
    """Adds how many alarms of each kind are open."""
    active_events = [row.what for row in alarms if patience.is_active(row, now)]
    for event in (*ALARM_EVENTS, "service"):
        add(table.ALARMS, active_events.count(event), event)


def add_verdict(add: AddSample, overall: Overall) -> None:
    """Adds the level of the verdict."""
    add_state(add, table.VERDICT, (level for level in LEVELS if level != NOTE), overall.level)
