"""A set of numbers with one bit for each, compared with Python's own set."""

import random

from backupd.files.batched_walk import NumberSet


def test_it_holds_what_was_added_and_nothing_else() -> None:
    chance = random.Random(1)
    numbers, expected = NumberSet(), set[int]()
    assert 0 not in numbers
    for number in (0, 7, 8, 1_000_000, *(chance.randrange(100_000) for _ in range(2_000))):
        numbers.add(number)
        expected.add(number)
    assert {number for number in range(-100, 1_010_000) if number in numbers} == expected
