"""Prints one block group: its location, its map, its free extents with their part of the score, and the data that would move."""

import os
import sys
import textwrap

import click

from balancer.blockmap import ASCII, HALVES, rows
from balancer.cli.bars import has_blocks
from balancer.cli.score_view import benefit_words, score_words
from balancer.explain import ExplainedBlockGroup
from balancer.score import BAD
from btrkeep.cli import table
from btrkeep.units import counted, format_share, format_size

_WIDTH, _ROWS = 72, 6
CELLS = _WIDTH * 2 * _ROWS
_PAPER = 80


def lines(found: ExplainedBlockGroup) -> list[str]:
    """The whole text."""
    groups = found.survey.groups
    vaddr, length, used, largest = (int(column[0]) for column in (groups.vaddr, groups.length, groups.used, groups.largest_free))
    where = ", ".join(f"{paddr} on device {devid}" for devid, paddr in found.stripes)
    sizes = f"{format_size(length)}: {format_size(used)} used ({int(groups.used_pct[0])}%), {format_size(found.survey.free)} free"
    return [
        *textwrap.wrap(f"block group {vaddr}: {found.profile}; at {where}", _PAPER),
        f"{sizes}, the largest free extent {format_size(largest)}",
        "",
        *_map(found, length),
        "",
        *_parts(found),
        "",
        *_largest(found),
        *_cost(found, float(groups.score[0]), float(groups.benefit[0])),
    ]


def _map(found: ExplainedBlockGroup, length: int) -> list[str]:
    blocks, colours = has_blocks(), sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    used = "bright" if blocks and colours else HALVES[3] if blocks else ASCII[3]
    size = format_size(length // CELLS)
    legend = (
        f"{used} is used, {'dark' if blocks and colours else 'blank'} is free; two lines in each row, {size} each half character"
    )
    text = rows(found.shares, _WIDTH, _painted if blocks and colours else None, HALVES if blocks else ASCII)
    return [*(f"|{row}|" for row in text), legend]


def _painted(character: str, upper: int, lower: int) -> str:
    return click.style(character, fg=upper, bg=lower)


def _parts(found: ExplainedBlockGroup) -> list[str]:
    score = float(found.survey.groups.score[0])
    cells = [
        [format_size(least), f"{number:,}", format_size(size), f"{part:.1f}", format_share(part / score) if score else "-"]
        for least, number, size, part in found.parts
    ]
    fragments = int(found.survey.groups.fragments[0])
    cells.append(["all", f"{fragments:,}", format_size(sum(part[2] for part in found.parts)), score_words(score), ""])
    headers = ["FROM", "FREE EXTENTS", "BYTES", "SCORE", "OF IT"]
    joined = int(found.survey.extents.sum())
    note = "" if joined == fragments else f"Those that go on from one bitmap to the next count twice; joined there are {joined:,}."
    verdict = f"A score above {BAD:.0f} is bad." if score > BAD else f"A score up to {BAD:.0f} is not bad."
    return [table(cells, headers, right=headers), *textwrap.wrap(f"{verdict} {note}", _PAPER)]


def _largest(found: ExplainedBlockGroup) -> list[str]:
    places = ", ".join(f"{format_size(length)} at {vaddr}" for vaddr, length in found.largest)
    return textwrap.wrap(f"Largest free extents: {places}.", _PAPER) if places else ["Nothing is free in it."]


def _cost(found: ExplainedBlockGroup, score: float, benefit: float) -> list[str]:
    cost = found.cost
    if not cost.extents:
        return ["Nothing is in it: nothing has to move."]
    moves = f"{format_size(cost.moves)} in {counted(cost.extents, 'extent')} (the largest {format_size(cost.largest)})"
    refers = f"to which {counted(cost.references, 'reference')} point"
    gain = f"That removes a score of {click.unstyle(score_words(score))}, {benefit_words(benefit)} for each GiB."
    return textwrap.wrap(f"To balance it moves {moves}, {refers}. {gain}", _PAPER)
