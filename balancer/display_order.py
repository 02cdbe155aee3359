"""The order in which block groups are shown, and which of them. Pure.

This module imports no NumPy by itself: the command line reads SORTS for its help.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from balancer.score import Array
    from balancer.survey import DataBlockGroups

SORTS = {
    "score": True,
    "benefit": True,
    "fragments": True,
    "largest_free": False,
    "used": False,
    "used_pct": False,
    "length": True,
    "vaddr": False,
}
"""The keys, and whether the highest comes first: the worst block groups are wanted first, the emptiest, the lowest address."""


def ordered(groups: "DataBlockGroups", key: str, least_score: float = 0.0) -> "Array":
    """Returns i64[m]: indices of the block groups that score `least_score` or more, sorted; ties by address. NaN comes last."""
    import numpy as np

    shown = np.flatnonzero(groups.score >= least_score)
    values = getattr(groups, key)[shown].astype(np.float64)  # beyond 2**53 neighbours tie, and keep the order of addresses
    return shown[np.argsort(-values if SORTS[key] else values, kind="stable")]
