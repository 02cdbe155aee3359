"""Colours: computed correctly, distinguishable for colour-blind people, and as the legend describes them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from btrkeep.choices import COLOURS
from btrkeep.errors import OperatorError
from heatmap.colourings import (
    BLACK,
    COLOUR_SCHEMES,
    GREY,
    STEPS,
    VISIONS,
    WHITE,
    distances,
    encoded,
    linear,
    oklab,
    qualitative_colours,
    sequential_colours,
    simulated,
)
from heatmap.filesystem_state import PROFILES
from heatmap.whole_filesystem import overview
from tests.heatmap.states import GIB, Pool

STATE = Pool((64 * GIB,)).state()


def lab(*rgb: tuple[int, int, int]) -> np.ndarray:
    return oklab(np.array(rgb, np.uint8))


def test_oklab_is_as_its_author_gives_it() -> None:
    """See https://bottosson.github.io/posts/oklab: white is (1, 0, 0); red, green and blue as CSS Color 4 implementations have
    them.
    """
    answer: Any = [[1, 0, 0], [0.62796, 0.22486, 0.12585], [0.86644, -0.23389, 0.17950], [0.45201, -0.03246, -0.31153]]
    assert np.allclose(lab(WHITE, (255, 0, 0), (0, 255, 0), (0, 0, 255)), answer, atol=2e-4)


def test_all_bytes_survive_the_way_to_light_and_back() -> None:
    every = np.arange(256, dtype=np.uint8)
    assert (encoded(linear(every)) == every).all()


def test_red_and_green_are_confused_as_published() -> None:
    """Viénot, Brettel and Mollon (1999): a protanope sees 0.11238 R + 0.88762 G, a deuteranope 0.29275 R + 0.70725 G."""
    red, green = np.array([[255, 0, 0]], np.uint8), np.array([[0, 255, 0]], np.uint8)
    for vision, share in (("protan", 0.11238), ("deutan", 0.29275)):
        assert linear(simulated(red, vision))[0, :2] == pytest.approx([share, share], abs=0.003)
        assert linear(simulated(green, vision))[0, :2] == pytest.approx([1 - share, 1 - share], abs=0.003)


@pytest.mark.parametrize("vision", VISIONS)
def test_greys_look_alike_with_each_colour_vision(vision: str) -> None:
    greys = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    assert np.abs(simulated(greys, vision).astype(int) - greys).max() <= 1


@pytest.mark.parametrize("vision", VISIONS)
def test_the_sequence_grows_lighter_evenly_with_each_colour_vision(vision: str) -> None:
    lightness = oklab(simulated(sequential_colours(), vision))[:, 0]
    sixteenth = lightness[:: STEPS // 16]
    assert (np.diff(sixteenth) > 0.01).all()
    assert sixteenth[-1] - sixteenth[0] > 0.4


def test_the_sequence_goes_from_violet_over_teal_to_yellow() -> None:
    (_, first_red, first_blue), (_, middle_red, _), (_, _, last_blue) = oklab(sequential_colours()[[0, STEPS // 2, -1]]).tolist()
    assert first_red > 0.05
    assert first_blue < -0.08
    assert middle_red < -0.05
    assert last_blue > 0.1


def test_the_sequence_is_seen_on_black_and_on_a_white_page() -> None:
    assert distances(sequential_colours(), np.array([BLACK, WHITE], np.uint8)).min() > 0.08
    steps = np.abs(np.diff(sequential_colours().astype(int), axis=0)).max(1)
    assert steps.max() <= 4  # no edge where the data have none
    assert len(np.unique(sequential_colours(), axis=0)) > STEPS * 0.95


def test_colours_without_order_are_distinct_with_each_colour_vision() -> None:
    chosen = qualitative_colours(len(PROFILES))
    apart = distances(chosen, chosen) + np.eye(len(chosen))
    assert apart.min() > 0.1
    assert distances(chosen, np.array([BLACK, GREY, WHITE], np.uint8)).min() > 0.1
    assert (qualitative_colours(3) == chosen[:3]).all()


def test_the_higher_the_score_the_lighter_and_no_score_is_grey() -> None:
    score = np.array([0, 1, 10, 100, 250, 800, 5000, np.nan], np.float32)
    state = replace(
        STATE, **{name: getattr(STATE, name)[:8] for name in ("bg_vaddr", "bg_length", "bg_used", "bg_flags")}, score=score
    )
    rgb = COLOUR_SCHEMES["score"].paint(state).rgb
    assert (np.diff(oklab(rgb[:7])[:, 0]) > 0).all()
    assert rgb[7].tolist() == list(GREY)
    assert (rgb[6] == sequential_colours()[-1]).all()


def test_what_was_written_last_is_lightest_and_what_is_empty_is_grey() -> None:
    generation = np.arange(len(STATE.bg_vaddr), dtype=np.uint64)[::-1]
    rgb = COLOUR_SCHEMES["age"].paint(replace(STATE, generation=generation)).rgb
    assert (rgb[0] == sequential_colours()[-1]).all()
    assert (rgb[-2] == sequential_colours()[0]).all()
    assert rgb[-1].tolist() == list(GREY)


def test_without_generations_age_goes_by_address_and_says_so() -> None:
    state = replace(STATE, generation=None)
    rgb = COLOUR_SCHEMES["age"].paint(state).rgb
    assert (rgb[0] == sequential_colours()[0]).all()
    assert (rgb[-1] == sequential_colours()[-1]).all()
    assert COLOUR_SCHEMES["age"].key(state).title == "age, by order of virtual addresses"
    assert COLOUR_SCHEMES["age"].key(STATE).title == "age, by generation"


def test_a_state_without_scores_says_what_to_draw_instead() -> None:
    with pytest.raises(OperatorError, match="no scores"):
        overview(replace(STATE, score=None), colouring=COLOUR_SCHEMES["score"].paint)


def test_each_profile_has_a_colour_of_its_own_and_the_key_names_those_that_are_there() -> None:
    flags = np.array([1 | flag for flag in PROFILES], np.uint64)
    columns: dict[str, Any] = {name: np.arange(len(flags), dtype=np.uint64) for name in ("bg_vaddr", "bg_length", "bg_used")}
    state = replace(STATE, **columns, bg_flags=flags)
    rgb = COLOUR_SCHEMES["profile"].paint(state).rgb
    assert len(np.unique(rgb, axis=0)) == len(PROFILES)
    assert {name: colour for colour, name in COLOUR_SCHEMES["profile"].key(state).swatches} == {
        name: tuple(row) for name, row in zip(PROFILES.values(), rgb.tolist(), strict=True)
    }
    assert [name for _, name in COLOUR_SCHEMES["profile"].key(STATE).swatches] == ["single"]


@pytest.mark.parametrize("name", COLOURS)
def test_a_pixel_of_one_block_group_has_its_colour_undimmed(name: str) -> None:
    choice = COLOUR_SCHEMES[name]
    paint = choice.paint(STATE)
    drawn = overview(STATE, order=7, size=7, colouring=choice.paint, min_brightness=choice.min_brightness)
    place = int((drawn.cells.first_byte[3] + drawn.cells.length[3] // 2) / drawn.grid.bytes_per_pixel)
    group = int(drawn.cells.group[3])
    expected = paint.rgb[group] * (choice.min_brightness + paint.share[group] * (1 - choice.min_brightness))
    assert np.abs(drawn.runs.pixels()[place] - expected).max() <= 0.5
