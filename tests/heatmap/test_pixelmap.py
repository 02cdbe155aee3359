"""The map of a picture, compared with the picture: the test looks up every pixel."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heatmap.filesystem_state import FilesystemState
from heatmap.picture import image_of, save
from heatmap.whole_filesystem import CellColours, Drawing, overview, pixel_map, save_pixel_map
from tests.heatmap.states import GIB, Pool, entries_at, step

STATE = Pool((24 * GIB, 9 * GIB, 16 * GIB), filled=0.8, seed=3).state()


def numbered(state: FilesystemState) -> CellColours:
    """Returns a colour for each block group that encodes its index, in steps of 2 that no mixture of two others equals."""
    number = np.arange(1, len(state.bg_vaddr) + 1)
    return CellColours(np.column_stack((number, 255 - number, number * 37 % 251)).astype(np.uint8), np.ones(len(number)))


def drawn(**wishes: Any) -> Drawing:
    return overview(STATE, colouring=numbered, min_brightness=1.0, **wishes)


@pytest.mark.parametrize("sort", ["physical", "virtual"])
@pytest.mark.parametrize(
    ("curve", "order", "size"), [("hilbert", 5, 5), ("hilbert", 4, 6), ("snake", 5, 5), ("linear", 3, 4), ("hilbert", 0, 2)]
)
def test_every_pixel_is_what_the_map_says(sort: str, curve: str, order: int, size: int, tmp_path: Path) -> None:
    picture = drawn(sort=sort, curve=curve, order=order, size=size)
    save(image_of(picture.runs, picture.grid), str(tmp_path / "x.png"))
    save_pixel_map(STATE, picture, str(tmp_path / "x.json"))
    answer = json.loads((tmp_path / "x.json").read_text())
    colours = numbered(STATE).rgb.tolist()
    group_at = {vaddr: number for number, vaddr in enumerate(STATE.bg_vaddr.tolist())}
    seen: set[int] = set()
    mixed = 0
    with Image.open(tmp_path / "x.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    for y, x in np.ndindex(*pixels.shape[:2]):
        here = entries_at(answer, x, y)
        seen.update(here)
        rgb = pixels[y, x].tolist()
        if not here:
            assert rgb == [0, 0, 0]
        elif rgb in colours:
            assert colours.index(rgb) in {group_at[answer["entries"]["vaddr"][entry]] for entry in here}
        else:  # a mixture, or a pixel that is not full
            mixed += 1
            down = size - order
            assert here == _touching(step(curve, order, x >> down, y >> down), picture)
    assert mixed < pixels.size / 3 / 2 or order < 4
    assert seen == set(range(len(answer["entries"]["start"])))


def _touching(place: int, picture: Drawing) -> list[int]:
    """Returns the cells that have bytes in a pixel, in exact arithmetic."""
    count, total = 4**picture.grid.order, picture.grid.total_bytes
    begin, end = Fraction(place * total, count), Fraction((place + 1) * total, count)
    cells = zip(picture.cells.first_byte.tolist(), picture.cells.length.tolist(), strict=True)
    return [number for number, (first, length) in enumerate(cells) if first < end and first + length > begin]


def test_an_entry_has_the_numbers_of_its_block_group_and_place() -> None:
    picture = drawn(order=5, size=5)
    entries = pixel_map(STATE, picture)["entries"]
    assert len(entries["vaddr"]) == len(STATE.de_vaddr)
    rows = zip(entries["devid"], entries["paddr"], entries["vaddr"], strict=True)
    assert list(rows) == list(zip(STATE.de_devid.tolist(), STATE.de_paddr.tolist(), STATE.de_vaddr.tolist(), strict=True))
    at = np.searchsorted(STATE.bg_vaddr, entries["vaddr"])
    assert entries["used"] == STATE.bg_used[at].tolist()
    assert STATE.score is not None
    assert [np.nan if row is None else row for row in entries["score"]] == pytest.approx(STATE.score[at], abs=0.051, nan_ok=True)


def test_places_are_sorted_and_do_not_overlap_but_in_one_pixel() -> None:
    entries = pixel_map(STATE, drawn(order=4))["entries"]
    start, end = np.array(entries["start"]), np.array(entries["end"])
    assert (np.diff(start) >= 0).all()
    assert (end > start).all()
    assert (start[1:] >= end[:-1] - 1).all()


def test_by_address_there_are_no_devices_and_without_scores_none() -> None:
    entries = pixel_map(replace(STATE, score=None), overview(STATE, sort="virtual"))["entries"]
    assert {"devid", "paddr", "score"}.isdisjoint(entries)
    assert entries["vaddr"] == sorted(entries["vaddr"])


def test_a_map_of_42_tib_is_a_few_megabytes(tmp_path: Path) -> None:
    state = Pool((42 << 40,), filled=0.85).state()
    save_pixel_map(state, overview(state), str(tmp_path / "x"))
    assert (tmp_path / "x").stat().st_size < 4 << 20
