"""Tables of aligned columns, as wide as the terminal at the most. docs/decisions/0004-tables.rst says why they are our own."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

import click

_GAP = "  "
_NARROWEST = 20


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = ()) -> str:
    """Aligned columns; those named in `right` to the right. Rows hold text that is already safe to show, styled or not.

    A last column without a word in it is left out. On a terminal that is too narrow the columns named in `spare` go, and then the
    last one wraps.
    """
    lines = [headers, *rows] if headers else rows
    kept = [number for number in range(len(lines[0])) if not _is_empty(number, rows)]
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    widths = [max(_width(line[number]) for line in lines) for number in range(len(lines[0]))]
    if terminal and _total(widths, kept) > terminal and spare:
        kept = [number for number in kept if headers[number] not in spare]
    wrap = 0
    if terminal and _total(widths, kept) > terminal:
        wrap = max(_NARROWEST, terminal - _total(widths, kept[:-1]) - len(_GAP))
    to_the_right = {number for number in kept if headers and headers[number] in right}
    return "\n".join(_line(line, kept, widths, to_the_right, wrap) for line in lines)


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


def _line(line: Sequence[str], kept: Sequence[int], widths: Sequence[int], right: set[int], wrap: int) -> str:
    before = _GAP.join(_padded(line[number], widths[number], number in right) for number in kept[:-1])
    last = line[kept[-1]]
    if kept[-1] in right:
        last = _padded(last, widths[kept[-1]], to_the_right=True)
    gap = _GAP if len(kept) > 1 else ""
    pieces = textwrap.wrap(last, wrap) if wrap and _width(last) > wrap else [last]
    indent = "\n" + " " * (_total(widths, kept[:-1]) + len(_GAP) if gap else 0)
    return (before + gap + indent.join(pieces)).rstrip()


def _padded(text: str, width: int, to_the_right: bool) -> str:
    room = " " * (width - _width(text))
    return room + text if to_the_right else text + room
