"""The sentence about the whole filesystem, by examples."""

import numpy as np
import pytest

from balancer.score import SIZES, Array, free_below, judgement, worth_balancing

GIB = 1 << 30


def sizes(**count: int) -> Array:
    """Returns free bytes by size class: `sizes(k12=4096)` has that many bytes in free extents of 2**12 and more."""
    histogram = np.zeros(SIZES, np.int64)
    for name, size in count.items():
        histogram[int(name[1:])] = size
    return histogram


def judgement_of(groups: list[tuple[float, float]], **count: int) -> str:
    """Returns the judgement of block groups of (score, used GiB)."""
    return judgement(np.array([score for score, _ in groups]), used(groups), sizes(**count))


def used(groups: list[tuple[float, float]]) -> Array:
    return np.array([int(size * GIB) for _, size in groups], np.uint64)


def test_below_counts_whole_classes_up_to_a_limit() -> None:
    histogram = sizes(k12=1, k19=10, k20=100, k23=1000, k24=10_000)
    assert free_below(1 << 20, histogram) == 11
    assert free_below(16 << 20, histogram) == 1111


WORTH = "{} above 250, and balancing {} would move {} and lower the sum of the scores by {}"
GOOD = "no block group scores above 250: nothing is worth balancing"


@pytest.mark.parametrize(
    ("groups", "by_name", "small", "subject"),
    [
        ([(0.1, 0.5)], {"k29": GIB // 2}, "512 MiB 0% 0%", GOOD),
        ([(250, 1), (3, 1)], {"k12": GIB, "k23": 2 * GIB, "k29": GIB}, "4.00 GiB 25% 75%", GOOD),
        (
            [(300, 0.5), (100, 1)],
            {"k19": GIB, "k20": GIB},
            "2.00 GiB 50% 100%",
            WORTH.format("1 of 2 block groups scores", "it", "512 MiB", "75%"),
        ),
        (
            [(300, 0.5), (300, 0.5), (0, 99)],
            {"k12": GIB, "k24": GIB},
            "2.00 GiB 50% 50%",
            WORTH.format("2 of 3 block groups score", "them", "1.00 GiB", "100%"),
        ),
        (
            [(1500, 0.4), (358, 0.87), (19, 0.4), (400, 0.5), *[(0, 1)] * 18],
            {"k12": GIB},
            "1.00 GiB 100% 100%",
            WORTH.format("3 of 22 block groups score", "the 2 with the most benefit", "922 MiB", "83.4%"),
        ),
    ],
)
def test_the_sentence_says_what_lies_in_small_extents_and_what_is_worth_balancing(
    groups: list[tuple[float, float]], by_name: dict[str, int], small: str, subject: str
) -> None:
    *size, below_1, below_16 = small.split()
    parts = f"{below_1} are in extents below 1 MiB and {below_16} in extents below 16 MiB"
    lies = f"Of {' '.join(size)} free in data block groups, {parts}"
    assert judgement_of(groups, **by_name) == f"{lies}; {subject}."


def test_without_data_or_without_free_space_the_sentence_says_that() -> None:
    assert judgement_of([]) == "There are no data block groups yet."
    assert judgement_of([(0, 1)]) == "The data block groups have no free space: new data takes unallocated space."


def test_worth_balancing_is_by_benefit_and_not_by_score() -> None:
    groups = [(3000, 0.9), (1500, 0.1), (260, 0.01), (240, 0.001), (0.0, 100)]
    score, size = np.array([score for score, _ in groups]), used(groups)
    assert worth_balancing(score, size).tolist() == [2, 1, 0]
    assert worth_balancing(score[:4], size[:4]).tolist() == [2]  # 5 % of 1.01 GiB is less than the next one
    assert worth_balancing(score[:1], size[:1]).tolist() == [0]
    assert worth_balancing(score[3:], size[3:]).tolist() == []
    assert worth_balancing(np.array([300.0, 400.0]), np.array([GIB, 0], np.uint64)).tolist() == [1]  # it moves nothing


def test_what_is_worth_balancing_takes_no_more_than_a_twentieth_of_the_data() -> None:
    rng = np.random.default_rng(3)
    score, size = rng.uniform(0, 3000, 500), rng.integers(1, GIB, 500).astype(np.uint64)
    chosen = worth_balancing(score, size)
    assert len(chosen) > 1
    assert size[chosen].sum() <= size.sum() / 20
    assert (score[chosen] > 250).all()
    gain = score / size
    left = [index for index in np.flatnonzero(score > 250) if index not in chosen]
    assert gain[chosen].min() >= gain[left].max()
