"""Pictures in the terminal, read by a small terminal emulator in the test."""

import re
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from btrkeep.errors import OperatorError
from heatmap.picture import _colours, drawn, edge_for, show
from heatmap.recorded import save
from tests.beds import TOP
from tests.beds.terminal import at_a_terminal
from tests.heatmap.program import heatmap
from tests.heatmap.states import Pool

XTERM = [0, 95, 135, 175, 215, 255]


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def colour(words: str) -> tuple[int, ...]:
    """Returns the colour that an xterm shows for the end of an SGR sequence."""
    kind, *numbers = (int(word) for word in words.split(";"))
    if kind == 2:
        return tuple(numbers)
    [number] = numbers
    if number >= 232:
        return (8 + 10 * (number - 232),) * 3
    red, rest = divmod(number - 16, 36)
    return XTERM[red], XTERM[rest // 6], XTERM[rest % 6]


def shown(text: str) -> NDArray[np.uint8]:
    """Returns the pixels that a terminal shows: two for each character."""
    lines: list[list[tuple[int, ...]]] = []
    over: tuple[int, ...] = ()
    under: tuple[int, ...] = ()
    for line in text.splitlines():
        rows: list[list[tuple[int, ...]]] = [[], []]
        for sequence, block in re.findall(r"\x1b\[([\d;]*)m|(▀)", line):
            if block:
                rows[0].append(over)
                rows[1].append(under)
            elif sequence != "0":
                match = re.fullmatch(r"38;(2;\d+;\d+;\d+|5;\d+);48;(2;\d+;\d+;\d+|5;\d+)", sequence)
                assert match
                over, under = colour(match[1]), colour(match[2])
        assert line.endswith("\x1b[0m")
        lines += rows
    return np.array(lines, np.uint8)


def noise(edge: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(5).integers(0, 256, (edge, edge, 3), np.uint8))


def test_true_colour_shows_each_pixel() -> None:
    picture = noise(32)
    assert (shown("".join(drawn(picture, 32, true_colour=True))) == np.asarray(picture)).all()


def test_256_colours_show_the_nearest_of_them() -> None:
    picture = noise(16)
    every = np.array([colour(f"5;{number}") for number in range(16, 256)])
    wanted = np.asarray(picture).astype(int)
    least = ((wanted[:, :, None] - every) ** 2).sum(-1).min(-1)
    answer = ((shown("".join(drawn(picture, 16, true_colour=False))).astype(int) - wanted) ** 2).sum(-1)
    assert (answer == least).mean() > 0.97  # the nearest grey is searched by brightness alone
    assert answer.max() < least.max() * 1.5


def test_what_is_larger_is_averaged_and_what_is_smaller_keeps_its_squares() -> None:
    small, large = Image.new("RGB", (4, 4), (200, 100, 0)), Image.new("RGB", (256, 256))
    large.paste((100, 100, 100), (0, 0, 128, 256))
    assert (shown("".join(drawn(small, 16, true_colour=True))) == (200, 100, 0)).all()
    halves = shown("".join(drawn(large, 16, true_colour=True)))
    assert (halves[:, :8] == 100).all()
    assert (halves[:, 8:] == 0).all()


@pytest.mark.parametrize("columns", [20, 64, 79, 80, 132, 250])
@pytest.mark.parametrize("lines", [10, 24, 50, 100])
def test_it_fits_the_width_of_the_terminal(columns: int, lines: int) -> None:
    edge = edge_for(columns, lines)
    assert edge <= columns
    assert edge & (edge - 1) == 0
    assert edge <= max(2 * lines, 64)
    assert edge == 64 or (columns, lines) != (80, 24)


def test_what_is_no_terminal_is_told_so() -> None:
    with pytest.raises(OperatorError, match="needs a terminal") as seen:
        show(noise(4), StringIO())
    assert seen.value.hint


@pytest.mark.parametrize(
    ("environment", "true_colour"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-direct"}, True),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "screen"}, False),
    ],
)
def test_what_the_terminal_can_is_taken_from_what_it_says(environment: dict[str, str], true_colour: bool) -> None:
    assert _colours(Terminal(), environment) is true_colour


@pytest.mark.parametrize(
    ("environment", "encoding"),
    [({"TERM": "dumb"}, "utf-8"), ({}, "utf-8"), ({"TERM": "linux"}, "utf-8"), ({"TERM": "xterm"}, "ascii")],
)
def test_a_terminal_without_colours_or_blocks_is_told_so(environment: dict[str, str], encoding: str) -> None:
    terminal = Terminal()
    terminal.encoding = encoding
    with pytest.raises(OperatorError, match="--show needs a terminal"):
        _colours(terminal, environment)


def test_the_lines_beside_a_picture_are_broken_between_words_at_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    state = tmp_path / "state.heatmap"
    save(Pool().state(), str(state))
    words = [sys.executable, "-m", "heatmap", "draw", str(state), "-o", str(tmp_path / "made.png")]
    with at_a_terminal([*words, "--show"], {"TERM": "xterm-256color"}, cwd=TOP, width=80) as terminal:
        assert terminal.ends() == 0
        lines = [line for line in terminal.text.splitlines() if "\u2580" not in line]
    piped = heatmap("draw", state, "-o", tmp_path / "made.png").stdout
    assert max(map(len, piped.splitlines())) > 80
    assert max(len(line) for line in lines if len(line.split()) > 1) <= 80
    assert " ".join(word for line in lines for word in line.split()) == " ".join(piped.split())
