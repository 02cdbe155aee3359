"""The trend as text: a chart as wide as the terminal, and a summary."""

import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from backupd.sampling.chart import ASCII, BLOCKS, ChartCharacters, axis_for, filled, labelled, under
from btrkeep.cli.progress import text_width
from btrkeep.decisions.time_ticks import date_ticks
from btrkeep.decisions.trend import Point
from btrkeep.units import format_share, format_size, in_zone, local_day

_HEIGHT = 12
_SCALE = 9  # columns of "12.3 TiB"
_WIDEST = 120
_EVERY = 4


def width() -> int:
    """Returns the columns to fill."""
    return min(text_width(), _WIDEST)


def chart_characters() -> ChartCharacters:
    """Block characters, where the locale has them."""
    try:
        "█░▁━".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return BLOCKS


def lines(found: Sequence[Point], name: str) -> list[str]:
    """The whole text, oldest on the left."""
    if len(found) == 1:
        return [*textwrap.wrap(f"{name}: there is one sample so far.", width()), *textwrap.wrap(_now(found[0]), min(width(), 100))]
    room, drawn = max(width() - _SCALE - 2, 10), chart_characters()
    columns = _columns(found, room)
    axis = axis_for([point.used for point in found], [point.allocated for point in found])
    chart = filled([(point.used, point.allocated) if point else None for point in columns], axis, _HEIGHT, drawn)
    key = f"{drawn.used} used   {drawn.unused} allocated, not used"
    return [
        *textwrap.wrap(f"{name}: allocated and used, in bytes of the devices", width()),
        key + ("   (the scale begins above zero)" if axis.least and width() >= len(key) + 34 else ""),
        "",
        *labelled(chart, axis, _EVERY, _SCALE),
        " " * (_SCALE + 1) + under(_dates(found[0].taken, found[-1].taken, room), room),
        "",
        *textwrap.wrap(_change(found[0], found[-1]), min(width(), 100)),
        *textwrap.wrap(_now(found[-1]), min(width(), 100)),
    ]


def _columns(found: Sequence[Point], room: int) -> list[Point | None]:
    """Returns for each column the nearest earlier point, None in a gap of more than three steps."""
    first, last = found[0].taken, found[-1].taken
    step = (last - first) / room
    gap = max(sorted(b.taken - a.taken for a, b in pairwise(found))[len(found) // 2] * 3, step * 1.01)
    columns: list[Point | None] = []
    at = 0
    for column in range(room):
        moment = first + step * (column + 1)
        while at + 1 < len(found) and found[at + 1].taken <= moment:
            at += 1
        columns.append(found[at] if moment - found[at].taken <= gap else None)
    return columns


def _dates(first: datetime, last: datetime, room: int) -> list[tuple[int, str]]:
    """Columns and names."""
    return [(int((moment - first) / (last - first) * room), words) for moment, words in date_ticks(in_zone(first), in_zone(last))]


def _change(first: Point, last: Point) -> str:
    return (
        f"From {local_day(first.taken)} to {local_day(last.taken)} allocated went from {format_size(first.allocated)} to "
        f"{format_size(last.allocated)}, used from {format_size(first.used)} to {format_size(last.used)}, and allocated but "
        f"not used from {format_size(first.unused)} to {format_size(last.unused)}."
    )


def _now(last: Point) -> str:
    score = f" Score of the free space: {last.score:,.0f}." if last.score is not None else ""
    return (
        f"Of {format_size(last.size)} are {format_size(last.unallocated)} "
        f"({format_share(last.unallocated / last.size if last.size else 0)}) not allocated; "
        f"{format_share(last.metadata_share)} of what is used is metadata.{score}"
    )
