"""The map of a block group, sector by sector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.cli.score_view import bar
from balancer.explain import ASCII, rows, used_shares

SECTOR = 4096


@given(st.lists(st.booleans(), min_size=7, max_size=300), st.integers(1, 7))
def test_a_cell_is_as_full_as_its_sectors_are(used: list[bool], cells: int) -> None:
    """Cells end at sectors here; the block group starts at any address, and adjacent free sectors form one extent."""
    used = used[: len(used) // cells * cells]
    start = 13 << 20
    free = [number for number, is_true in enumerate(used) if not is_true]
    vaddr = np.array([start + number * SECTOR for number in free], np.uint64)
    actual_used_shares = used_shares(vaddr, np.full(len(free), SECTOR, np.uint64), start, len(used) * SECTOR, cells)
    each = len(used) // cells
    assert actual_used_shares.tolist() == pytest.approx([sum(used[at : at + each]) / each for at in range(0, len(used), each)])


def test_a_free_extent_over_many_cells_is_cut_at_their_edges() -> None:
    vaddr, length = np.array([1000, 3500], np.uint64), np.array([2250, 500], np.uint64)
    assert used_shares(vaddr, length, 0, 4000, 4).tolist() == pytest.approx([1, 0, 0, 0.25])


def test_the_rows_read_from_left_to_right_two_lines_in_each() -> None:
    shares = np.array([1, 1, 0, 0, 1, 0, 1, 0, 0.4, 0.6, 0.4, 0.6], float)
    assert rows(shares, 2) == ["▀▀", "█ ", " █"]
    assert rows(shares, 2, characters=ASCII) == ["''", "# ", " #"]


def test_with_colours_the_brightness_says_how_much_is_used() -> None:
    drawn = rows(np.array([0, 1, 0.5, 0.25]), 2, lambda character, upper, lower: f"{character} {upper} {lower};")
    assert drawn == ["▀ 234 244;▀ 254 239;"]


@given(st.floats(0, 1), st.booleans())
def test_a_bar_is_as_long_as_its_share_and_shows_what_is_not_nothing(share: float, blocks: bool) -> None:
    drawn = bar(share, 30, blocks=blocks)
    eighths = sum(8 if character in "█#" else "▏▎▍▌▋▊▉".index(character) + 1 for character in drawn)
    assert eighths == pytest.approx(share * 240, abs=8 if not blocks else 1)
    assert bool(drawn) == (share > 0)
    assert drawn.isascii() != blocks or not drawn
