"""The order of the tests: each worker starts with its share of the long ones, so that none runs one at the end.

pytest-xdist (`--dist worksteal`) cuts the list into as many pieces as there are workers, one after the other and of equal counts;
a worker that has finished takes from the end of another one's piece.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

import pytest


@dataclass
class _Piece:
    seconds: float = 0
    items: list[pytest.Item] = field(default_factory=list)


def dealt(items: Iterable[pytest.Item], workers: int) -> list[pytest.Item]:
    """Tests that measure stay together, because they share expensive fixtures; so do the marked tests of a module."""
    others: list[pytest.Item] = []
    together: dict[str, list[pytest.Item]] = {}
    for item in items:
        kind = "alone" if item.get_closest_marker("alone") else str(item.path) if _seconds(item) else ""
        (together.setdefault(kind, []) if kind else others).append(item)
    pieces = [_Piece() for _ in range(workers)]
    for group in sorted(together.values(), key=_sum, reverse=True):
        lightest = min(pieces, key=lambda piece: piece.seconds)
        lightest.seconds += _sum(group)
        lightest.items += group
    left = len(others) + sum(len(piece.items) for piece in pieces)
    for number, piece in enumerate(pieces):
        room = max(0, left // (workers - number) - len(piece.items))
        piece.items += others[:room]
        del others[:room]
        left -= len(piece.items)
    return [item for piece in pieces for item in piece.items] + others


def _sum(items: Iterable[pytest.Item]) -> float:
    """Returns the duration of a mark: that of all its tests, those of the module or one test with all its parameters."""
    return sum(seconds for seconds, _ in groupby(items, _seconds))


def _seconds(item: pytest.Item) -> float:
    mark = item.get_closest_marker("takes")
    return float(mark.args[0]) if mark else 0.0
