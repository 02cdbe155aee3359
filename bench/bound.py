"""The upper bound: how much more than another order the best choice of block groups can gain.

It counts the score that the block groups themselves lose, before anything is moved. It does not count the effect of moved extents
on other block groups, which no order can predict.
"""

from typing import Any

import numpy as np

from balancer.score import Array


def most(used: Array, score: Array, budget: int) -> float:
    """Returns the maximum score of any choice of block groups with at most `budget` bytes in them; `used`, `score`: [n].

    Block groups could be cut for it: the bound of the fractional knapsack (Dantzig 1957).
    """
    has_some = used > 0
    size, worth = used[has_some].astype(np.float64), score[has_some].astype(np.float64)
    best_first = np.argsort(-worth / size, kind="stable")
    size, worth = size[best_first], worth[best_first]
    share = np.clip((budget - (np.cumsum(size) - size)) / size, 0.0, 1.0)
    return float((worth * share).sum())


def in_order(used: Array, score: Array, order: Array, budget: int) -> float:
    """Returns the score of the block groups that are taken in that order; those that no longer fit are skipped."""
    taken, left = 0.0, budget
    for index in order.tolist():
        if 0 < used[index] <= left:
            left -= int(used[index])
            taken += float(score[index])
    return taken


def bound(used: Array, score: Array, budget: int) -> dict[str, Any]:
    """Returns the existing score, the score that highest score first removes, and the maximum factor by which any choice could be
    better.
    """
    first = in_order(used, score, np.argsort(-score, kind="stable"), budget)
    best = most(used, score, budget)
    times = best / first if first else float("inf")
    return {"all": float(score.sum()), "by highest score": first, "at most": best, "at most times": times}
