"""Columns of listings, and tables of aligned columns, at most as wide as the terminal. docs/decisions/0006-tables.rst explains why
btrkeep formats tables itself, 0084-columns.rst why a column is declared once.
"""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from unicodedata import combining, east_asian_width

import click

from btrkeep.units import printable

Row = TypeVar("Row", contravariant=True)

_GAP = "  "
_INDENT = "    "
_NARROWEST = 20
_FEW = 2


def _safe(value: object) -> str:
    return printable(str(value))


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)  # with slots, `Column[Backup](...)` would be a TypeError of typing
class Column(Generic[Row]):
    """A column of a listing: `value` of a row, which JSON has under `name`, and a terminal under `header`.

    `name`: "" if it is not in JSON. `value`: without it the row itself. `header`: None if it is only in JSON. `cell`: the value as
    text that is safe to show. `json`: the value for JSON. `right`: aligned to the right. `spare`: left out of a table that is too
    wide, the first one first.
    """

    name: str = ""
    value: Callable[[Row], Any] = _itself
    header: str | None = None
    cell: Callable[[Any], str] = _safe
    json: Callable[[Any], Any] = _itself
    right: bool = False
    spare: bool = False

    def field(self) -> Callable[[Row], Any]:
        """Returns a function for the column's JSON value of a row, with as few calls as possible: a long list has 200,000 rows."""
        value, json = self.value, self.json
        return value if json is _itself else json if value is _itself else lambda row: json(value(row))


def objects(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each row."""
    fields = [(column.name, column.field()) for column in columns if column.name]
    for row in rows:
        yield {name: field(row) for name, field in fields}


def listing(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """Formats the rows as a table."""
    shown = [(column, column.header) for column in columns if column.header is not None]
    return table(
        [[column.cell(column.value(row)) for column, _ in shown] for row in rows],
        [header for _, header in shown],
        right=[header for column, header in shown if column.right],
        spare=[header for column, header in shown if column.spare],
    )


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = ()) -> str:
    """Formats aligned columns; those named in `right` are right-aligned. Cells hold text that is safe to show, styled or not.

    An empty last column is left out. If the terminal is too narrow, the columns named in `spare` are left out, the first one first;
    then the last one wraps, or is printed on lines below, behind its header. If that is still too wide, the first one is printed
    above the others, once for consecutive rows with the same value, and finally each of the others gets a line with its header.
    """
    lines = [headers, *rows] if headers else rows
    kept = [number for number in range(len(lines[0])) if not _is_empty(number, rows)]
    terminal = _columns() if sys.stdout.isatty() else 0
    widths = [max(_width(line[number]) for line in lines) for number in range(len(lines[0]))]
    for name in spare:
        if terminal and _total(widths, kept) > terminal:
            kept = [number for number in kept if headers[number] != name]
    to_the_right = {number for number in kept if headers and headers[number] in right}
    laid = _Laid(lines, bool(headers), widths, to_the_right)
    if terminal and len(kept) > _FEW and _total(widths, kept[:-1]) > terminal:
        if headers and _total(widths, kept[1:-1]) > terminal - len(_GAP):
            return "\n".join(_records(rows, headers, kept, terminal))
        return "\n".join(_grouped([line[kept[0]] for line in lines], laid.rows(kept[1:], max(terminal - len(_GAP), 1))))
    return "\n".join(laid.rows(kept, terminal))


@dataclass(frozen=True, slots=True)
class _Laid:
    """The lines of a table, with their widths."""

    lines: Sequence[Sequence[str]]
    """The cells of each line."""
    has_headers: bool
    """True if the first line is the header."""
    widths: Sequence[int]
    """The width of each column."""
    right: set[int]
    """The columns that are aligned to the right, by number."""

    def rows(self, kept: Sequence[int], terminal: int) -> list[str]:
        """Returns the columns `kept` of each line, the last of them wrapped if `terminal` columns (0: no limit) are not enough."""
        if not terminal or _total(self.widths, kept) <= terminal:
            return [_line(line, kept, self.widths, self.right) for line in self.lines]
        *kept, last = kept
        room = terminal - _total(self.widths, kept) - len(_GAP)
        before = [_line(line, kept, self.widths, self.right) for line in self.lines]
        if room >= _NARROWEST:
            return [_beside(text, line[last], terminal - room, room) for text, line in zip(before, self.lines, strict=True)]
        header = f"{self.lines[0][last]}: " if self.has_headers and self.lines[0][last] else ""
        below = ["" if self.has_headers and not number else line[last] for number, line in enumerate(self.lines)]
        below = [f"{header}{text}" if text else "" for text in below]
        return [_below(text, words, terminal) for text, words in zip(before, below, strict=True)]


def _grouped(names: Sequence[str], rows: Sequence[str]) -> Iterator[str]:
    """Each name, and indented below it its rows."""
    before = None
    for name, row in zip(names, rows, strict=True):
        if name != before:
            yield name
        before = name
        yield textwrap.indent(row, _GAP)


def _records(rows: Sequence[Sequence[str]], headers: Sequence[str], kept: Sequence[int], terminal: int) -> Iterator[str]:
    """Yields the first column of each row, and indented below it a line for each other one that is not empty, after its header."""
    first, *others = kept
    column = max(_width(headers[number]) for number in others) + 2 * len(_GAP)
    for row in rows:
        yield row[first]
        for number in others:
            if row[number]:
                yield _beside(_GAP + headers[number], row[number], column, max(terminal - column, 1))


def _is_empty(number: int, rows: Sequence[Sequence[str]]) -> bool:
    """Returns True for the last column if it has no text."""
    return bool(rows) and number == len(rows[0]) - 1 and not any(row[number] for row in rows)


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[number] for number in kept) + len(_GAP) * (len(kept) - 1)


def _width(text: str) -> int:
    """Returns the columns on a terminal: without colours, and with letters of double width."""
    if "\x1b" in text:
        text = click.unstyle(text)
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _line(line: Sequence[str], kept: Sequence[int], widths: Sequence[int], right: set[int]) -> str:
    return _GAP.join(_padded(line[number], widths[number], number in right) for number in kept).rstrip()


def _beside(text: str, last: str, column: int, room: int) -> str:
    pieces = _wrapped(last, room) if _width(last) > room else [last]
    first = text + " " * (column - _width(text)) + pieces[0]
    return "\n".join([first.rstrip(), *(" " * column + piece for piece in pieces[1:])])


def _below(text: str, last: str, terminal: int) -> str:
    return "\n".join([text, *(_INDENT + piece for piece in _wrapped(last, max(terminal - len(_INDENT), 1)))])


def _wrapped(text: str, room: int) -> list[str]:
    """Returns lines of whole words: names and paths with hyphens are not split if they fit."""
    return textwrap.wrap(text, room, break_on_hyphens=False)


def _padded(text: str, width: int, to_the_right: bool) -> str:
    room = " " * (width - _width(text))
    return room + text if to_the_right else text + room


def _columns() -> int:
    """Returns the width of the terminal, or COLUMNS."""
    import shutil  # imports three compressors that most commands do not need

    return shutil.get_terminal_size().columns
