"""Questions to a user at a terminal, whose answers can also be given as options. Without a terminal nothing is asked."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click

from btrkeep.cli import print_error
from btrkeep.cli.output import with_calls
from btrkeep.errors import OperatorError, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompter:
    """Asks the operator."""

    asks: bool
    """True if questions can be asked, at a terminal."""
    as_json: bool
    """True if text goes to standard error, because standard output has JSON."""

    @classmethod
    def here(cls, as_json: bool) -> "Prompter":
        """With the user at the terminal. JSON is for programs, which cannot answer."""
        return cls(os.isatty(0) and not as_json, as_json)

    def say(self, text: str = "") -> None:
        click.echo(with_calls(text), err=self.as_json)

    def heading(self, text: str) -> None:
        self.say("\n" + click.style(text, bold=True))

    def ask(self, question: str, default: str = "") -> str:
        """Reads one line; the text in brackets if nothing is typed. Ctrl-C and the end of input are click.Abort."""
        answer: str = click.prompt(question, default=default, show_default=bool(default), err=self.as_json)
        return answer.strip()

    def agrees(self, question: str, *, default: bool) -> bool:
        return click.confirm(question, default=default, err=self.as_json)


def ask_until_valid(prompter: Prompter, given: str | None, question: str, default: str, use: Callable[[str], T]) -> T:
    """Returns the result of `use` for the given text, or for an answer. A refused answer is asked for again. Raises what `use`
    raises.
    """
    if given is not None or not prompter.asks:
        return use(given if given is not None else default)
    while True:
        try:
            return use(prompter.ask(question, default))
        except OperatorError as error:
            print_error(error)


def require_options(prompter: Prompter, missing: list[str]) -> None:
    """Raises UsageError with every option that is missing."""
    if missing and not prompter.asks:
        raise UsageError(
            f"without a terminal these options are needed: {', '.join(missing)}", "`backupd setup --help` explains them"
        )


def words(text: str) -> list[str]:
    """Splits words as a shell does, including quotes. Raises UsageError if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", "write a path with spaces in quotes") from None
