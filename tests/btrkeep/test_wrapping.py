"""Prose at a terminal is broken between words; what is piped is never broken."""

import subprocess
import sys

from tests.beds import TOP
from tests.beds.terminal import at_a_terminal

TEXT = " ".join(["the source is missing, or cannot be entered:", "/srv/" + "a" * 90] * 2)
LINE = [sys.executable, "-c", f"from btrkeep.cli.progress import prose; prose('    ' + {TEXT!r}, '      ')"]


def test_prose_is_broken_between_words_at_a_terminal_and_a_long_word_is_left_whole() -> None:
    with at_a_terminal(LINE, cwd=TOP, width=60) as terminal:
        assert terminal.ends() == 0
        shown = terminal.text.splitlines()
    assert " ".join(line.strip() for line in shown) == TEXT
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown)
    assert [len(line) - len(line.lstrip()) for line in shown] == [4, *[6] * (len(shown) - 1)]


def test_what_is_piped_is_one_line() -> None:
    assert subprocess.run(LINE, cwd=TOP, check=True, capture_output=True, text=True).stdout == f"    {TEXT}\n"
