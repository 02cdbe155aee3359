"""A plan as text: what would be balanced, in which order and at which cost, where it would end, and what that would gain. Pure."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import click

from balancer.cli.score_view import benefit_words, score_words
from balancer.run_types import PlannedBlockGroup, RunSettings, SpaceNumbers
from btrkeep.cli import table
from btrkeep.units import counted, format_duration, format_given, format_share, format_size, local_minute

_PAPER = 80
_HEADERS = ("VADDR", "USED", "FRAGS", "SCORE", "BENEFIT", "EXTENTS", "REFS", "METADATA", "TIME", "TOTAL")
_NARROW = ("VADDR", "USED", "SCORE", "EXTENTS", "REFS", "METADATA", "TIME", "TOTAL")
_NARROWER = ("VADDR", "USED", "SCORE", "METADATA", "TIME", "TOTAL")
_NARROWEST = ("VADDR", "USED", "SCORE", "TIME")


@dataclass(frozen=True, slots=True)
class StopPoint:
    """Where a run would stop: after the first `number` block groups; `words` says why, "" if it would finish."""

    number: int
    words: str


def cut_of(planned: Sequence[PlannedBlockGroup], settings: RunSettings, now: datetime) -> StopPoint:
    """Returns where budget, time or window would stop it. Times are estimates, so the position is approximate."""
    number = next((at for at, one in enumerate(planned) if not one.is_within), len(planned))
    words = f"the budget of {format_given(settings.budget or 0)} ends here" if number < len(planned) else ""
    for limit, what in _limits(settings, now):
        until = _within(planned, limit)
        if until < number:
            number, words = until, f"{what} ends about here"
    return StopPoint(number, words)


def _limits(settings: RunSettings, now: datetime) -> Iterator[tuple[float, str]]:
    if settings.time is not None:
        yield settings.time, f"the time of {format_duration(settings.time)}"
    if settings.until is not None:
        yield (settings.until - now).total_seconds(), f"the time until {local_minute(settings.until)}"


def _within(planned: Sequence[PlannedBlockGroup], seconds: float) -> int:
    """Returns how many would have ended by then."""
    for at, one in enumerate(planned):
        seconds -= one.estimate.seconds
        if seconds < 0:
            return at
    return len(planned)


def lines(
    filesystem: str, now: SpaceNumbers, planned: Sequence[PlannedBlockGroup], cut: StopPoint, alone: str, width: int
) -> list[str]:
    """The whole text. `alone`: why nothing is worth it, if so. `width`: columns of the terminal, 0 for as many as it takes."""
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
        smallest = min(one.used for one in planned)
        return f"Nothing would be balanced: {cut.words}. The smallest block group that is worth it moves {format_size(smallest)}."
    return (
        f"{_takes(taken, len(planned))}. {_gains(now, taken)}. It is planned afresh after each one, for each changes what is left."
    )


def _takes(taken: Sequence[PlannedBlockGroup], number: int) -> str:
    moved, metadata = sum(one.estimate.moved for one in taken), sum(one.estimate.metadata for one in taken)
    seconds = sum(one.estimate.seconds for one in taken)
    which = counted(number, "block group") if len(taken) == number else f"{len(taken):,} of {number:,} block groups"
    moves = f"{format_size(moved)} would move, and about {format_size(metadata)} of metadata be written with it"
    return f"{which}: {moves}, in about {format_duration(seconds)}"


def _gains(now: SpaceNumbers, taken: Sequence[PlannedBlockGroup]) -> str:
    score, free = sum(one.score for one in taken), sum(one.length - one.used for one in taken)
    share = format_share(score / now.score) if now.score else "0%"
    removes = f"That would remove a score of about {score:,.0f} of {now.score:,.0f} ({share})"
    return f"{removes}, and make unallocated space of {format_size(free)} that {_lies(sum(one.fragments for one in taken))}"


def _lies(holes: int) -> str:
    return "is free in one piece now" if holes == 1 else f"is free in {holes:,} pieces now"


def _table(planned: Sequence[PlannedBlockGroup], cut: StopPoint, width: int) -> list[str]:
    cells = [_cells(one) for one in planned]
    headers = next((some for some in (_HEADERS, _NARROW, _NARROWER) if not width or _needs(cells, some) <= width), _NARROWEST)
    text = table([[one[name] for name in headers] for one in cells], headers, right=headers).splitlines()
    if cut.words:
        text.insert(1 + cut.number, click.style(f"--- {cut.words} ---", fg="yellow"))
    return text


def _needs(cells: Sequence[dict[str, str]], headers: Sequence[str]) -> int:
    """Columns that a table of these takes."""
    widths = [max(len(name), *(len(click.unstyle(one[name])) for one in cells)) for name in headers]
    return sum(widths) + 2 * (len(widths) - 1)


def _cells(one: PlannedBlockGroup) -> dict[str, str]:
    return {
        "VADDR": str(one.vaddr),
        "USED": format_size(one.used),
        "FRAGS": str(one.fragments),
        "SCORE": score_words(one.score),
        "BENEFIT": benefit_words(one.benefit),
        "EXTENTS": str(one.cost.extents),
        "REFS": str(one.cost.references),
        "METADATA": format_size(one.estimate.metadata),
        "TIME": format_duration(one.estimate.seconds),
        "TOTAL": format_size(one.moved_so_far),
    }
