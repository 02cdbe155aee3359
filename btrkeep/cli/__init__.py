"""What all command lines share: the edge that turns errors into exit statuses, and how results are printed."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from btrkeep.errors import Exit, OperatorError

_NARROWEST = 20


def edge(command: click.Command, name: str) -> int:
    """Runs a click command and gives the exit status. The only place where OperatorError is caught."""
    try:
        status = command.main(prog_name=name, standalone_mode=False)
    except OperatorError as error:
        complain(error)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return Exit.USAGE
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return int(status or 0)


def complain(error: OperatorError) -> None:
    """An error and its hint on standard error, in colour only on a terminal."""
    for line in error.message.splitlines():
        click.echo(click.style("error: ", fg="red", bold=True) + line, err=True)
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + error.hint, err=True)


def echo_json(value: object) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2))


def stream_json(items: Iterable[Mapping[str, Any]]) -> None:
    """A JSON list, written item by item, one a line, so that its length costs no memory."""
    write = sys.stdout.write
    write("[")
    encode = json.JSONEncoder().encode
    separator = "\n"
    for item in items:
        write(separator + encode(item))
        separator = ",\n"
    write("\n]\n" if separator != "\n" else "]\n")
    sys.stdout.flush()


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = ()) -> str:
    """Aligned columns; those named in `right` to the right. Rows hold text that is already safe to show.

    A last column without a word in it is left out. On a terminal that is too narrow the columns named in `spare` go, and then the
    last one wraps.
    """
    kept = [number for number in range(len(rows[0]) if rows else len(headers)) if not _is_empty(number, rows)]
    text = _aligned(rows, headers, right, kept)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if width and _width_of(text) > width and spare:
        kept = [number for number in kept if headers[number] not in spare]
        text = _aligned(rows, headers, right, kept)
    if width and _width_of(text) > width:
        room = width - _width_of(_aligned(rows, headers, right, kept[:-1])) - 2
        return _aligned(rows, headers, right, kept, wrap=max(room, _NARROWEST))
    return text


def _is_empty(number: int, rows: Sequence[Sequence[str]]) -> bool:
    """Whether it is the last column and nothing stands in it."""
    return bool(rows) and number == len(rows[0]) - 1 and not any(row[number] for row in rows)


def _width_of(text: str) -> int:
    return max((len(click.unstyle(line).rstrip()) for line in text.splitlines()), default=0)


def _aligned(
    rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str], kept: Sequence[int], wrap: int | None = None
) -> str:
    import tabulate

    tabulate.MIN_PADDING = 0  # it would give a short header two more columns than its values need
    shown = [headers[number] for number in kept] if headers else []
    cells = [[row[number] for number in kept] for row in rows]
    align = ["right" if header in right else "left" for header in shown] or ["left"] * len(kept)
    text: str = tabulate.tabulate(
        cells,
        headers=shown,
        tablefmt="plain",
        colalign=align if rows else None,
        disable_numparse=True,
        maxcolwidths=[None] * (len(kept) - 1) + [wrap] if wrap else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())
