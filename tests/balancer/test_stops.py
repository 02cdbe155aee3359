"""Why a run ends or waits: the table of rules, for each fact."""

import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from balancer.cost_model import Estimate
from balancer.run_types import BalanceOutcome, PlannedBlockGroup, RelocationObstacle, RoomFloor, RunSettings, StepDone, StopReason
from balancer.stop_rules import BEFORE, DURING, StopFacts, first_stop, stop_after_steps, too_long
from balancer.survey import Cost

GIB = 1 << 30
NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
WELL = StopFacts(NOW, elapsed=60, moved=5 * GIB, unallocated=100 * GIB, total=1000 * GIB, pressure=0.1)
LIMITS = RunSettings(budget=10 * GIB, time=3600, until=NOW + timedelta(hours=1))


def test_with_nothing_in_the_way_it_goes_on() -> None:
    assert first_stop(BEFORE, LIMITS, WELL) is None
    assert first_stop(DURING, LIMITS, WELL) is None
    assert first_stop(BEFORE, RunSettings(), replace(WELL, moved=1 << 60, elapsed=1e9, pressure=None)) is None


REASONS: list[tuple[dict[str, Any], StopReason, str, bool]] = [
    ({"signal": signal.SIGTERM}, StopReason.SIGNAL, "received SIGTERM", True),
    ({"unallocated": 4 * GIB - 1}, StopReason.UNALLOCATED, "4.00 GiB are unallocated, less than the limit of 4 GiB", False),
    (
        {"exclusive": "device add", "exclusive_by": "process 7: btrfs device add"},
        StopReason.EXCLUSIVE,
        "the filesystem is busy: device add (process 7: btrfs device add)",
        False,
    ),
    ({"exclusive": "resize"}, StopReason.EXCLUSIVE, "the filesystem is busy: resize", False),
    ({"backups": "backupd run (process 7)"}, StopReason.BACKUPS, "backups come first: backupd run (process 7)", True),
    ({"elapsed": 3600}, StopReason.TIME, "the time limit of 1h is reached", True),
    ({"now": NOW + timedelta(hours=1)}, StopReason.WINDOW, "the window ended at 2026-11-20 23:00 +0000", True),
    ({"moved": 10 * GIB}, StopReason.BUDGET, "10.0 GiB moved: the budget is used", False),
    ({"pressure": 0.41}, StopReason.PRESSURE, "programs wait for the disks 41% of the time, more than the limit of 40%", False),
]


@pytest.mark.parametrize(("facts", "reason", "why", "cancels"), REASONS)
def test_each_fact_has_its_reason_and_some_cancel_what_is_under_way(
    facts: dict[str, Any], reason: StopReason, why: str, cancels: bool
) -> None:
    result = first_stop(BEFORE, LIMITS, replace(WELL, **facts))
    assert result is not None
    assert (result.reason, result.why) == (reason, why)
    assert first_stop(DURING, LIMITS, replace(WELL, **facts)) == (result if cancels else None)


def test_just_before_a_limit_nothing_ends() -> None:
    edge: dict[str, Any] = {"unallocated": 4 * GIB, "elapsed": 3599.9, "moved": 10 * GIB - 1, "pressure": 0.4}
    assert first_stop(BEFORE, LIMITS, replace(WELL, now=NOW + timedelta(minutes=59, seconds=59), **edge)) is None


def test_the_first_reason_of_several_is_told() -> None:
    everything: dict[str, Any] = {}
    for facts, reason, _, _ in reversed(REASONS):
        everything |= facts
        result = first_stop(BEFORE, LIMITS, replace(WELL, **everything))
        assert result is not None
        assert result.reason is reason


def test_what_passes_is_waited_for_only_when_that_was_asked_and_a_paused_balance_never() -> None:
    waiting = replace(LIMITS, wait_for_others=True)
    for facts in ({"exclusive": "balance"}, {"backups": "backupd expire (process 7)"}):
        for settings, passes in ((LIMITS, False), (waiting, True)):
            result = first_stop(BEFORE, settings, replace(WELL, **facts))  # type: ignore[arg-type]
            assert result is not None
            assert result.passes is passes
    paused = first_stop(BEFORE, waiting, replace(WELL, exclusive="balance paused"))
    busy = first_stop(BEFORE, LIMITS, replace(WELL, pressure=1.0))
    assert paused is not None
    assert not paused.passes
    assert busy is not None
    assert busy.passes


def test_what_was_switched_off_is_no_reason() -> None:
    off = RunSettings(yield_to_backups=False, max_pressure=None, min_unallocated=RoomFloor(0))
    assert first_stop(BEFORE, off, replace(WELL, backups="somebody", pressure=1.0, unallocated=0)) is None


def test_the_floor_of_room_is_small_on_a_small_filesystem() -> None:
    assert RoomFloor().of(40 << 40) == 4 * GIB
    assert RoomFloor().of(10 * GIB) == int(0.02 * 10 * GIB)
    assert RoomFloor(GIB, 1.0).of(GIB // 2) == GIB // 2


def test_a_block_group_that_takes_longer_than_is_left_is_not_begun() -> None:
    assert too_long(RunSettings(), WELL, 1e9) is None
    assert too_long(LIMITS, WELL, 3540) is None
    result = too_long(LIMITS, WELL, 3541)
    assert result is not None
    assert (result.reason, result.why) == (StopReason.TIME, "the next block group needs about 59m 1s, and only 59m are left")
    window = too_long(replace(LIMITS, time=None), WELL, 3601)
    assert window is not None
    assert window.reason is StopReason.WINDOW


def step(
    outcome: BalanceOutcome,
    *,
    gained: float = 1.0,
    unallocated: int = 100 * GIB,
    error: str | None = None,
    obstacle: RelocationObstacle | None = None,
    freed: int = 0,
) -> StepDone:
    cost, estimate = Cost(1, 1, 1, 1), Estimate(1, 1, 1.0)
    view = PlannedBlockGroup(1, 0, GIB, 1, 1, 1, 1.0, 1.0, cost, estimate, 1, 1, None)
    return StepDone(view, NOW, 1.0, outcome, 1, 1, gained, 1.0, unallocated, error, obstacle, freed)


DONE, FAILED, FULL = step(BalanceOutcome.DONE), step(BalanceOutcome.FAILED, error="no"), step(BalanceOutcome.NO_SPACE)
TIGHT, USELESS = step(BalanceOutcome.NO_SPACE, unallocated=2 * GIB - 1), step(BalanceOutcome.DONE, gained=0.0)
SWAPPED = step(BalanceOutcome.FAILED, error="any words", obstacle=RelocationObstacle.SWAP)
OUTRUN = step(BalanceOutcome.CANCELLED, error="any words", obstacle=RelocationObstacle.BUSY)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([], None),
        ([DONE], None),
        ([FULL] * 4, None),
        ([FULL] * 5, StopReason.NO_SPACE),
        ([TIGHT], None),
        ([FULL, TIGHT], StopReason.NO_SPACE),
        ([TIGHT, DONE, TIGHT], None),
        ([FAILED], None),
        ([FAILED, DONE, FAILED], None),
        ([FAILED, FAILED], StopReason.FAILED),
        ([SWAPPED] * 9, None),
        ([OUTRUN] * 2, None),
        ([OUTRUN] * 3, StopReason.EXCLUSIVE),
        ([USELESS] * 2, None),
        ([USELESS] * 3, StopReason.NO_GAIN),
        ([USELESS, USELESS, DONE, USELESS], None),
    ],
)
def test_what_became_of_the_last_block_groups_may_end_it(steps: list[StepDone], reason: StopReason | None) -> None:
    result = stop_after_steps(steps, "benefit")
    assert (result and result.reason) == reason


def freeing(*freed: int) -> list[StepDone]:
    """Returns steps that each lower the score, and free that many GiB."""
    return [step(BalanceOutcome.DONE, gained=5.0, freed=number * GIB) for number in freed]


@pytest.mark.parametrize(
    ("steps", "is_over"),
    [
        (freeing(0, 0), False),
        (freeing(0, 0, 0), True),
        (freeing(0, 0, 1, 0, 0), False),
        (freeing(-1, 1, -1), True),  # two lengths take turns: nothing is gained, and no two steps in a row are without gain
        (freeing(1, -1, 1, -1), True),
        (freeing(1, -1, 1, 1), False),
        ([*freeing(0, 0), FULL, *freeing(0)], True),
    ],
)
def test_a_run_for_unallocated_space_ends_when_it_gains_none(steps: list[StepDone], is_over: bool) -> None:
    result = stop_after_steps(steps, "usage")
    assert (result and result.reason) == (StopReason.NO_GAIN if is_over else None)
    for policy in ("benefit", "score"):
        assert stop_after_steps(steps, policy) is None
