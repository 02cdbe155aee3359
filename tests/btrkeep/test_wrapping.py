"""Text at a terminal is wrapped between words; piped text is never wrapped."""

import subprocess
import sys

import click

from btrkeep.decisions.schedule import ScheduleVerdict, schedule_hint
from tests.beds import TOP
from tests.beds.terminal import at_a_terminal

TEXT = " ".join(["the source is missing, or cannot be entered:", "/srv/" + "a" * 90] * 2)
LINE = [sys.executable, "-c", f"from btrkeep.cli.output import print_wrapped; print_wrapped('    ' + {TEXT!r}, '      ')"]


def test_prose_is_broken_between_words_at_a_terminal_and_a_long_word_is_left_whole() -> None:
    with at_a_terminal(LINE, cwd=TOP, width=60) as terminal:
        assert terminal.ends() == 0
        shown = terminal.text.splitlines()
    assert " ".join(line.strip() for line in shown) == TEXT
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown)
    assert [len(line) - len(line.lstrip()) for line in shown] == [4, *[6] * (len(shown) - 1)]


COMPLAINT = (
    "from btrkeep.cli import print_error; from btrkeep.errors import OperatorError;"
    "print_error(OperatorError('the pool is not there, and so nothing of it can be said here',"
    " 'mount it with what /etc/fstab says, then look at it with `backupd --pool main check --json`'))"
)


def test_an_error_and_its_hint_are_broken_between_words_and_never_in_a_command() -> None:
    line = [sys.executable, "-c", COMPLAINT]
    with at_a_terminal(line, cwd=TOP, width=50) as terminal:
        terminal.ends()
        shown = click.unstyle(terminal.text).splitlines()
    piped = subprocess.run(line, cwd=TOP, check=True, capture_output=True, text=True).stderr
    assert [len(name) <= 50 for name in shown] == [True] * len(shown)
    assert " ".join(name.strip() for name in shown) == " ".join(piped.splitlines())
    assert piped.count("\n") == 2
    assert sum("`backupd --pool main check --json`" in name for name in shown) == 1


def test_what_is_piped_is_one_line() -> None:
    assert subprocess.run(LINE, cwd=TOP, check=True, capture_output=True, text=True).stdout == f"    {TEXT}\n"


def test_a_line_for_cron_is_one_line_at_a_terminal() -> None:
    hint = schedule_hint(ScheduleVerdict(by_units=False, command="backupd --config /etc/btrkeep/of\\ the\\ office.toml"))
    line = [sys.executable, "-c", f"from btrkeep.cli.output import print_wrapped; print_wrapped({f'schedule: {hint}'!r})"]
    with at_a_terminal(line, cwd=TOP, width=60) as terminal:
        assert terminal.ends() == 0
        shown = [text.strip() for text in terminal.text.splitlines()]
    command = "/usr/local/sbin/backupd --config /etc/btrkeep/of\\ the\\ office.toml run --scheduled"
    assert shown[-1] == f"`*/15 * * * * root {command}`"
