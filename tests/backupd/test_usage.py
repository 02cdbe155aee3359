"""How sizes are estimated from random places, and extents compared: without a filesystem."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.observe.usage import METHODS, DrawTally, MeasuredUsage, Owner, estimated, exactly, places, sample
from backupd.observe.usage_extents import ExtentOwners

OWNERS: Mapping[int, Owner] = {257: ("web1", "a"), 258: ("web1", "b"), 259: ("web2", "a")}


@given(draws=st.integers(1, 10**6), share=st.floats(0, 1), space=st.integers(1, 10**15))
def test_an_interval_lies_around_its_estimate_and_within_the_space(draws: int, share: float, space: int) -> None:
    amount = estimated(round(draws * share), draws, space)
    assert 0 <= amount.low <= amount.bytes <= amount.high <= space


def test_more_draws_make_the_interval_narrower() -> None:
    amounts = [estimated(draws // 4, draws, 10**12) for draws in (100, 1000, 10_000)]
    widths = [amount.high - amount.low for amount in amounts]
    assert widths == sorted(widths, reverse=True)


def test_nothing_met_is_not_nothing_there() -> None:
    amount = estimated(0, 1000, 10**12)
    assert (amount.bytes, amount.low) == (0, 0)
    assert 0 < amount.high < 0.005 * 10**12
    assert estimated(0, 0, 500).high == 500
    assert exactly(5).exact


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    chance, held = random.Random(1), 0
    for _ in range(1000):
        amount = estimated(sum(chance.random() < 0.03 for _ in range(500)), 500, 10**9)
        held += amount.low <= 0.03 * 10**9 <= amount.high
    assert 930 <= held <= 985


@given(pieces=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 50)), min_size=1, max_size=8), seed=st.integers())
def test_places_lie_in_the_pieces(pieces: list[tuple[int, int]], seed: int) -> None:
    drawn = places(pieces, random.Random(seed))
    for _ in range(20):
        place = next(drawn)
        assert any(vaddr <= place < vaddr + length for vaddr, length in pieces)


def test_places_are_even_over_pieces_of_different_length() -> None:
    drawn = places([(1000, 10), (5000, 30)], random.Random(3))
    first = sum(next(drawn) < 2000 for _ in range(4000))
    assert 900 < first < 1100


def test_no_data_block_group_gives_no_place() -> None:
    assert list(places([], random.Random(1))) == []
    assert sample([], OWNERS, lambda _: None, 1, random.Random(1)).draws == 0


@pytest.mark.parametrize(
    ("roots", "hosts", "only_hosts", "backups", "only_backups", "others"),
    [
        ({257}, {"web1"}, {"web1"}, {"a"}, {"a"}, 0),
        ({257, 258}, {"web1"}, {"web1"}, {"a", "b"}, set(), 0),
        ({257, 259}, {"web1", "web2"}, set(), {"a"}, set(), 0),
        ({257, 999}, {"web1"}, set(), {"a"}, set(), 0),
        ({999}, set(), set(), set(), set(), 1),
        (set(), set(), set(), set(), set(), 1),
    ],
)
def test_what_a_place_counts_for(
    roots: set[int], hosts: set[str], only_hosts: set[str], backups: set[str], only_backups: set[str], others: int
) -> None:
    tally = DrawTally(1000)
    tally.add(frozenset(roots), OWNERS)
    assert (set(tally.by_host), set(tally.only_host)) == (hosts, only_hosts)
    assert {name for host, name in tally.by_backup if host == "web1"} == backups
    assert {name for _, name in tally.only_backup} == only_backups
    assert (tally.others, tally.met, tally.draws) == (others, 1, 1)


def test_free_space_counts_as_a_draw_that_met_nothing() -> None:
    tally = DrawTally(1000)
    tally.add(None, OWNERS)
    assert (tally.draws, tally.met, tally.others) == (1, 0, 0)


def test_sampling_ends_when_enough_was_met_or_the_time_is_over() -> None:
    def everywhere(_: int) -> frozenset[int]:
        return frozenset({257})

    assert sample([(0, 100)], OWNERS, everywhere, 100, random.Random(1), enough=50).met == 50
    assert sample([(0, 100)], OWNERS, everywhere, 0, random.Random(1)).draws == 1


@given(st.lists(st.sets(st.integers(0, 30), max_size=20), min_size=1, max_size=6))
def test_comparing_extents_is_comparing_sets(backups: list[set[int]]) -> None:
    comparison = ExtentOwners()
    for extents in backups:
        vaddr = np.array(sorted(extents), np.uint64) * np.uint64(4096)
        comparison.add(vaddr, vaddr + np.uint64(1))
    size = {extent: extent * 4096 + 1 for extent in range(31)}
    for number, (extents, (exclusive, referenced)) in enumerate(zip(backups, comparison.sizes(), strict=True)):
        measured_usage = MeasuredUsage(exactly(exclusive), exactly(referenced))
        elsewhere = set().union(*(other for place, other in enumerate(backups) if place != number))
        assert measured_usage.referenced == exactly(sum(size[extent] for extent in extents))
        assert measured_usage.exclusive == exactly(sum(size[extent] for extent in extents - elsewhere))
        assert measured_usage.shared == sum(size[extent] for extent in extents & elsewhere)
    assert comparison.total == sum(size[extent] for extent in set().union(*backups))


def test_the_methods_are_those_of_the_command() -> None:
    assert METHODS == ("written", "sampled", "extents")
