"""From bytes to pixels, compared with a loop over every fill and every pixel; properties of any fills."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from btrkeep.errors import OperatorError
from heatmap.grid import Canvas, Grid, Runs, choose_grid

COLOURS = [(255, 255, 255), (0, 0, 255), (255, 0, 0x33), (0x99, 0xCC, 0xFF), (1, 2, 3)]
MIB = 1 << 20


@dataclass(frozen=True)
class Fill:
    first_byte: int
    length: int
    share: float
    colour: tuple[int, int, int]


def one_by_one(order: int, total: int, fills: list[Fill], least: float = 0.1) -> list[tuple[int, ...]]:
    """Returns each pixel's colour: the loop notes the part that each fill takes of a pixel, then mixes every pixel separately."""
    size = total / 4**order
    noted: list[list[tuple[Fill, float]]] = [[] for _ in range(4**order)]
    for fill in fills:
        end = fill.first_byte + fill.length
        first, last = int(fill.first_byte / size), int((end - 1) / size)
        if first == last:
            noted[first].append((fill, fill.length / size))
            continue
        noted[first].append((fill, (size - fill.first_byte % size) / size))
        for between in range(first + 1, last):
            noted[between].append((fill, 1.0))
        noted[last].append((fill, end % size / size or 1.0))
    return [mixed(parts, least) for parts in noted]


def mixed(parts: list[tuple[Fill, float]], least: float) -> tuple[int, ...]:
    if not parts:
        return (0, 0, 0)
    share, rgb = 0.0, [0.0, 0.0, 0.0]
    for fill, part in parts:
        share += fill.share * part
        rgb = [so_far + channel * part for so_far, channel in zip(rgb, fill.colour, strict=True)]
    brightness = least + share * (1 - least)
    return tuple(min(255, round(channel * brightness)) for channel in rgb)


def painted(order: int, total: int, fills: list[Fill], cuts: list[int], least: float = 0.1) -> Runs:
    """Paints with our canvas, in batches that end at these numbers of fills."""
    canvas = Canvas(Grid("linear", order, order, total), least)
    ends = sorted({min(cut, len(fills)) for cut in cuts} | {len(fills)})
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        rows = fills[begin:end]
        first_byte, length = (np.array([getattr(fill, name) for fill in rows], np.int64) for name in ("first_byte", "length"))
        colour = np.array([fill.colour for fill in rows], np.uint8).reshape(-1, 3)
        canvas.fill(first_byte, length, np.array([fill.share for fill in rows], np.float64), colour)
    return canvas.finish()


@st.composite
def filled(draw: st.DrawFn) -> tuple[int, int, list[Fill]]:
    """An order, a number of bytes, and fills that follow each other with and without gaps, of whole sectors or single bytes."""
    order = draw(st.integers(0, 4))
    unit = draw(st.sampled_from([1, 4096, MIB]))
    total = draw(st.integers(1, 400)) * unit
    fills, reached = [], 0
    for _ in range(draw(st.integers(0, 40))):
        first_byte = reached + draw(st.sampled_from([0, 0, unit, 7 * unit]))
        if first_byte >= total:
            break
        length = min(draw(st.integers(1, 60)) * unit, total - first_byte)
        share = draw(st.sampled_from([0.0, 1.0, 0.5, 1 / 3]) | st.floats(0, 1))
        fills.append(Fill(first_byte, length, share, draw(st.sampled_from(COLOURS))))
        reached = first_byte + length
    return order, total, fills


@given(filled(), st.lists(st.integers(0, 40), max_size=3))
@example((0, 4096, [Fill(0, 4096, 1.0, COLOURS[0])]), [])
@example((1, 4096, [Fill(1024, 2048, 0.0, COLOURS[0])]), [])
@example((2, 3, [Fill(0, 1, 1.0, COLOURS[0]), Fill(1, 2, 1.0, COLOURS[1])]), [1])
def test_every_pixel_is_what_a_loop_over_fills_and_pixels_makes_it(case: tuple[int, int, list[Fill]], cuts: list[int]) -> None:
    order, total, fills = case
    assert painted(order, total, fills, cuts).pixels().tolist() == [list(rgb) for rgb in one_by_one(order, total, fills)]


@given(filled())
def test_with_another_least_brightness_it_is_so_too(case: tuple[int, int, list[Fill]]) -> None:
    order, total, fills = case
    assert painted(order, total, fills, [], 1.0).pixels().tolist() == [list(rgb) for rgb in one_by_one(order, total, fills, 1.0)]


@given(filled())
def test_runs_are_in_order_and_cover_the_picture(case: tuple[int, int, list[Fill]]) -> None:
    order, total, fills = case
    runs = painted(order, total, fills, [])
    assert runs.begin[0] == 0
    assert (np.diff(runs.begin) > 0).all()
    assert runs.begin[-1] < runs.count == 4**order
    assert len(runs.pixels()) == runs.count


@given(st.integers(0, 5), st.integers(1, 4000))
def test_one_full_white_fill_over_everything_is_all_white(order: int, sectors: int) -> None:
    runs = painted(order, sectors * 4096, [Fill(0, sectors * 4096, 1.0, COLOURS[0])], [])
    whole = sectors * 4096 % 4**order == 0
    assert (runs.pixels() == 255).all() if whole else (runs.pixels()[:-1] == 255).all()


def test_what_is_empty_but_allocated_is_dark_and_what_is_not_allocated_is_black() -> None:
    pixels = painted(1, 4 * MIB, [Fill(0, MIB, 0.0, COLOURS[0]), Fill(MIB, MIB, 1.0, COLOURS[0])], []).pixels()
    assert pixels.tolist() == [[26] * 3, [255] * 3, [0] * 3, [0] * 3]  # 25.5 is rounded to the even one


@pytest.mark.parametrize("cuts", [[], [1], [2]], ids=str)
def test_a_place_that_is_shown_twice_by_a_changing_tree_is_drawn_and_not_beyond_white(cuts: list[int]) -> None:
    """Also if a later fill begins before the last one."""
    for again in (0, MIB):
        twice = [Fill(0, 2 * MIB, 1.0, COLOURS[0]), Fill(again, MIB, 1.0, COLOURS[0]), Fill(3 * MIB, 2 * MIB, 1.0, COLOURS[0])]
        pixels = painted(1, 4 * MIB, twice, cuts).pixels()
        assert pixels.tolist() == [[255] * 3, [255] * 3, [0] * 3, [255] * 3]


@pytest.mark.parametrize(
    ("order", "size", "total", "granularity", "chosen"),
    [
        (None, None, 42 << 40, 32 * MIB, (10, 10)),
        (None, None, 1 << 30, 32 * MIB, (3, 10)),
        (None, None, 16 * MIB, 32 * MIB, (0, 10)),
        (None, None, 32 * MIB, 32 * MIB, (0, 10)),
        (None, None, 33 * MIB, 32 * MIB, (1, 10)),
        (None, None, 1 << 30, 4096, (9, 10)),
        (None, 5, 42 << 40, 32 * MIB, (5, 5)),
        (None, 12, 42 << 40, 32 * MIB, (10, 12)),
        (12, None, 1 << 30, 32 * MIB, (12, 12)),
        (3, None, 42 << 40, 32 * MIB, (3, 10)),
        (0, 0, 42 << 40, 32 * MIB, (0, 0)),
    ],
)
def test_order_and_size_are_chosen_as_the_manual_says(
    order: int | None, size: int | None, total: int, granularity: int, chosen: tuple[int, int]
) -> None:
    grid = choose_grid(order, size, "hilbert", total, granularity)
    assert (grid.order, grid.size) == chosen
    if order is None and size is None:
        assert grid.bytes_per_pixel <= granularity or grid.order == 10
        assert grid.order == 0 or total / 4 ** (grid.order - 1) > granularity
    assert grid.scale == 2 ** (grid.size - grid.order)
    assert math.isclose(grid.bytes_per_pixel * grid.edge**2, total)


def test_a_size_below_the_order_is_an_error() -> None:
    with pytest.raises(OperatorError, match=r"size \(5\) cannot be smaller than order \(6\)"):
        choose_grid(6, 5, "hilbert", 1 << 40, 32 * MIB)
