"""The choice of the next block group, compared with a rule that checks one after the other, and with examples."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.choose import FLOORS, Floors, rank, why_not
from balancer.score import benefit, used_pct
from balancer.survey import Cost, DataBlockGroups
from btrkeep.choices import BALANCE_POLICIES, DEFAULT_POLICY

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NONE = Floors(0, 0, 0)


def groups(*rows: tuple[int, int, float], largest: int = 0) -> DataBlockGroups:
    """Returns block groups of (length, used, score), adjacent from 1 GiB on; the largest free extent of each has
    `largest` bytes.
    """
    length, used, score = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros(0),) * 3
    length, used, score = length.astype(np.uint64), used.astype(np.uint64), score.astype(np.float64)
    vaddr = np.uint64(GIB) + np.cumsum(length) - length
    free = np.full(len(length), largest, np.uint64)
    share = used_pct(used, np.maximum(length, np.uint64(1)))
    return DataBlockGroups(vaddr, length, used, share, np.ones(len(length), np.int64), free, score, benefit(score, used))


def order(data_block_groups: DataBlockGroups, policy: str = "benefit", floors: Floors = NONE, **more: Any) -> list[int]:
    numbers: list[int] = rank(data_block_groups, policy, floors, **more).tolist()
    return numbers


FACTS = groups(
    (GIB, int(0.37 * GIB), 19.0),  # one large hole
    (GIB, int(0.39 * GIB), 1479.0),  # thousands of small ones
    (GIB, int(0.87 * GIB), 358.0),
    (8 * MIB, 4 * MIB, 3.0),  # left by mkfs: much benefit, and nothing won
    (GIB, GIB, 0.0),
    (GIB, 0, 0.1),
)


def test_the_block_groups_that_the_policies_are_known_by() -> None:
    """Least used first starts with the hole; by benefit the 8 MiB come second unless there is a lower limit."""
    assert order(FACTS)[:3] == [1, 3, 2]
    assert order(FACTS, "score")[:2] == [1, 2]
    assert order(FACTS, "usage")[:2] == [0, 1]
    assert order(FACTS, floors=FLOORS["benefit"]) == [1, 2]
    assert sorted(order(FACTS, "usage", FLOORS["usage"])) == [0, 1, 2, 3, 4]  # never one with nothing in it
    assert DEFAULT_POLICY == "benefit"


def test_tiny_block_groups_count_where_the_filesystem_has_no_larger_ones() -> None:
    small = groups((8 * MIB, 4 * MIB, 3.0), (8 * MIB, 4 * MIB, 0.1), (8 * MIB, 4 * MIB, 5.0))
    assert order(small, floors=Floors()) == [2, 0]
    assert order(small, floors=Floors(min_length=16 * MIB)) == []


@st.composite
def surveys(draw: st.DrawFn) -> DataBlockGroups:
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        length = MIB * draw(st.sampled_from([8, 256, 1024, 10240]))
        used = KIB * draw(st.sampled_from([0, 4, length // KIB // 3, length // KIB // 2, length // KIB]))
        rows.append((length, used, draw(st.sampled_from([0.0, 0.5, 25.0, 300.0, 2000.0]))))
    return groups(*rows)


@given(surveys(), st.sampled_from([*BALANCE_POLICIES]), st.floats(0, 300), st.floats(0, 3000), st.sampled_from([0, 100 * MIB]))
def test_ranking_all_at_once_is_what_one_at_a_time_gives(
    data_block_groups: DataBlockGroups, policy: str, score: float, least: float, length: int
) -> None:
    floors = Floors(score, least, length)
    rows = list(
        zip(
            data_block_groups.vaddr.tolist(),
            data_block_groups.length.tolist(),
            data_block_groups.used.tolist(),
            data_block_groups.score.tolist(),
            strict=True,
        )
    )
    longest = max((row[1] for row in rows), default=0)
    wanted = []
    for index, (vaddr, size, used, answer) in enumerate(rows):
        if used and size >= length and answer >= score * min(1, longest / GIB) and answer * GIB / used >= least:
            key = {"benefit": -answer * GIB / used if used else 0, "score": -answer, "usage": used / size}[policy]
            wanted.append((key, vaddr, index))
    assert order(data_block_groups, policy, floors) == [index for _, _, index in sorted(wanted)]


@given(surveys(), st.sampled_from([*BALANCE_POLICIES]), st.integers(0, 12), st.sampled_from([None, 0, MIB, 4 * GIB]), st.booleans())
def test_a_reason_is_given_for_just_those_that_are_left_out(
    data_block_groups: DataBlockGroups, policy: str, aside: int, unallocated: int | None, has_costs: bool
) -> None:
    vaddrs = data_block_groups.vaddr.tolist()
    costs = {vaddr: Cost(9, 9, 9, 200 * MIB) for vaddr in vaddrs[::2]} if has_costs else None
    more: dict[str, Any] = {"costs": costs, "set_aside": set(vaddrs[aside : aside + 1]), "unallocated": unallocated}
    chosen = order(data_block_groups, policy, FLOORS[policy], **more)
    for index in range(len(vaddrs)):
        assert (why_not(data_block_groups, index, FLOORS[policy], **more, policy=policy) == "") == (index in chosen)


def test_what_was_set_aside_is_not_chosen_again() -> None:
    assert order(FACTS, set_aside={int(FACTS.vaddr[1])})[:2] == [3, 2]


def test_data_has_to_fit_somewhere() -> None:
    """Two block groups: the only free space is in the other one, or unallocated."""
    two = groups((GIB, 600 * MIB, 300.0), (GIB, 800 * MIB, 300.0))
    assert order(two) == [0, 1]
    assert order(two, unallocated=0) == []
    assert order(two, unallocated=376 * MIB) == [0, 1]  # 800 MiB: 424 in the other one, and 376
    assert order(two, unallocated=375 * MIB) == []
    assert order(groups((GIB, 600 * MIB, 300.0), (GIB, 100 * MIB, 300.0)), unallocated=0) == [1, 0]
    assert order(groups((GIB, 900 * MIB, 300.0), (GIB, 200 * MIB, 300.0)), unallocated=0) == []
    assert order(groups((GIB, 900 * MIB, 300.0), (GIB, 124 * MIB, 300.0)), unallocated=0) == [1, 0]
    assert order(groups((GIB, 900 * MIB, 300.0), (2 * GIB, 1100 * MIB, 300.0)), unallocated=0) == [0]
    assert why_not(two, 1, NONE, unallocated=375 * MIB) == "its 800 MiB do not fit elsewhere: only 799 MiB are free outside of it"


def test_for_space_only_holes_of_other_block_groups_count() -> None:
    two = groups((GIB, 600 * MIB, 300.0), (GIB, 500 * MIB, 300.0))
    assert order(two, "usage", unallocated=4 * GIB) == []  # 1100 MiB need two block groups, as now
    assert why_not(two, 1, NONE, unallocated=4 * GIB, policy="usage").startswith("its 500 MiB do not fit elsewhere")
    assert order(two, "benefit", unallocated=4 * GIB) == [1, 0]
    assert order(groups((GIB, 600 * MIB, 300.0), (GIB, 400 * MIB, 300.0)), "usage", unallocated=0) == [1, 0]


def test_an_extent_has_to_fit_in_one_piece() -> None:
    two = groups((GIB, 10 * MIB, 300.0), (GIB, 10 * MIB, 200.0), largest=4 * MIB)
    costs = {int(vaddr): Cost(2, 2, 10 * MIB, 6 * MIB) for vaddr in two.vaddr}
    assert order(two, costs=costs, unallocated=0) == []
    assert order(two, costs=costs, unallocated=6 * MIB) == [0, 1]
    assert why_not(two, 0, NONE, costs, (), 0) == "an extent of 6.00 MiB fits nowhere else: the largest free extent has 4.00 MiB"


def test_costs_decide_between_those_whose_costs_are_known_and_come_before_the_others() -> None:
    three = groups((GIB, GIB // 2, 400.0), (GIB, GIB // 2, 390.0), (GIB, GIB // 2, 380.0))
    first, second, third = three.vaddr.tolist()
    cheap, dear = Cost(100, 100, GIB // 2, MIB), Cost(100_000, 900_000, GIB // 2, MIB)
    assert order(three, costs={first: dear, second: cheap}) == [1, 0, 2]
    assert order(three, costs={third: dear}) == [2, 0, 1]
    assert order(three, "score", costs={first: dear, second: cheap}) == [0, 1, 2]


@pytest.mark.parametrize(
    ("index", "floors", "output"),
    [
        (5, NONE, "it is empty, and the kernel removes empty block groups itself"),
        (3, Floors(0, 0, 16 * MIB), "its length of 8.00 MiB is below the limit of 16.0 MiB"),
        (0, Floors(25, 0), "its score of 19.0 is below the limit of 25.0"),
        (0, Floors(0, 250), "its benefit of 51.4 per GiB moved is below the limit of 250.0"),
        (1, Floors(), ""),
    ],
)
def test_a_reason_names_the_floor(index: int, floors: Floors, output: str) -> None:
    assert why_not(FACTS, index, floors) == output


def test_nothing_at_all_is_ranked_as_nothing() -> None:
    assert order(groups(), unallocated=5) == []
