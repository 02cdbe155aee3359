"""The figures of the benchmark of balance orders, compared with all choices and with made-up answers."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.cost_model import MeasuredBalance, Model, Rates
from balancer.survey import Cost
from bench.balance_effect import BUDGETS, goodness, ratio, summary
from bench.bound import most
from bench.relocating import WAYS, highest_usage

MODEL = Model(Rates(group=1e6, reference=1000.0), Rates(group=0.5, byte=1e-9))


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), max_size=8), st.integers(0, 3000))
def test_the_usage_filter_is_the_highest_that_the_budget_allows(some: list[tuple[int, int]], budget: int) -> None:
    groups = [(size, min(its, size)) for size, its in some]
    length, used = (np.array([row[at] for row in groups], np.uint64) for at in (0, 1))
    moves = [sum(its for size, its in groups if its / size < share / 100) for share in range(101)]
    assert highest_usage(used, length, budget) == max(share for share in range(101) if moves[share] <= budget)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), max_size=8), st.integers(0, 200))
def test_no_choice_has_more_score_than_the_bound_and_it_is_less_than_one_block_group_above_the_best(
    groups: list[tuple[int, int]], budget: int
) -> None:
    used, score = (np.array([row[at] for row in groups], np.uint64) for at in (0, 1))
    filled = [row for row in groups if row[0]]
    choices = [some for count in range(len(filled) + 1) for some in combinations(filled, count)]
    best = max(sum(score for _, score in some) for some in choices if sum(size for size, _ in some) <= budget)
    said = most(used, score, budget)
    assert best <= said + 1e-6
    assert said <= best + max((score for _, score in filled), default=0) + 1e-6


def test_the_ratio_is_the_median_of_the_seeds_and_a_way_that_removes_nothing_is_infinitely_worse() -> None:
    assert ratio([(4.0, 2.0), (9.0, 1.0), (5.0, 1.0)]) == 5.0
    assert ratio([(4.0, 2.0), (9.0, -1.0), (5.0, 0.0)]) == float("inf")


def test_the_summary_compares_seed_by_seed() -> None:
    def reached(*removed: float) -> list[dict[str, float | str]]:
        return [{"note": "", "removed": one, "moved": 7} for one in removed]

    seeds = [
        {"benefit": reached(10, 20, 30), "score": reached(5, 20, 60), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
        {"benefit": reached(30, 20, 30), "score": reached(10, 5, 30), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
        {"benefit": reached(20, 20, 30), "score": reached(20, 5, 30), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
    ]
    told = summary(seeds)
    assert list(told) == [f"{share:.0%} {way}" for share in BUDGETS for way in WAYS]
    assert told["5% score"] == {"removed": 10, "moved": 7, "ours removes times as much": 2.0}  # of 2, 3 and 1
    assert told["20% score"]["ours removes times as much"] == 1.0
    assert told["5% usage"]["ours removes times as much"] == 20


def test_a_model_that_says_all_is_told_from_one_that_says_nothing() -> None:
    steps = []
    for number in range(1, 20):
        estimate = MODEL.estimate(Cost(number, number * number * 10, number << 20, 0))
        steps.append(
            MeasuredBalance(estimate.moved, number, number * number * 10, estimate.moved + estimate.metadata, estimate.seconds)
        )
    perfect = goodness(steps, MODEL)
    assert perfect["metadata: R2"] == perfect["written: R2"] == 1
    assert perfect["seconds: worst error"] == 0
    mean = float(np.mean([step.written - step.moved for step in steps]))
    flat = goodness(steps, Model(Rates(group=mean), Rates(group=0.5)))
    assert flat["metadata: R2"] == pytest.approx(0, abs=1e-3)
    assert flat["metadata: worst error"] > 1
