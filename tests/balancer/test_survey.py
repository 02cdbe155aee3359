"""Surveys of batches, without a filesystem."""

from collections.abc import Iterator

import numpy as np
import pytest

from balancer.survey import Cost, cost
from btrkeep.treescan.extents import Extents


def test_the_cost_of_a_block_group_is_counted_over_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def three_batches(fd: int, first: int, last: int) -> Iterator[Extents]:
        asked.append((first, last))
        for lengths, refs in (([4096, 8192], [1, 30]), ([], []), ([65536], [5]), ([4096], [1])):
            number, several = np.array(refs, np.uint64), np.array(lengths, np.uint64)
            yield Extents(several, several, number, number, number > 0, number)

    monkeypatch.setattr("balancer.survey.extents", three_batches)
    assert cost(3, 1000, 500) == Cost(extents=4, references=37, moves=81920, largest=65536)
    assert asked == [(1000, 1499)]
