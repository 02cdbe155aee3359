"""The figures of the benchmark of balance orders, compared with all choices and with made-up answers.

If they are wrong, docs/benchmarks.rst promises a gain from the order of balancing that does not exist.
"""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.balance_effect import BUDGETS, summary
from bench.bound import most
from bench.relocating import WAYS, highest_usage


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), max_size=8), st.integers(0, 3000))
def test_the_usage_filter_is_the_highest_that_the_budget_allows(rows: list[tuple[int, int]], budget: int) -> None:
    groups = [(size, min(used, size)) for size, used in rows]
    length, used = (np.array([row[at] for row in groups], np.uint64) for at in (0, 1))
    moves = [sum(used for size, used in groups if used / size < share / 100) for share in range(101)]
    assert highest_usage(used, length, budget) == max(share for share in range(101) if moves[share] <= budget)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), max_size=8), st.integers(0, 200))
def test_no_choice_has_more_score_than_the_bound_and_it_is_less_than_one_block_group_above_the_best(
    groups: list[tuple[int, int]], budget: int
) -> None:
    used, score = (np.array([row[at] for row in groups], np.uint64) for at in (0, 1))
    filled = [row for row in groups if row[0]]
    choices = [combination for count in range(len(filled) + 1) for combination in combinations(filled, count)]
    best = max(sum(score for _, score in choice) for choice in choices if sum(size for size, _ in choice) <= budget)
    rows = most(used, score, budget)
    assert best <= rows + 1e-6
    assert rows <= best + max((score for _, score in filled), default=0) + 1e-6


def test_the_summary_compares_seed_by_seed() -> None:
    def reached(*removed: float) -> list[dict[str, float | str]]:
        return [{"note": "", "removed": vaddr, "moved": 7} for vaddr in removed]

    seeds = [
        {"benefit": reached(10, 20, 30), "score": reached(5, 20, 60), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
        {"benefit": reached(30, 20, 30), "score": reached(10, 5, 30), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
        {"benefit": reached(20, 20, 30), "score": reached(20, 5, 30), "usage": reached(1, 1, 1), "btrfs -dusage": [], "kernel": []},
    ]
    result = summary(seeds)
    assert list(result) == [f"{share:.0%} {way}" for share in BUDGETS for way in WAYS]
    assert result["5% score"] == {"removed": 10, "moved": 7, "ours removes times as much": 2.0}  # of 2, 3 and 1
    assert result["20% score"]["ours removes times as much"] == 1.0
    assert result["5% usage"]["ours removes times as much"] == 20
