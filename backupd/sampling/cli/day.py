"""`backupd day`: what a day was like for the disks, and which job ran when."""

import re
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from backupd.cli.context import opened, pass_context
from backupd.sampling.cli.trend import svg_option
from backupd.sampling.picture_data import DayData
from btrkeep.catalogue import Job
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.parsed import Parsed
from btrkeep.cli.progress import prose
from btrkeep.decisions.day_phases import MINUTES, Phase, PhaseSum, Slot, bounds, phases, slots, sums
from btrkeep.errors import Exit
from btrkeep.process.proc import start_time
from btrkeep.units import format_time, local_minute, printable

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _date(text: str) -> Any:
    with suppress(ValueError):
        if _DAY.fullmatch(text) and MINYEAR < (day := date.fromisoformat(text)).year < MAXYEAR:  # others lack days in some zones
            return day
    raise ValueError(f"{text!r} is no date: write it like 2026-11-20")


@click.command("day")
@click.argument("date", required=False, type=Parsed("date", _date))
@svg_option
@json_option
@pass_context
def command(ctx: click.Context, date: Any, svg: Path | None, as_json: bool) -> int:
    """Show what the disks read and wrote over a day, and when backups, expiry and balance ran.

    DATE (2026-11-20) is a day of the pool's zone; without it the last 24 hours are shown. The table says what was written for data
    (what rsync wrote of files, what balance moved) and what was written besides, which is metadata; of backups that are compressed
    on the way to the disk that is less than the truth.
    """
    with opened(ctx) as context:
        zone, moment = context.config.pool.zone, context.clock.now()
        start, end = bounds(date, zone, moment)
        samples = context.catalogue.samples(context.pool.filesystem, start - timedelta(hours=2), end + timedelta(days=1))
        jobs = [_ended(job, moment) for job in context.catalogue.jobs(context.pool.filesystem, start, end)]
        name = str(context.pool.path)
    ran = phases(jobs, samples, start, end)
    count = round((end - start) / timedelta(minutes=MINUTES))
    found = DayData(printable(name), start, end, zone, slots(samples, start, end, count), ran, sums(samples, jobs, ran, start, end))
    has_samples = any(slot.read is not None for slot in found.slots)
    if svg and has_samples:
        from backupd.sampling.picture import day_picture, save

        save(day_picture(found), svg)
    if as_json:
        echo_json(_as_json(found))
    elif not has_samples:
        prose(f"No samples tell of the time from {local_minute(start)} to {local_minute(end)}.")
    elif not svg:
        from backupd.sampling.cli.day_view import lines

        click.echo("\n".join(lines(found)))
    return Exit.OK if has_samples or as_json or not svg else Exit.ATTENTION


def _ended(job: Job, now: datetime) -> Job:
    """Returns the job with an end: now for one that runs; when it was last heard of, or not at all, for one that was killed."""
    if job.finished:
        return job
    is_running = start_time(job.pid) == job.pid_started
    end = now if is_running else max(job.updated or job.started, job.started)
    return Job(job.kind, job.started, end, job.updated, job.data, job.pid, job.pid_started)


def _as_json(day: DayData) -> dict[str, Any]:
    return {
        "since": format_time(day.start),
        "until": format_time(day.end),
        "slots": [_slot(slot) for slot in day.slots if slot.read is not None],
        "phases": [_phase(phase) for phase in day.phases],
        "sums": [_sum(one) for one in day.sums],
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "start": format_time(slot.start),
        "seconds": (slot.end - slot.start).total_seconds(),
        "known": round(slot.known, 1),
        "read": round(slot.read or 0),
        "written": round(slot.written or 0),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {"job": phase.kind, "start": format_time(phase.start), "end": format_time(phase.end)}


def _sum(one: PhaseSum) -> dict[str, Any]:
    return {
        "job": one.kind or None,
        "seconds": round(one.seconds, 1),
        "known": round(one.known, 1),
        "read": one.read,
        "written": one.written,
        "data": one.data,
        "metadata": one.metadata,
        "ratio": round(one.ratio, 3) if one.ratio is not None else None,
    }
