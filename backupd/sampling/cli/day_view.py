"""A day of disk activity as text: two charts, the jobs below them, and a table of what they wrote."""

import textwrap
from collections.abc import Sequence
from itertools import pairwise

from backupd.sampling.chart import Axis, bars, labelled, strip, under
from backupd.sampling.cli.trend_view import chart_characters, width
from backupd.sampling.picture_data import DayData
from btrkeep.cli import table
from btrkeep.decisions.day_phases import PhaseSum, Slot, kinds_of
from btrkeep.decisions.time_ticks import hour_ticks
from btrkeep.units import format_duration, format_size, local_minute

_SCALE = 11  # columns of "12.3 MiB/s"
_HEIGHT = 8


def lines(day: DayData) -> list[str]:
    """The whole text."""
    room, drawn = max(min(width() - _SCALE - 2, 96), 24), chart_characters()
    columns = _columns(day, room)
    title = f"{day.name}: disks from {local_minute(day.start)} on, in time of {day.zone.key}"
    text = [*textwrap.wrap(title, width())]
    note = f"  ({drawn.unknown} no samples)" if any(slot.written is None for slot in columns) else ""
    for name, rates in (("written", [slot.written for slot in columns]), ("read", [slot.read for slot in columns])):
        most = max((rate for rate in rates if rate), default=0.0)
        chart = bars(rates, most, _HEIGHT, drawn)
        scaled = labelled(chart, Axis(0, most), _HEIGHT // 2, _SCALE, lambda value: f"{format_size(value)}/s")
        text += ["", *([name + note, *scaled] if most else [f"{name}: nothing"])]
    hours = under(_hours(day, room), room)
    text += [" " * (_SCALE + 1) + hours]
    length = (day.end - day.start).total_seconds()
    for kind in kinds_of(day.phases):
        spans = [
            ((phase.start - day.start).total_seconds() / length, (phase.end - day.start).total_seconds() / length)
            for phase in day.phases
            if phase.kind == kind
        ]
        text.append(f"{kind[:_SCALE]:>{_SCALE}} {strip(spans, room, drawn)}")
    return [*text, "", *sum_lines(day)]


def _columns(day: DayData, room: int) -> list[Slot]:
    """The slots, several to a column, as averages of those that are known."""
    edges = [column * len(day.slots) // room for column in range(room + 1)]
    return [_average(day.slots[begin : max(end, begin + 1)]) for begin, end in pairwise(edges)]


def _average(some: Sequence[Slot]) -> Slot:
    known = sum(slot.known for slot in some)
    read, written = (sum((rate or 0) * slot.known for rate, slot in zip(rates, some, strict=True)) for rates in _rates(some))
    rates = (read / known, written / known) if known else (None, None)
    return Slot(some[0].start, some[-1].end, known, *rates)


def _rates(some: Sequence[Slot]) -> tuple[list[float | None], list[float | None]]:
    return [slot.read for slot in some], [slot.written for slot in some]


def _hours(day: DayData, room: int) -> list[tuple[int, str]]:
    """Columns and names."""
    return [
        (int((moment - day.start) / (day.end - day.start) * room), words)
        for moment, words in hour_ticks(day.start, day.end, day.zone)
    ]


def sum_lines(day: DayData) -> list[str]:
    """Returns the table and its footnotes."""
    rows = [_row(one) for one in day.sums]
    headers = ["", "TIME", "READ", "WRITTEN", "DATA", "METADATA", "RATIO"]
    text = [table(rows, headers, right=headers[1:], spare=["READ"])]
    words = []
    short = [one for one in day.sums if one.known < one.seconds * 0.95]
    if short:
        words.append(f"Samples tell of {format_duration(day.sums[0].known)} of {format_duration(day.sums[0].seconds)}.")
    if any(one.metadata is None and one.known for one in day.sums):
        words.append("Where less was written than data, it was compressed or is not written yet: no ratio.")
    words.append("Ratio: bytes written besides data for each byte of data, all copies counted.")
    return [*text, "", *textwrap.wrap(" ".join(words), min(width(), 100))]


def _row(one: PhaseSum) -> list[str]:
    ratio = one.ratio
    return [
        one.kind or "all day",
        format_duration(one.seconds),
        format_size(one.read) if one.known else "-",
        format_size(one.written) if one.known else "-",
        format_size(one.data),
        format_size(one.metadata),
        "-" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}",
    ]
