"""Curves, compared with the usual way to compute a Hilbert curve point by point, and with the peer's curves."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from btrkeep.choices import CURVES
from heatmap.grid import HILBERT, LINEAR, SNAKE, laid_out
from tests.heatmap.program import PEER

ORDERS = range(10)


def places(curve: str, order: int) -> NDArray[Any]:
    """Returns i64[4**order]: the pixel, counted line by line, at each place along the curve."""
    result = np.empty(4**order, np.int64)
    result[laid_out(curve, order, np.arange(4**order)).ravel()] = np.arange(4**order)
    return result


def point(order: int, distance: int) -> tuple[int, int]:
    """Returns x and y, to the right and up, of a place along the curve: two bits at a time, the smallest square first."""
    x = y = 0
    for level in range(order):
        side = 1 << level
        right = 1 & (distance // 2)
        up = 1 & (distance ^ right)
        if not up:
            if right:
                x, y = side - 1 - x, side - 1 - y
            x, y = y, x
        x, y, distance = x + side * right, y + side * up, distance // 4
    return x, y


def by_hand(curve: str, order: int) -> Iterator[tuple[int, int]]:
    """Yields line and column of each place along the curve."""
    edge = 1 << order
    for place in range(4**order):
        line, column = divmod(place, edge)
        if curve == HILBERT:
            x, y = point(order, place)
            yield edge - 1 - y, x
        else:
            yield line, column if curve == LINEAR or line % 2 == 0 else edge - 1 - column


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    if not PEER.exists():
        pytest.skip("btrfs-heatmap is not installed")
    loader = importlib.machinery.SourceFileLoader("peer", str(PEER))
    spec = importlib.util.spec_from_loader("peer", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes
    return module


@pytest.mark.parametrize("order", [*ORDERS[:-1], pytest.param(ORDERS[-1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("curve", CURVES)
def test_each_place_along_a_curve_is_where_it_is_by_hand(curve: str, order: int) -> None:
    expected = [line * 2**order + column for line, column in by_hand(curve, order)]
    assert places(curve, order).tolist() == expected


@pytest.mark.parametrize("order", range(9))
@pytest.mark.parametrize("curve", CURVES)
def test_each_place_along_a_curve_is_where_the_peer_has_it(peer: ModuleType, curve: str, order: int) -> None:
    expected = [y * 2**order + x for y, x, _ in islice(peer.curves[curve](order), 4**order)]
    assert places(curve, order).tolist() == expected


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.float64])
@pytest.mark.parametrize("curve", CURVES)
def test_whatever_lies_along_a_curve_is_laid_out_in_its_places(curve: str, kind: type) -> None:
    for shape in ((4**8,), (4**8, 3)):
        along: NDArray[Any] = np.random.default_rng(1).integers(0, 250, shape).astype(kind)
        picture = laid_out(curve, 8, along)
        assert picture.dtype == kind
        assert (picture.reshape(shape)[places(curve, 8)] == along).all()


@pytest.mark.parametrize("curve", [HILBERT, SNAKE])
def test_neighbours_along_a_curve_without_jumps_are_neighbours_in_the_picture(curve: str) -> None:
    rows = [divmod(place, 512) for place in places(curve, 9).tolist()]
    assert all(abs(row[0] - two[0]) + abs(row[1] - two[1]) == 1 for row, two in pairwise(rows))


def test_a_hilbert_curve_goes_from_the_lower_left_to_the_lower_right() -> None:
    for order in ORDERS:
        edge, result = 1 << order, places(HILBERT, order)
        assert (result[0], result[-1]) == ((edge - 1) * edge, edge * edge - 1)
