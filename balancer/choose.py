"""Which block group to balance next: the order is the policy's, what is worth it at all is the floors'. Pure.

Benefit is what the score loses for each GiB that moves. Highest score first would choose block groups that are nearly full, of which
much moves for little; least used first those that have one large hole and nothing wrong with it. docs/decisions/0011 has the figures.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np

from balancer.model import DEFAULT
from balancer.score import GIB, Array
from balancer.survey import Cost, Groups
from btrkeep.units import format_size

_ORDERS: Mapping[str, Callable[[Groups], Array]] = {
    "benefit": lambda groups: -groups.benefit,
    "score": lambda groups: -groups.score,
    "usage": lambda groups: groups.used / groups.length,
}
POLICIES = tuple(_ORDERS)
"""The first one is the default."""
NOTHING: Mapping[int, Cost] = {}


@dataclass(frozen=True, slots=True)
class Floors:
    """What a block group must have to be worth it, whatever the policy.

    `min_score` is that of a block group of 1 GiB: where the largest of a filesystem is smaller, as much less is asked of all. So
    small filesystems are served, and the tiny block groups of large ones are left alone. `min_benefit`: score per GiB that moves.
    `min_length`: bytes.
    """

    min_score: float = 25.0
    min_benefit: float = 250.0
    min_length: int = 0


FLOORS: Mapping[str, Floors] = {"benefit": Floors(), "score": Floors(), "usage": Floors(0.0, 0.0, 0)}
"""The defaults, by policy. Who wants the least used ones wants their space, however it lies."""


def rank(
    groups: Groups,
    policy: str,
    floors: Floors,
    costs: Mapping[int, Cost] | None = None,
    set_aside: Container[int] = (),
    unallocated: int | None = None,
) -> Array:
    """i64[m]: indices of the n `groups` that are worth it, the best first; ties by address.

    `costs` and `set_aside` go by vaddr. With costs, those that have one come first, and by benefit they are ordered by score per
    byte that is written for them, metadata too. `unallocated`: bytes, for whether the data fits anywhere; None: that is not asked.
    """
    costs = NOTHING if costs is None else costs
    worth = [one for one in _above(groups, floors) if not _reason(groups, one, floors, costs, set_aside, unallocated)]
    chosen = np.array(worth, np.int64)
    known = np.array([int(vaddr) in costs for vaddr in groups.vaddr[chosen]], bool)
    order = _ORDERS[policy](groups)[chosen]
    if policy == "benefit":
        order[known] = [-_per_byte(groups, index, costs) for index in chosen[known].tolist()]
    return chosen[np.lexsort((groups.vaddr[chosen], order, ~known))]


def why_not(
    groups: Groups,
    index: int,
    policy: str,
    floors: Floors,
    costs: Mapping[int, Cost] | None = None,
    set_aside: Container[int] = (),
    unallocated: int | None = None,
) -> str:
    """Why a block group is left alone, in words that go on after "it is left alone: "; "" when it is not. As `rank` says."""
    return _reason(groups, index, floors, NOTHING if costs is None else costs, set_aside, unallocated)


def _above(groups: Groups, floors: Floors) -> list[int]:
    """Which have something to move and reach the floors, at once for 35,000 of them; `_reason` says it in words."""
    reaches = (groups.used > 0) & (groups.length >= floors.min_length) & (groups.score >= least_score(groups, floors))
    return np.flatnonzero(reaches & (np.nan_to_num(groups.benefit) >= floors.min_benefit)).tolist()


def least_score(groups: Groups, floors: Floors) -> float:
    """The score that these floors ask of each block group of this filesystem."""
    longest = int(groups.length.max(initial=0))
    return floors.min_score * min(1.0, longest / GIB)


def _per_byte(groups: Groups, index: int, costs: Mapping[int, Cost]) -> float:
    """Score removed for each byte written, as far as it is known what that takes."""
    estimate = DEFAULT.estimate(costs[int(groups.vaddr[index])])
    return float(groups.score[index]) / max(1, estimate.moved + estimate.metadata)


def _reason(
    groups: Groups, index: int, floors: Floors, costs: Mapping[int, Cost], set_aside: Container[int], unallocated: int | None
) -> str:
    used, score, least = int(groups.used[index]), float(groups.score[index]), least_score(groups, floors)
    if used == 0:
        return "nothing is in it, and the kernel removes empty block groups by itself"
    if int(groups.length[index]) < floors.min_length:
        return f"its length of {format_size(int(groups.length[index]))} is below the floor of {format_size(floors.min_length)}"
    if score < least:
        return f"its score of {score:.1f} is below the floor of {least:.1f}"
    if float(groups.benefit[index]) < floors.min_benefit:
        return f"its benefit of {groups.benefit[index]:.1f} per GiB moved is below the floor of {floors.min_benefit:.1f}"
    if int(groups.vaddr[index]) in set_aside:
        return "it was set aside"
    return _no_room(groups, index, costs.get(int(groups.vaddr[index])), unallocated)


def _no_room(groups: Groups, index: int, cost: Cost | None, unallocated: int | None) -> str:
    """Why what is in it fits nowhere else, "" when it does or that is not known. The kernel keeps each extent in one piece."""
    used = int(groups.used[index])
    elsewhere = int((groups.length - groups.used).sum()) - int(groups.length[index]) + used
    if unallocated is None or used <= unallocated:
        return ""
    if used > elsewhere + unallocated:
        return f"its {format_size(used)} fit nowhere: {format_size(elsewhere + unallocated)} are free outside of it"
    others = np.delete(groups.largest_free, index)
    largest = max(int(others.max(initial=0)), unallocated)
    if cost and cost.largest > largest:
        return f"an extent of {format_size(cost.largest)} in it fits nowhere: {format_size(largest)} is the largest free place"
    return ""
