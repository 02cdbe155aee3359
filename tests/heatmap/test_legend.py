"""The band below a picture is readable at every width, and all of its text stays inside."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageChops

from heatmap.colourings import COLOUR_SCHEMES, sequential_colours
from heatmap.legend import GROUND, _type, _wrapped, add_below, extents_legend, legend, numbers, strip, title
from heatmap.state_reader import TREES
from heatmap.whole_filesystem import overview
from tests.heatmap.states import FSID, GIB, Pool

STATE = Pool((64 * GIB, 32 * GIB)).state(label="a rather long label of a backup pool")
WIDTHS = (256, 512, 1024, 2048, 4096)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", list(COLOUR_SCHEMES))
def test_nothing_runs_out_of_the_band(width: int, name: str) -> None:
    band = legend(STATE, overview(STATE, size=8).grid, "physical", COLOUR_SCHEMES[name], width)
    assert band.shape[1:] == (width, 3)
    edge = _type(width).edge
    for side in (band[:, : edge - 2], band[:, -(edge - 2) :], band[-1:], band[:1]):
        assert (side == GROUND).all()
    assert (band != GROUND).any(2).sum() > 500
    assert len(band) < width


@pytest.mark.parametrize("width", WIDTHS)
def test_letters_are_never_smaller_than_eleven_pixels_and_grow_with_the_picture(width: int) -> None:
    letters = _type(width)
    box = letters.font.getbbox("Hg")
    assert box[3] - box[1] >= 11 * 0.8
    assert letters.font.size == max(11, min(44, round(width / 62)))


@pytest.mark.parametrize("room", [60, 100, 300, 5000])
def test_long_lines_are_wrapped_and_no_word_is_lost(room: int) -> None:
    letters = _type(256)
    pieces = list(_wrapped(title(STATE), room, letters))
    assert "".join(pieces).replace(" ", "") == title(STATE).replace(" ", "")
    assert max(letters.width(piece) for piece in pieces) <= room


def test_it_says_whose_it_is_when_how_large_and_how_full() -> None:
    assert title(STATE) == f"a rather long label of a backup pool  {FSID}  2025-11-21T22:00:00Z"
    devices, groups = numbers(STATE)
    allocated = len(STATE.de_length)
    assert devices == f"2 devices, 96.0 GiB: {allocated}.0 GiB allocated, {96 - allocated}.0 GiB unallocated"
    assert groups.startswith(f"{allocated} block groups, {allocated}.0 GiB: ")


def test_a_label_cannot_draw_what_it_likes() -> None:
    assert "\\n" in title(replace(STATE, label="a\nb"))
    assert title(replace(STATE, label="")).startswith(FSID)


def test_letters_that_the_font_lacks_become_plain_ones() -> None:
    """A box for each letter would not be readable."""
    plain, others = (
        legend(replace(STATE, label=label), overview(STATE).grid, "physical", COLOUR_SCHEMES["type"], 512)
        for label in ("tast", "täst")
    )
    assert (plain == others).all()


def test_the_ramp_shows_all_of_the_sequence() -> None:
    band = legend(STATE, overview(STATE).grid, "physical", COLOUR_SCHEMES["score"], 1024)
    edge = _type(1024).edge
    wanted = sequential_colours()[np.arange(1024 - 2 * edge) * 256 // (1024 - 2 * edge)]
    lines = [(line[edge:-edge] == wanted).all(1).mean() for line in band]
    assert max(lines) > 0.99


@pytest.mark.parametrize("width", [*WIDTHS[:-1], pytest.param(WIDTHS[-1], marks=pytest.mark.slow)])
def test_every_tree_has_its_swatch_beside_the_others(width: int) -> None:
    band = extents_legend(FSID, STATE.taken, overview(STATE).grid, "block_group 13631488", width)
    side = _type(width).line * 3 // 4 - 2
    for name, colour in TREES.values():
        assert (band == colour).all(2).sum() >= side * side, name


def test_the_picture_itself_stays_as_it_was() -> None:
    picture = Image.effect_noise((64, 64), 90).convert("RGB")
    larger = add_below(picture, strip(64, "x", "y"))
    assert ImageChops.difference(larger.crop((0, 0, 64, 64)), picture).getbbox() is None
    assert larger.height > 64


@pytest.mark.parametrize("width", [16, 64, 256, 1024, 4096])
def test_a_strip_has_an_even_height_and_leaves_out_what_does_not_fit(width: int) -> None:
    right = "42.0 TiB, 34.2 TiB allocated, 30.5 TiB used"
    line = strip(width, "2026-11-20 22:00 UTC", right)
    assert line.shape[0] % 2 == 0
    assert (line > 128).any()
    assert (line[:, width // 2 :] != GROUND).any() == (width != 256)
    if width >= 1024:
        assert (line[:, width // 3 : width // 2] == GROUND).all()
