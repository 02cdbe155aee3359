"""The tent function and the sum, compared with a slow version that adds one free extent after the other."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.score import SIZES, Array, FreeExtents, FreeSpaceTally, benefit, joined, size_class, tent, used_pct
from tests.balancer.program import Span, histogram, score_of
from tests.balancer.program import joined as joined_slowly

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECTOR = 4 * KIB


def u64(values: Sequence[int]) -> Array:
    return np.array(values, np.uint64)


def height(length: int, group: int) -> float:
    return float(tent(u64([length]), u64([group]))[0])


lengths = st.integers(8 * MIB // SECTOR, 16 * GIB // SECTOR).map(lambda sectors: sectors * SECTOR)


@given(lengths, st.data())
def test_the_tent_rises_from_one_foot_to_the_middle_and_falls_to_the_other(group: int, data: st.DataObject) -> None:
    sizes = st.integers(1, group // SECTOR).map(lambda sectors: sectors * SECTOR)
    smaller, larger = sorted(data.draw(st.tuples(sizes, sizes)))
    low, high = height(smaller, group), height(larger, group)
    assert 0 <= low <= 1
    assert 0 <= high <= 1
    if larger**2 <= 2048 * group:  # both left of the middle, the geometric mean of the feet
        assert low <= high
    if smaller**2 >= 2048 * group:
        assert low >= high


@given(lengths, st.floats(0, 1))
def test_the_tent_is_the_same_on_both_sides_of_the_middle(group: int, place: float) -> None:
    left, right = 2048 * (group / 2048) ** place, group / (group / 2048) ** place
    both = tent(np.array([left, right]), np.array([group]))
    assert both[0] == pytest.approx(both[1], abs=1e-9)
    assert both[0] == pytest.approx(1 - abs(2 * place - 1), abs=1e-9)


def test_the_feet_and_the_top_of_the_tent_are_where_the_formula_has_them() -> None:
    assert height(2 * KIB, GIB) == 0
    assert height(GIB, GIB) == 0
    assert height(1482910, GIB) == pytest.approx(1, abs=1e-6)  # 1.4 MiB
    assert height(4 * KIB, GIB) == pytest.approx(1 / 9.5)
    assert height(MIB, GIB) == pytest.approx(1 - 0.5 / 9.5)
    assert height(512 * MIB, GIB) == pytest.approx(1 / 9.5)


@given(lengths)
def test_a_block_group_that_is_all_free_has_no_score_and_none_below_zero(group: int) -> None:
    assert 0 <= height(group, group) < 1e-12


def test_half_a_block_group_in_pieces_is_bad_and_in_one_hole_is_not() -> None:
    tally = FreeSpaceTally(u64([0, GIB]), u64([GIB, GIB]))
    pieces = 2 * MIB * np.arange(512, dtype=np.uint64)
    tally.add(np.append(pieces, u64([GIB])), np.append(np.full(512, MIB, np.uint64), u64([512 * MIB])))
    free_extents = tally.finish()
    assert free_extents.score.tolist() == pytest.approx([512 * (1 - 0.5 / 9.5), 1 / 9.5])
    assert free_extents.free.tolist() == [512 * MIB] * 2


@st.composite
def filesystems(draw: st.DrawFn) -> tuple[list[Span], list[Span], list[int]]:
    """Returns block groups (some adjacent), free extents in them and between them, and the ends of batches."""
    groups, free, at = [], [], 0
    for _ in range(draw(st.integers(1, 5))):
        length = SECTOR * draw(st.integers(2048, 2500))
        is_data = draw(st.booleans())
        if is_data:
            groups.append((at, length))
        place = at
        for _ in range(draw(st.integers(0, 12))):
            place += SECTOR * draw(st.sampled_from([0, 0, 1, 5, 200]))
            size = min(SECTOR * draw(st.sampled_from([1, 1, 2, 7, 64, 256, 1500])), at + length - place)
            if size <= 0:
                break
            free.append((place, size))
            place += size
        if draw(st.booleans()) and place < at + length:  # up to the end, where the next block group may begin with a free extent
            free.append((place, at + length - place))
        at += length + SECTOR * draw(st.sampled_from([0, 0, 300]))
    cuts = draw(st.lists(st.integers(0, len(free)), max_size=6).map(sorted))
    return groups, free, cuts


def tallied(groups: list[Span], free: list[Span], cuts: list[int]) -> FreeExtents:
    tally = FreeSpaceTally(u64([vaddr for vaddr, _ in groups]), u64([length for _, length in groups]))
    for begin, end in zip([0, *cuts], [*cuts, len(free)], strict=True):
        tally.add(u64([vaddr for vaddr, _ in free[begin:end]]), u64([length for _, length in free[begin:end]]))
    return tally.finish()


@given(filesystems())
def test_what_is_added_up_in_batches_is_what_one_at_a_time_gives(filesystem: tuple[list[Span], list[Span], list[int]]) -> None:
    groups, free, cuts = filesystem
    free_extents = tallied(groups, free, cuts)
    inside = [[extent for extent in free if vaddr <= extent[0] < vaddr + length] for vaddr, length in groups]
    runs = [joined_slowly(numbers) for numbers in inside]
    assert free_extents.fragments.tolist() == [len(numbers) for numbers in inside]
    assert free_extents.free.tolist() == [sum(length for _, length in numbers) for numbers in inside]
    assert free_extents.largest.tolist() == [max(run, default=0) for run in runs]
    scores = [score_of(numbers, length) for numbers, (_, length) in zip(inside, groups, strict=True)]
    assert free_extents.score.tolist() == pytest.approx(scores, abs=1e-9)
    wanted = histogram(length for run in runs for length in run)
    by_name = {row["at_least"].bit_length() - 1: (row["extents"], row["bytes"]) for row in wanted}
    pairs = zip(free_extents.extents.tolist(), free_extents.bytes.tolist(), strict=True)
    assert list(pairs) == [by_name.get(number, (0, 0)) for number in range(SIZES)]


@given(filesystems())
def test_where_batches_end_makes_no_difference_to_the_last_bit(filesystem: tuple[list[Span], list[Span], list[int]]) -> None:
    """Otherwise a score near a whole number could be printed differently from python-btrfs."""
    groups, free, cuts = filesystem
    assert tallied(groups, free, cuts).score.tolist() == tallied(groups, free, []).score.tolist()


def test_scores_are_added_in_the_order_of_addresses_as_python_btrfs_adds_them() -> None:
    rng = np.random.default_rng(5)
    sizes = rng.choice([4 * KIB, 12 * KIB, 100 * KIB, MIB, 3 * MIB], 3000)
    free = [(int(begin), int(size)) for begin, size in zip(np.cumsum(sizes) - sizes + SECTOR * np.arange(3000), sizes, strict=True)]
    free_extents = tallied([(0, 4 * GIB)], free, [1, 1000, 2500])
    assert free_extents.score.tolist() == [score_of(free, 4 * GIB)]


def test_free_is_no_more_than_the_block_group_when_the_tree_changed_meanwhile() -> None:
    """An extent that was read before it became bitmaps, and then the bitmaps: `used` must not become negative."""
    free_extents = tallied([(0, 8 * MIB)], [(0, 8 * MIB), (4 * MIB, MIB)], [1])
    assert free_extents.free.tolist() == [8 * MIB]
    assert free_extents.largest.tolist() == [8 * MIB]


@given(st.integers(1, 63), st.integers(-SECTOR, SECTOR))
def test_size_classes_are_powers_of_two_to_the_byte(power: int, more: int) -> None:
    length = max(1, (1 << power) // SECTOR * SECTOR + more) if power < 52 else 1 << power
    assert size_class(u64([length])).tolist() == [length.bit_length() - 1]


def test_runs_join_within_a_block_group_and_not_across() -> None:
    group, vaddr, end = joined(np.array([0, 0, 0, 1]), u64([0, 10, 30, 40]), u64([10, 20, 40, 50]))
    assert (group.tolist(), vaddr.tolist(), end.tolist()) == ([0, 0, 1], [0, 30, 40], [20, 40, 50])
    assert [len(column) for column in joined(np.zeros(0, np.int64), u64([]), u64([]))] == [0, 0, 0]


def test_nothing_at_all_is_nothing() -> None:
    for free in ([], [(4096, 4096)]):
        free_extents = tallied([], free, [])
        assert (len(free_extents.score), free_extents.extents.sum()) == (0, 0)
    assert tallied([(0, GIB)], [], []).fragments.tolist() == [0]


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_percents_are_rounded_as_python_does(length: int, used: int) -> None:
    assert used_pct(u64([used]), u64([length])).tolist() == [round(used * 100 / length)]


def test_benefit_is_the_score_for_each_gib_that_moves() -> None:
    result = benefit(np.array([100.0, 100.0, 0.0, 7.0]), u64([GIB, GIB // 4, GIB, 0]))
    assert result[:3].tolist() == [100, 400, 0]
    assert np.isnan(result[3])


def peak(batches: int) -> int:
    """Returns the peak of bytes while that many batches of free extents are added."""
    tally = FreeSpaceTally(u64([0]), u64([1 << 40]))
    each = np.arange(5000, dtype=np.uint64) * 8192
    tracemalloc.start()
    for number in range(batches):
        tally.add(each + number * 5000 * 8192, np.full(5000, 4096, np.uint64))
    free_extents = tally.finish()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert free_extents.fragments.tolist() == [5000 * batches]
    return most


def test_memory_does_not_grow_with_the_number_of_free_extents() -> None:
    peak(2)
    assert peak(100) < peak(5) * 1.2
