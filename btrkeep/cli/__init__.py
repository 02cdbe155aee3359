"""What all command lines share: the edge that turns errors into exit statuses, and how results are printed."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from btrkeep.errors import Exit, OperatorError


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


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str] = ()) -> str:
    """Aligned columns; those named in `right` to the right. Rows hold text that is already safe to show."""
    from tabulate import tabulate

    align = ["right" if header in right else "left" for header in headers]
    text: str = tabulate(rows, headers=headers, tablefmt="plain", colalign=align if rows else None, disable_numparse=True)
    return text
