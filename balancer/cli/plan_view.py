"""A plan as text and JSON: what would be balanced, in which order, at which cost, and what would be gained; a report as JSON.

Times are RFC 3339, sizes bytes, durations seconds.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from balancer.cli.score_view import benefit_words, score_words
from balancer.explain import profile
from balancer.run_types import PlannedBlockGroup, Report, RunSettings, SpaceNumbers, StepDone
from btrkeep.cli.listings import table
from btrkeep.units import counted, format_duration, format_given, format_share, format_size, format_time, local_minute

_PAPER = 80
_HEADERS = ("VADDR", "USED", "FRAGS", "SCORE", "BENEFIT", "EXTENTS", "REFS", "METADATA", "TIME", "TOTAL")
_NARROW = ("VADDR", "USED", "SCORE", "EXTENTS", "REFS", "METADATA", "TIME", "TOTAL")
_NARROWER = ("VADDR", "USED", "SCORE", "METADATA", "TIME", "TOTAL")
_NARROWEST = ("VADDR", "USED", "SCORE", "TIME")


@dataclass(frozen=True, slots=True)
class StopPoint:
    """Where a run would stop: after the first `number` block groups. `words`: the reason, "" if the run would finish."""

    number: int
    words: str


def cut_of(planned: Sequence[PlannedBlockGroup], settings: RunSettings, now: datetime) -> StopPoint:
    """Returns where budget, time or window would stop the run. Times are estimates, so the position is approximate."""
    number = next((at for at, group in enumerate(planned) if not group.is_within), len(planned))
    words = f"the budget of {format_given(settings.budget or 0)} ends here" if number < len(planned) else ""
    for limit, limit_name in _limits(settings, now):
        until = _within(planned, limit)
        if until < number:
            number, words = until, f"{limit_name} ends about here"
    return StopPoint(number, words)


def _limits(settings: RunSettings, now: datetime) -> Iterator[tuple[float, str]]:
    if settings.time is not None:
        yield settings.time, f"the time limit of {format_duration(settings.time)}"
    if settings.until is not None:
        yield (settings.until - now).total_seconds(), f"the time until {local_minute(settings.until)}"


def _within(planned: Sequence[PlannedBlockGroup], seconds: float) -> int:
    """Returns how many block groups would be finished after `seconds`."""
    for at, group in enumerate(planned):
        seconds -= group.estimate.seconds
        if seconds < 0:
            return at
    return len(planned)


def lines(
    filesystem: str, now: SpaceNumbers, planned: Sequence[PlannedBlockGroup], cut: StopPoint, alone: str, width: int
) -> list[str]:
    """Returns the whole text. `alone`: why nothing is worth it, if so. `width`: columns of the terminal, 0 for no limit."""
    groups = counted(now.block_groups, "data block group")
    head = f"{filesystem}: {groups}, {format_size(now.used)} used of {format_size(now.allocated)}, score {score_words(now.score)}"
    paper = min(width, _PAPER) if width else _PAPER
    text = [*textwrap.wrap(click.unstyle(head), paper), ""]
    if planned:
        text += [*_table(planned, cut, width), ""]
    return text + textwrap.wrap(sentence(now, planned, cut, alone), paper)


def sentence(now: SpaceNumbers, planned: Sequence[PlannedBlockGroup], cut: StopPoint, alone: str) -> str:
    """Returns the cost and the gain in words."""
    if not planned:
        return f"Nothing is worth balancing: {alone}."
    taken = planned[: cut.number]
    if not taken:
        smallest = min(group.used for group in planned)
        return f"Nothing would be balanced: {cut.words}. The smallest block group that is worth it moves {format_size(smallest)}."
    return f"{_takes(taken, len(planned))}. {_gains(now, taken)}. The plan is made again after each block group."


def _takes(taken: Sequence[PlannedBlockGroup], number: int) -> str:
    moved, metadata = sum(group.estimate.moved for group in taken), sum(group.estimate.metadata for group in taken)
    seconds = sum(group.estimate.seconds for group in taken)
    which = counted(number, "block group") if len(taken) == number else f"{len(taken):,} of {number:,} block groups"
    moves = f"{format_size(moved)} would be moved, and about {format_size(metadata)} of metadata written"
    return f"{which}: {moves}, in about {format_duration(seconds)}"


def _gains(now: SpaceNumbers, taken: Sequence[PlannedBlockGroup]) -> str:
    score, free = sum(group.score for group in taken), sum(group.length - group.used for group in taken)
    share = format_share(score / now.score) if now.score else "0%"
    removes = f"That would remove about {score:,.0f} of the score of {now.score:,.0f} ({share})"
    return f"{removes}. {format_size(free)} that {_lies(sum(group.fragments for group in taken))} would become unallocated"


def _lies(holes: int) -> str:
    return "are free in one piece now" if holes == 1 else f"are free in {holes:,} pieces now"


def _table(planned: Sequence[PlannedBlockGroup], cut: StopPoint, width: int) -> list[str]:
    rows = [_cells(group) for group in planned]
    headers = next((names for names in (_HEADERS, _NARROW, _NARROWER) if not width or _needs(rows, names) <= width), _NARROWEST)
    text = table([[cells[name] for name in headers] for cells in rows], headers, right=headers).splitlines()
    if cut.words:
        text.insert(1 + cut.number, click.style(f"--- {cut.words} ---", fg="yellow"))
    return text


def _needs(rows: Sequence[dict[str, str]], headers: Sequence[str]) -> int:
    """Number of columns of the table."""
    widths = [max(len(name), *(len(click.unstyle(cells[name])) for cells in rows)) for name in headers]
    return sum(widths) + 2 * (len(widths) - 1)


def _cells(planned_group: PlannedBlockGroup) -> dict[str, str]:
    return {
        "VADDR": str(planned_group.vaddr),
        "USED": format_size(planned_group.used),
        "FRAGS": str(planned_group.fragments),
        "SCORE": score_words(planned_group.score),
        "BENEFIT": benefit_words(planned_group.benefit),
        "EXTENTS": str(planned_group.cost.extents),
        "REFS": str(planned_group.cost.references),
        "METADATA": format_size(planned_group.estimate.metadata),
        "TIME": format_duration(planned_group.estimate.seconds),
        "TOTAL": format_size(planned_group.moved_so_far),
    }


def plan_as_json(
    filesystem: str, now: SpaceNumbers, planned: Sequence[PlannedBlockGroup], cut: StopPoint, settings: RunSettings
) -> dict[str, Any]:
    """Returns the plan as JSON. `within`: how many of the block groups, from the first, the budget and the time allow."""
    return {
        "filesystem": filesystem,
        **settings_as_json(settings),
        "before": numbers_as_json(now),
        "within": cut.number,
        "planned": [_planned(group, within=at < cut.number) for at, group in enumerate(planned)],
    }


def report_as_json(report: Report, settings: RunSettings) -> dict[str, Any]:
    """Returns the report of a run as JSON."""
    return {
        "filesystem": report.filesystem,
        **settings_as_json(settings),
        "started": format_time(report.started),
        "seconds": round(report.seconds, 3),
        "ending": str(report.reason),
        "why": report.why,
        "before": numbers_as_json(report.before),
        "after": numbers_as_json(report.after),
        "balanced": report.balanced,
        "moved": report.moved,
        "written": report.written,
        "amplification": report.amplification,
        "gained": report.gained,
        "steps": [_step(step) for step in report.steps],
    }


def settings_as_json(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings that decide what is balanced."""
    return {
        "policy": settings.policy,
        "min_score": settings.floors.min_score,
        "min_benefit": settings.floors.min_benefit,
        "budget": settings.budget,
        "time": settings.time,
        "until": settings.until and format_time(settings.until),
    }


def numbers_as_json(numbers: SpaceNumbers) -> dict[str, Any]:
    """A filesystem at one moment."""
    return {name: getattr(numbers, name) for name in SpaceNumbers.__slots__}


def _group(planned_group: PlannedBlockGroup, *columns: str) -> dict[str, Any]:
    """A block group before it is balanced."""
    estimate = planned_group.estimate
    return {
        "vaddr": planned_group.vaddr,
        "length": planned_group.length,
        "profile": profile(planned_group.type),
        **{name: getattr(planned_group, name) for name in ("used", "fragments", "score", *columns)},
        "extents": planned_group.cost.extents,
        "references": planned_group.cost.references,
        "estimate": {"moved": estimate.moved, "metadata": estimate.metadata, "seconds": round(estimate.seconds, 3)},
    }


def _planned(planned_group: PlannedBlockGroup, *, within: bool) -> dict[str, Any]:
    return {**_group(planned_group, "benefit"), "moved_so_far": planned_group.moved_so_far, "within": within}


def _step(done: StepDone) -> dict[str, Any]:
    return {
        "number": done.group.number,
        **_group(done.group),
        "started": format_time(done.started),
        "seconds": round(done.seconds, 3),
        "outcome": str(done.outcome),
        **{name: getattr(done, name) for name in ("moved", "written", "gained", "freed", "unallocated", "error")},
    }
