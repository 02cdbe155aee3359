"""Invented plans, steps and reports for tests of their display."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from balancer.cost_model import Estimate
from balancer.run_types import MAP_CELLS, BalanceOutcome, PlannedBlockGroup, Report, SpaceNumbers, StepDone, StopReason
from balancer.survey import Cost

MIB = 1 << 20
GIB = 1 << 30
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
UUID = "f5c9181c-b024-4697-b27e-722cc87dd80a"


def numbers(**fields: Any) -> SpaceNumbers:
    made = SpaceNumbers(
        block_groups=40,
        allocated=40 * GIB,
        used=30 * GIB,
        unallocated=8 * GIB,
        fragments=6176,
        score=3674.0,
        largest_free=600 * MIB,
        free_in_large=2 * GIB,
    )
    return replace(made, **fields)


def planned(number: int, used: int, seconds: float = 10.0, *, is_within: bool = True, **fields: Any) -> PlannedBlockGroup:
    """Returns the block group `number`, of which `used` bytes would move; its other numbers are as large as possible."""
    made = PlannedBlockGroup(
        number=number + 1,
        vaddr=46_000_000_000_000 + number * GIB,
        length=GIB,
        type=1,
        used=used,
        fragments=12_345,
        score=3902.4,
        benefit=7841.5,
        cost=Cost(123_456, 1_234_567, used, 128 * MIB),
        estimate=Estimate(used, 3 * MIB, seconds),
        moved_so_far=used * (number + 1),
        candidates=1,
        left=None if is_within else 0,
    )
    return replace(made, **fields)


def view(number: int = 1, **fields: Any) -> PlannedBlockGroup:
    made = PlannedBlockGroup(
        number=number,
        vaddr=46_000_000_000_000,
        length=GIB,
        type=1,
        used=512 * MIB,
        fragments=9458,
        score=3902.4,
        benefit=7841.5,
        cost=Cost(123_456, 1_234_567, 512 * MIB, 128 * MIB),
        estimate=Estimate(512 * MIB, 3 * MIB, 20.0),
        moved_so_far=512 * MIB,
        candidates=12,
        left=None,
        shares=np.linspace(0, 1, MAP_CELLS),
    )
    return replace(made, **fields)


def done(number: int = 1, outcome: BalanceOutcome = BalanceOutcome.DONE, **fields: Any) -> StepDone:
    moved = 512 * MIB if outcome is BalanceOutcome.DONE else 0
    made = StepDone(
        group=view(number),
        started=NOON,
        seconds=12.0,
        outcome=outcome,
        moved=moved,
        written=600 * MIB,
        gained=3800.0 if moved else 0.0,
        score=1200.0,
        unallocated=9 * GIB,
    )
    return replace(made, **fields)


def report(
    *steps: StepDone, reason: StopReason = StopReason.DONE, why: str = "no further block group is worth it", **fields: Any
) -> Report:
    made = Report(
        filesystem=UUID,
        before=numbers(),
        after=numbers(block_groups=39, allocated=39 * GIB, unallocated=9 * GIB, fragments=3000, score=1200.0),
        steps=steps,
        started=NOON,
        seconds=34.0,
        reason=reason,
        why=why,
    )
    return replace(made, **fields)
