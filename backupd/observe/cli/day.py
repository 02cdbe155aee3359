"""`backupd day`: shows the disk activity of a day: two charts, the jobs that ran, and a table of the bytes they wrote."""

import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from backupd.cli.command_context import opened, pass_context
from backupd.observe.chart import Axis, bars, labelled, strip, under
from backupd.observe.cli.trend import chart_characters, svg_option, width
from btrkeep.catalogue import Job
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.listings import Column, listing, objects
from btrkeep.cli.output import print_wrapped
from btrkeep.decisions.day_phases import MINUTES, DayData, PhaseSum, Slot, bounds, kinds_of, phases, slots, sums
from btrkeep.decisions.trend import hour_ticks
from btrkeep.errors import Exit
from btrkeep.process.proc import start_time
from btrkeep.units import format_duration, format_size, local_minute, printable

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _date(text: str) -> Any:
    with suppress(ValueError):
        if _DAY.fullmatch(text) and MINYEAR < (day := date.fromisoformat(text)).year < MAXYEAR:  # others lack days in some zones
            return day
    raise ValueError(f"{text!r} is not a date: write it like 2026-11-20")


@click.command("day")
@click.argument("date", required=False, type=ParsedType("date", _date))
@svg_option
@json_option
@pass_context
def command(ctx: click.Context, date: Any, svg: Path | None, as_json: bool) -> int:
    """Show how much the disks read and wrote during a day, and when backups, expiry and balance ran.

    DATE, such as 2026-11-20, is a day in the pool's zone. Without it, the last 24 hours are shown.

    The table divides the written bytes into DATA (files that rsync wrote, block groups that balance moved) and METADATA (all
    others). If data is compressed, there is more metadata than shown.
    """
    with opened(ctx) as context:
        zone, moment = context.config.pool.zone, context.clock.now()
        start, end = bounds(date, zone, moment)
        samples = context.catalogue.samples(context.pool.filesystem, start - timedelta(hours=2), end + timedelta(days=1))
        jobs = [_ended(job, moment) for job in context.catalogue.jobs(context.pool.filesystem, start, end)]
        name = str(context.pool.path)
    ran = phases(jobs, samples, start, end)
    count = round((end - start) / timedelta(minutes=MINUTES))
    day_data = DayData(
        printable(name), start, end, zone, slots(samples, start, end, count), ran, sums(samples, jobs, ran, start, end)
    )
    has_samples = any(slot.read is not None for slot in day_data.slots)
    if svg and has_samples:
        from backupd.observe.graph_pictures import day_picture, save

        save(day_picture(day_data), svg)

    def show() -> None:
        if not has_samples:
            print_wrapped(f"There are no samples from {local_minute(start)} to {local_minute(end)}.")
        elif not svg:
            click.echo("\n".join(lines(day_data)))

    print_answer(_fields(day_data), show, as_json=as_json)
    return Exit.OK if has_samples or as_json or not svg else Exit.ATTENTION


def _ended(job: Job, now: datetime) -> Job:
    """Returns the job with an end: now for a running one; the last sign of life of a killed one, or no job if there is none."""
    if job.finished:
        return job
    is_running = start_time(job.pid) == job.pid_started
    end = now if is_running else max(job.updated or job.started, job.started)
    return Job(job.kind, job.started, end, job.updated, job.data, job.pid, job.pid_started)


def _fields(day: DayData) -> dict[str, Any]:
    return {
        "since": day.start,
        "until": day.end,
        "slots": [_slot(slot) for slot in day.slots if slot.read is not None],
        "phases": [{"job": phase.kind, "start": phase.start, "end": phase.end} for phase in day.phases],
        "sums": list(objects(_SUMS, day.sums)),
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "start": slot.start,
        "seconds": (slot.end - slot.start).total_seconds(),
        "known": round(slot.known, 1),
        "read": round(slot.read or 0),
        "written": round(slot.written or 0),
    }


def _if_known(phase_sum: PhaseSum, size: int) -> str:
    return format_size(size) if phase_sum.known else "-"


def _ratio_words(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


_SUMS: tuple[Column[PhaseSum], ...] = (
    Column("job", lambda row: row.kind or None, "", lambda kind: kind or "all day"),
    Column("seconds", lambda row: row.seconds, "TIME", format_duration, lambda seconds: round(seconds, 1), right=True),
    Column("known", lambda row: round(row.known, 1)),
    Column(
        "read",
        header="READ",
        cell=lambda row: _if_known(row, row.read),
        json=lambda row: row.read,
        right=True,
        spare=True,
    ),
    Column(
        "written",
        header="WRITTEN",
        cell=lambda row: _if_known(row, row.written),
        json=lambda row: row.written,
        right=True,
    ),
    Column("data", lambda row: row.data, "DATA", format_size, right=True),
    Column("metadata", lambda row: row.metadata, "METADATA", format_size, right=True),
    Column("ratio", lambda row: row.ratio, "RATIO", _ratio_words, lambda ratio: ratio and round(ratio, 3), right=True),
)


_SCALE = 11  # columns of "12.3 MiB/s"
_HEIGHT = 8


def lines(day: DayData) -> list[str]:
    """The whole text."""
    room, drawn = max(min(width() - _SCALE - 2, 96), 24), chart_characters()
    columns = _columns(day, room)
    title = f"{day.name}: the disks since {local_minute(day.start)}, in the time zone {day.zone.key}"
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
    """Returns the slots, several in a column, as averages of the known ones."""
    edges = [column * len(day.slots) // room for column in range(room + 1)]
    return [_average(day.slots[begin : max(end, begin + 1)]) for begin, end in pairwise(edges)]


def _average(together: Sequence[Slot]) -> Slot:
    seconds = sum(slot.known for slot in together)
    read, written = (
        sum((slot.read or 0) * slot.known for slot in together),
        sum((slot.written or 0) * slot.known for slot in together),
    )
    rates = (read / seconds, written / seconds) if seconds else (None, None)
    return Slot(together[0].start, together[-1].end, seconds, *rates)


def _hours(day: DayData, room: int) -> list[tuple[int, str]]:
    """Columns and names."""
    return [
        (int((moment - day.start) / (day.end - day.start) * room), words)
        for moment, words in hour_ticks(day.start, day.end, day.zone)
    ]


def sum_lines(day: DayData) -> list[str]:
    """Returns the table and its footnotes."""
    text = [listing(_SUMS, day.sums)]
    words = []
    short = [phase_sum for phase_sum in day.sums if phase_sum.known < phase_sum.seconds * 0.95]
    if short:
        words.append(f"Samples cover {format_duration(day.sums[0].known)} of {format_duration(day.sums[0].seconds)}.")
    if any(phase_sum.metadata is None and phase_sum.known for phase_sum in day.sums):
        words.append(
            "There is no ratio if fewer bytes were written than the size of the data: it was compressed, or is not on disk yet."
        )
    words.append("Ratio: bytes of metadata written for each byte of data; all copies count.")
    return [*text, "", *textwrap.wrap(" ".join(words), min(width(), 100))]
