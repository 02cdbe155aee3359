"""Prints progress and messages to a terminal that may disappear: the window is closed, or the user quits the pager.

Later output, and output to a full disk, is lost, and the work continues.
"""

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, Self, cast

import click

from btrkeep.process.progress import Notice
from btrkeep.units import printable

_WORD = re.compile(r"\s*(?:`[^`]*`|\S)+")  # text in backquotes is a command to paste
_COMMAND = re.compile(r"`(backupd|btrkeep-web) (?!-)")


def say(text: str, *, err: bool = False) -> None:
    """Prints a line."""
    try:
        print_wrapped(text, err=err)
    except OSError:
        hang_up(sys.stderr if err else sys.stdout)


def print_wrapped(text: str, indent: str = "  ", *, err: bool = False, color: bool | None = None) -> None:
    """Wraps text between words at the terminal's width; continuation lines start with `indent`.

    A word that is longer than a line is not split, so that it can be copied, nor is a command in backquotes. If the output is not a
    terminal, the text remains one line.
    """
    text = with_calls(text)
    if (sys.stderr if err else sys.stdout).isatty():
        import shutil

        text = "\n".join(_broken(text, indent, shutil.get_terminal_size().columns))
    click.echo(text, err=err, color=color)


_calls: dict[str, str] = {}
"""The command lines of btrkeep's programs for the pool of this command, by program: "backupd --pool archive"."""


def print_commands_as(program: str, call: str) -> None:
    """From now on each command of `program` that is printed in backquotes starts with `call`, so that it is about the same pool."""
    _calls[program] = call


def call_of(program: str) -> str:
    """Returns the command line of a program for the pool of this command."""
    return _calls.get(program, program)


def with_calls(text: str) -> str:
    """Returns the text with the commands in backquotes changed by `print_commands_as`."""
    return _COMMAND.sub(lambda command: f"`{call_of(command[1])} ", text)


_TEXTS = frozenset({"body", "error", "hint", "message", "risk", "text", "warnings"})
"""Keys of JSON whose values are sentences of btrkeep. All others may be data: the reason of a hold, the name of a file."""


def with_calls_in(value: object) -> object:
    """Returns the JSON output, in whose sentences the commands are those of `with_calls`."""
    if isinstance(value, list | tuple):
        return [with_calls_in(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _sentences(item) if key in _TEXTS else with_calls_in(item) for key, item in value.items()}


def _sentences(value: object) -> object:
    if isinstance(value, str):
        return with_calls(value)
    if isinstance(value, list | tuple):
        return [_sentences(item) for item in value]
    return with_calls_in(value)


def text_width() -> int:
    """Returns the columns of the terminal on standard output; 80 without a terminal."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 80


def _broken(text: str, indent: str, room: int) -> Iterator[str]:
    line = ""
    for word in _WORD.findall(text):
        if line and len(click.unstyle(line + word)) > room:
            yield line
            word = indent + word.lstrip()
            line = ""
        line += word
    yield line


def hang_up(stream: IO[str]) -> None:
    """Redirects all further output to /dev/null, so that flushing the buffers at exit raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def survive_closed_stdout() -> None:
    """From now on drops output that has no reader (a pager that was quit, `| head`) or no space: the command does all of its work.
    `lost_output` reports it at the end.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            unread = io.BufferedWriter(_MaybeUnread(fd, "w", closefd=False))
            lines, through = stream.line_buffering, stream.write_through
            text = io.TextIOWrapper(unread, stream.encoding, stream.errors, line_buffering=lines or through, write_through=through)
            setattr(sys, name, text)


def lost_output() -> OSError | None:
    """Returns why standard output is incomplete although the command continued; None if its reader has ended."""
    with suppress(OSError):
        sys.stdout.flush()
    return _lost.get(1)


_lost: dict[int, OSError] = {}


class _MaybeUnread(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                _lost.setdefault(self.fileno(), error)
            return len(memoryview(data))


def terminal() -> IO[str]:
    """Standard output for a live display."""
    return cast("IO[str]", _Terminal(sys.stdout))


class _Terminal:
    """A stream that is written to until a write fails."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes to the terminal, or nowhere."""
        try:
            return self._stream.write(text)
        except OSError:
            hang_up(self._stream)
            return len(text)

    def flush(self) -> None:
        """Writes the buffer to the terminal, or nowhere."""
        try:
            self._stream.flush()
        except OSError:
            hang_up(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_wait(why: str) -> None:
    """Prints on standard error what the work waits for."""
    print_wrapped(f"waits: {printable(why)}", err=True)


class WithoutRepeats:
    """Passes a text on, unless it is the same as the one before, because it is repeated."""

    def __init__(self, say_it: Callable[[str], None]) -> None:
        self._say, self._before = say_it, ""

    def __call__(self, text: str) -> None:
        if text != self._before:
            self._say(text)
        self._before = text


def has_live_terminal() -> bool:
    """Returns True if standard output is a terminal on which a display can be redrawn."""
    return os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"


class ProgressLine:
    """One line on standard error that is overwritten. Shows nothing if that is not a terminal, or with `is_shown` False."""

    def __init__(self, *, is_shown: bool = True, every: float = 0.2) -> None:
        """`every`: minimum seconds between two changes, and before the first one."""
        self.is_shown = is_shown and sys.stderr.isatty()
        self._every, self._last, self._width = every, time.monotonic(), 0

    def go_on(self, line: Callable[[], str]) -> None:
        """Shows the progress; makes the text only when it is due."""
        now = time.monotonic()
        if self.is_shown and now - self._last >= self._every:
            self._last = now
            self.show(line())

    def show(self, text: str) -> None:
        """Shows it now, as much of it as fits on the terminal."""
        import shutil

        text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def clear(self) -> None:
        """Removes the line: before any other line, and at the end."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def _write(self, text: str) -> None:
        try:
            click.echo(text, nl=False, err=True)
        except OSError:
            hang_up(sys.stderr)


def notices_on_stderr(event: object) -> None:
    """The progress sink for --json: prints notices on standard error and nothing else."""
    if isinstance(event, Notice):
        say(f"note: {printable(event.text)}", err=True)
