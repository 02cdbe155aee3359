"""Tables of aligned columns, as wide as the terminal at the most. docs/decisions/0006-tables.rst says why they are our own."""

import sys
import textwrap
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

import click

_GAP = "  "
_INDENT = "    "
_NARROWEST = 20


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = ()) -> str:
    """Aligned columns; those named in `right` to the right. Rows hold text that is already safe to show, styled or not.

    A last column without a word in it is left out. On a terminal that is too narrow the columns named in `spare` go; then the last
    one wraps, or stands in lines of its own below.
    """
    lines = [headers, *rows] if headers else rows
    kept = [number for number in range(len(lines[0])) if not _is_empty(number, rows)]
    terminal = _columns() if sys.stdout.isatty() else 0
    widths = [max(_width(line[number]) for line in lines) for number in range(len(lines[0]))]
    if terminal and _total(widths, kept) > terminal and spare:
        kept = [number for number in kept if headers[number] not in spare]
    to_the_right = {number for number in kept if headers and headers[number] in right}
    if not terminal or _total(widths, kept) <= terminal:
        return "\n".join(_line(line, kept, widths, to_the_right) for line in lines)
    *kept, last = kept
    room = terminal - _total(widths, kept) - len(_GAP)
    before = [_line(line, kept, widths, to_the_right) for line in lines]
    if room >= _NARROWEST:
        return "\n".join(_beside(text, line[last], terminal - room, room) for text, line in zip(before, lines, strict=True))
    below = ["" if line is headers else line[last] for line in lines]
    return "\n".join(_below(text, words, terminal) for text, words in zip(before, below, strict=True))


def _is_empty(number: int, rows: Sequence[Sequence[str]]) -> bool:
    """Whether it is the last column and nothing stands in it."""
    return bool(rows) and number == len(rows[0]) - 1 and not any(row[number] for row in rows)


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[number] for number in kept) + len(_GAP) * (len(kept) - 1)


def _width(text: str) -> int:
    """Columns on a terminal: without its colours, and with letters of double width."""
    if "\x1b" in text:
        text = click.unstyle(text)
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _line(line: Sequence[str], kept: Sequence[int], widths: Sequence[int], right: set[int]) -> str:
    return _GAP.join(_padded(line[number], widths[number], number in right) for number in kept).rstrip()


def _beside(text: str, last: str, column: int, room: int) -> str:
    pieces = textwrap.wrap(last, room) if _width(last) > room else [last]
    first = text + " " * (column - _width(text)) + pieces[0]
    return "\n".join([first.rstrip(), *(" " * column + piece for piece in pieces[1:])])


def _below(text: str, last: str, terminal: int) -> str:
    return "\n".join([text, *textwrap.wrap(last, terminal, initial_indent=_INDENT, subsequent_indent=_INDENT)])


def _padded(text: str, width: int, to_the_right: bool) -> str:
    room = " " * (width - _width(text))
    return room + text if to_the_right else text + room


def _columns() -> int:
    """How wide the terminal is, or the one that COLUMNS speaks of."""
    import shutil  # brings three compressors along, which most commands have no use for

    return shutil.get_terminal_size().columns
