"""Chooses the next block group: the policy determines the order, the floors which block groups are worth balancing at all. Pure.

Benefit is the score removed for each GiB moved. Highest score first also chooses block groups that are nearly full, which move much
data for little gain; least used first chooses block groups with a single large hole, which need no balance. docs/decisions/0011 has
the figures.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np

from balancer.cost_model import DEFAULT
from balancer.score import GIB, Array
from balancer.survey import Cost, DataBlockGroups
from btrkeep.choices import BALANCE_POLICIES
from btrkeep.units import format_size

_ORDERS: Mapping[str, Callable[[DataBlockGroups], Array]] = {
    "benefit": lambda groups: -groups.benefit,
    "score": lambda groups: -groups.score,
    "usage": lambda groups: groups.used / groups.length,
}
FOR_SPACE = frozenset({"usage"})
"""Policies for more unallocated space; the others are for a lower score."""
_NO_COSTS: Mapping[int, Cost] = {}


@dataclass(frozen=True, slots=True)
class Floors:
    """Minimum requirements for a block group to be worth balancing, whatever the policy."""

    min_score: float = 25.0
    """For a block group of 1 GiB. If the largest block group of a filesystem is smaller, the minimum is lowered in proportion for
    all. So small filesystems are balanced, too, and the tiny block groups of large filesystems are not.
    """
    min_benefit: float = 250.0
    """Score per GiB moved."""
    min_length: int = 0
    """Bytes."""

    def least_score(self, groups: DataBlockGroups) -> float:
        """The minimum score for each block group of this filesystem."""
        return self.min_score * min(1.0, int(groups.length.max(initial=0)) / GIB)


FLOORS = dict.fromkeys(BALANCE_POLICIES, Floors()) | dict.fromkeys(FOR_SPACE, Floors(0.0, 0.0, 0))
"""The default minimums, by policy. A policy for unallocated space needs none: the fragmentation does not matter for it."""


def rank(
    groups: DataBlockGroups,
    policy: str,
    floors: Floors,
    costs: Mapping[int, Cost] | None = None,
    set_aside: Container[int] = (),
    unallocated: int | None = None,
    by_device: bool = False,
) -> Array:
    """i64[m]: indices of the n `groups` that are worth balancing, the best first; equally good groups by address.

    `costs` and `set_aside`: by vaddr. With costs, block groups with a cost come first, and for the policy benefit they are ordered
    by score per byte written, including metadata. `unallocated`: bytes, to decide whether the data fits anywhere; None: not
    checked. `by_device`: block groups are moved to or from a device, and unallocated space is used.
    """
    costs = _NO_COSTS if costs is None else costs
    fits = groups.used <= _free_elsewhere(groups, _countable(policy, unallocated, by_device))
    likely = np.flatnonzero(_reaches(groups, floors) & fits).tolist()
    worth = [index for index in likely if not _obstacle(groups, index, costs, set_aside, unallocated)]
    chosen = np.array(worth, np.int64)
    has_cost = np.array([vaddr in costs for vaddr in groups.vaddr[chosen].tolist()], bool)
    order = _ORDERS[policy](groups)[chosen]
    if policy == "benefit":
        order[has_cost] = [-_per_byte(groups, index, costs) for index in chosen[has_cost].tolist()]
    return chosen[np.lexsort((groups.vaddr[chosen], order, ~has_cost))]


def why_not(
    groups: DataBlockGroups,
    index: int,
    floors: Floors,
    costs: Mapping[int, Cost] | None = None,
    set_aside: Container[int] = (),
    unallocated: int | None = None,
    policy: str = "",
    by_device: bool = False,
) -> str:
    """Returns why `rank` leaves out a block group, in words that follow "left alone: "; "" if it does not."""
    used, free = int(groups.used[index]), int(_free_elsewhere(groups, _countable(policy, unallocated, by_device))[index])
    return (
        _below(groups, index, floors)
        or (f"its {format_size(used)} do not fit elsewhere: only {format_size(free)} are free outside of it" if used > free else "")
        or _obstacle(groups, index, _NO_COSTS if costs is None else costs, set_aside, unallocated)
    )


def _reaches(groups: DataBlockGroups, floors: Floors) -> Array:
    """bool[n]: whether there is data to move, and the floors are reached."""
    reaches: Array = (groups.used > 0) & (groups.length >= floors.min_length) & (groups.score >= floors.least_score(groups))
    return reaches & (np.nan_to_num(groups.benefit) >= floors.min_benefit)


def _below(groups: DataBlockGroups, index: int, floors: Floors) -> str:
    """Returns why `_reaches` is False for a block group, "" if it is not."""
    length, score, benefit = int(groups.length[index]), float(groups.score[index]), float(groups.benefit[index])
    if groups.used[index] == 0:
        return "it is empty, and the kernel removes empty block groups itself"
    if length < floors.min_length:
        return f"its length of {format_size(length)} is below the limit of {format_size(floors.min_length)}"
    if score < (least := floors.least_score(groups)):
        return f"its score of {score:.1f} is below the limit of {least:.1f}"
    if benefit < floors.min_benefit:
        return f"its benefit of {benefit:.1f} per GiB moved is below the limit of {floors.min_benefit:.1f}"
    return ""


def _countable(policy: str, unallocated: int | None, by_device: bool) -> int | None:
    """Returns the unallocated bytes that count as free for moved data; None: not checked.

    A policy for space counts none of them: data that fits into no other block group would need a new one, as large as the old one.
    """
    return 0 if policy in FOR_SPACE and unallocated is not None and not by_device else unallocated


def _free_elsewhere(groups: DataBlockGroups, unallocated: int | None) -> Array:
    """f64[n]: free bytes outside of each block group; infinite if the unallocated space is unknown."""
    if unallocated is None:
        return np.full(len(groups.vaddr), float(1 << 63))
    free = (groups.length - groups.used).astype(np.float64)
    elsewhere: Array = free.sum() - free + unallocated
    return elsewhere


def _obstacle(
    groups: DataBlockGroups, index: int, costs: Mapping[int, Cost], set_aside: Container[int], unallocated: int | None
) -> str:
    vaddr = int(groups.vaddr[index])
    if vaddr in set_aside:
        return "it failed in this run"
    if unallocated is None or vaddr not in costs:
        return ""
    # The kernel keeps each extent in one piece.
    largest = max(unallocated, int(np.delete(groups.largest_free, index).max(initial=0)))
    if costs[vaddr].largest > largest:
        return (
            f"an extent of {format_size(costs[vaddr].largest)} fits nowhere else: the largest free extent has "
            f"{format_size(largest)}"
        )
    return ""


def _per_byte(groups: DataBlockGroups, index: int, costs: Mapping[int, Cost]) -> float:
    """Score removed for each byte written, as far as the cost is known."""
    estimate = DEFAULT.estimate(costs[int(groups.vaddr[index])])
    return float(groups.score[index]) / max(1, estimate.moved + estimate.metadata)
