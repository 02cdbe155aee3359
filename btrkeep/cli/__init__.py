"""Shared by all command lines: turns errors into exit statuses, and prints results."""

import gc
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click

from btrkeep import __version__
from btrkeep.cli.listings import Column, Row, listing, objects
from btrkeep.cli.output import hang_up, lost_output, print_wrapped, with_calls_in
from btrkeep.errors import ERROR_MARK, ConfigError, Exit, OperatorError, UsageError, did_you_mean, report_error
from btrkeep.units import format_time, printable, with_encoded

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every program's group, which its commands inherit."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

_PRINTING = {__file__, click.utils.__file__}
_OBJECTS = 50_000  # new objects between two garbage collections; with 700, Python's default, every command starts 0.05 s later
_AT_A_TIME = 500  # items encoded in one call, about 200 kB: two thirds of the time of single calls


def run_command_line(command: click.Command, name: str) -> int:
    """Runs a click command and returns the exit status. The only place where OperatorError is caught."""
    _open_closed_streams()
    gc.set_threshold(_OBJECTS)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited: a failed program would look like a successful one
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _require_current_folder()
        status = command.main(prog_name=name, standalone_mode=False, color=_colour())
    except OperatorError as error:
        _show_escapes(error, sys.argv[1:])
        print_error(error)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return Exit.USAGE
    except click.ClickException as error:
        print_error(_as_operator_error(error))
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except SystemExit:  # from click: the reader (head, less) has closed the pipe, or after a completion
        if not _has_no_reader():
            raise
        hang_up(sys.stdout)
        return Exit.OK
    except OSError as error:
        if not _raised_by_printing(error):
            raise
        hang_up(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return Exit.OK
        return _not_printed(error)
    if unprinted := lost_output():
        return int(status or _not_printed(unprinted))
    return int(status or 0)


def _show_escapes(error: OperatorError, words: Sequence[str]) -> None:
    """Escapes the typed words in the error and its hint: a newline in a name must not start a new line."""
    parts = {part for word in words for part in (word, *word.split("@", 1), *word.split("=", 1)) if part}
    for word in sorted((part for part in parts if part.splitlines() != [part]), key=len, reverse=True):
        error.message = error.message.replace(word, printable(word))
        error.hint = error.hint.replace(word, printable(word))


def _require_current_folder() -> None:
    """Raises UsageError in a folder that was deleted: rsync would fail there, and a relative path has no meaning."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists", "`cd` to another folder") from None


def _not_printed(error: OSError) -> int:
    print_error(
        OperatorError(f"standard output: {error.strerror}", "the output is incomplete: check the file or program that receives it")
    )
    return Exit.ATTENTION


def _open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that was closed (`>&-`): otherwise another file would get its number, and output
    would be written into that file.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "r" if name == "stdin" else "w", encoding="utf-8"))


def _raised_by_printing(error: OSError) -> bool:
    """Returns True if it is standard output that cannot be written, not another file of the command."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename in _PRINTING


def _has_no_reader() -> bool:
    """Returns True if standard output is a pipe without a reader."""
    poller = select.poll()
    poller.register(1, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _colour() -> bool | None:
    """None: on a terminal. See https://no-color.org."""
    return False if os.environ.get("NO_COLOR") else None


def _as_operator_error(error: click.ClickException) -> OperatorError:
    """Converts click's usage error, which would take three more lines, to one line and a hint."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` explains it" if context else ""
    if context and isinstance(error, click.NoSuchOption):
        return OperatorError(f"{context.command_path} has no option {error.option_name}", _nearest_option(error, context) or hint)
    if context and isinstance(error, click.MissingParameter):
        hint = f"usage: {' '.join((context.command_path, *context.command.collect_usage_pieces(context)))}; --help explains it"
    message = error.format_message().rstrip(".")
    return OperatorError(message[:1].lower() + message[1:], hint)


def _nearest_option(error: click.NoSuchOption, context: click.Context) -> str:
    above = context.parent
    while above:
        if option := _options_of(above).get(error.option_name):
            value = "" if option.is_flag or option.count else f" {option.make_metavar(above)}"
            return f"put it before the command: {above.command_path} {error.option_name}{value} {context.info_name}"
        above = above.parent
    return did_you_mean(error.option_name, list(_options_of(context)))


def _options_of(context: click.Context) -> dict[str, click.Option]:
    options = (param for param in context.command.get_params(context) if isinstance(param, click.Option))
    return {name: option for option in options for name in option.opts}


def print_error(error: OperatorError) -> None:
    """Prints an error and its hint on standard error, in colour only on a terminal; and sends it to the program of btrkeep that
    started this one.
    """
    report_error(error)
    for line in error.located if isinstance(error, ConfigError) else error.message.splitlines():
        print_wrapped(click.style(ERROR_MARK, fg="red", bold=True) + printable(line), err=True, color=_colour())
    if error.hint:
        print_wrapped(click.style("hint: ", fg="cyan") + printable(error.hint), err=True, color=_colour())
    for note in getattr(error, "__notes__", ()):  # never wrapped: it may contain a shell line
        click.echo(printable(note), err=True)


def print_answer(answer: object, text: Iterable[str] | Callable[[], object], *, as_json: bool) -> Exit:
    """Prints the answer of a command: as JSON, or as `text`: paragraphs, or a function that prints it. Returns Exit.OK.

    `answer`: may be a function that returns it, if that takes time.
    """
    if as_json:
        echo_json(answer() if callable(answer) else answer)
    elif callable(text):
        text()
    else:
        for paragraph in text:
            print_wrapped(paragraph)
    return Exit.OK


def print_listing(columns: Sequence[Column[Row]], rows: Sequence[Row], *, as_json: bool = False, empty: str = "") -> None:
    """Prints the rows: as a JSON list, or as a table. `empty`: the text if there are none."""
    if as_json:
        echo_json(list(objects(columns, rows)))
    elif rows:
        click.echo(listing(columns, rows))
    elif empty:
        print_wrapped(empty)


def echo_json(value: object) -> None:
    """Prints one JSON document. Times are RFC 3339."""
    import json  # here and below only where needed: a scan of 42 TiB takes no longer than a hundred imports

    click.echo(json.dumps(with_encoded(with_calls_in(value)), indent=2, default=_in_json))


def _in_json(value: object) -> str:
    if isinstance(value, datetime):
        return format_time(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


def stream_json(items: Iterable[Mapping[str, Any]]) -> None:
    """Prints a JSON list, a few hundred items at a time, so that its length takes no memory."""
    source, separator = iter(items), "["
    while batch := list(islice(source, _AT_A_TIME)):
        sys.stdout.write(separator + _encoded(batch)[1:-1])
        separator = ",\n"
    sys.stdout.write("]\n" if separator != "[" else "[]\n")
    sys.stdout.flush()


def stream_object(
    head: Mapping[str, Any], key: str, items: Iterable[Mapping[str, Any]], tail: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """Prints one JSON object: `head`, then `items` under `key` like `stream_json`, then the result of `tail`, which is
    called last.
    """
    import json

    sys.stdout.write(f"{json.dumps(with_encoded(with_calls_in(head)), default=_in_json)[:-1]}, {json.dumps(key)}:\n")
    stream_json(items)
    end = json.dumps(with_calls_in(tail()))[1:-1]
    sys.stdout.write(f", {end}}}\n" if end else "}\n")
    sys.stdout.flush()


def _encoded(items: Sequence[Mapping[str, Any]]) -> str:
    """Returns JSON in ASCII, because a terminal interprets some other characters. orjson takes a fifth of the time, but cannot
    write ASCII.
    """
    import orjson  # few commands print that much

    try:
        fast = orjson.dumps(items, _in_json, orjson.OPT_PASSTHROUGH_DATETIME)
        if fast.isascii() and b"`" not in fast:  # backquotes mark a command
            return fast.decode("ascii")
    except TypeError:  # text with bytes that are not UTF-8
        pass
    import json

    return json.dumps(with_encoded(with_calls_in(items)), default=_in_json)


_PACKAGE = Path(__file__).resolve().parents[1]
_COMMIT = re.compile(r"[0-9a-f]{12,64}")
_SHOWN = 12


def version_words() -> str:
    """Returns "0.1.0 (commit 2d68a657a1b2)"; without a commit only the version."""
    commit = _recorded("commit.txt") or _recorded("archived.txt") or _checkout_commit()
    return f"{__version__} (commit {commit[:_SHOWN]})" if _COMMIT.fullmatch(commit) else __version__


def _recorded(name: str) -> str:
    """Returns the commit that install.sh (commit.txt) or `git archive` (archived.txt) has recorded, "" without one."""
    with suppress(OSError):
        commit = (_PACKAGE / name).read_text().strip()
        return commit if _COMMIT.fullmatch(commit) else ""
    return ""


def _checkout_commit() -> str:
    """Returns the commit of the checkout that contains this file, "" without one. Read from files: git need not be installed."""
    git = _PACKAGE.parent / ".git"
    with suppress(OSError):
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        if (git / name).is_file():
            return (git / name).read_text().strip()
        packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), "")
    return ""
