"""The survey as text: the worst block groups, sizes of free extents, and a sentence; as JSON; and one block group as text."""

import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import click
import numpy as np
import orjson

from balancer.explain import ASCII, HALVES, ExplainedBlockGroup, rows
from balancer.score import BAD, Array, judgement
from balancer.survey import Cost, Survey
from btrkeep.cli import stream_json
from btrkeep.cli.listings import Column, listing, table
from btrkeep.cli.output import text_width
from btrkeep.units import counted, format_share, format_size

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def has_blocks() -> bool:
    """Returns True if standard output accepts block characters; in an old locale it accepts only ASCII."""
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, min(text_width(), _PAPER))


def bar(share: float, width: int, *, blocks: bool) -> str:
    """Returns a bar of up to `width` characters, at least one of them visible if `share` is above 0."""
    if not blocks:
        return "#" * max(round(share * width), int(share > 0))
    eighths = max(round(share * width * 8), int(share > 0))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


_COLUMNS = ("vaddr", "length", "used", "used_pct", "fragments", "largest_free", "score", "benefit")
_BAR = 30
_PAPER = 80


def lines(filesystem: str, survey: Survey, shown: Array, costs: Sequence[Cost] | None, more: int, least_score: float) -> list[str]:
    """Returns the whole text. `shown`: the indices of the listed block groups. `costs`: their costs. `more`: number of other block
    groups with a score of `least_score` or more.
    """
    groups = survey.groups
    whole, used = int(groups.length.sum()), int(groups.used.sum())
    count = counted(len(groups.vaddr), "data block group")
    head = f"{filesystem}: {count}, {format_size(used)} used of {format_size(whole)}"
    return [
        *_wrapped(head),
        *_table(survey, shown, costs, more, least_score),
        *_histogram(survey),
        "",
        *_wrapped(judgement(groups.score, groups.used, survey.bytes)),
    ]


def _table(survey: Survey, shown: Array, costs: Sequence[Cost] | None, more: int, least_score: float) -> list[str]:
    if not len(survey.groups.vaddr):
        return []
    if not len(shown):
        return ["", f"no block group scores {least_score:g} or more"]
    without = _NOT_BESIDE_COSTS if costs else _COSTS
    columns = [column for column in _BLOCK_GROUP if column.header not in without]
    text = ["", listing(columns, block_groups(survey, shown, costs))]
    if more:
        text.append(f"{more:,} more: --top N shows more of them, --json all")
    return text


def score_words(score: float) -> str:
    """Returns the score with one digit, in red above BAD. Truncated, not rounded: python-btrfs's example prints the same whole
    part.
    """
    words = f"{math.floor(score * 10) / 10:.1f}"
    return click.style(words, fg="red") if score > BAD else words


def benefit_words(benefit: float | None) -> str:
    """Formats the benefit as briefly as possible; "-" if nothing would move."""
    if benefit is None or math.isnan(benefit):
        return "-"
    return f"{benefit:.1f}" if benefit < 1000 else f"{benefit:.0f}" if benefit < 1e7 else f"{benefit:.1e}"


def _column(name: str, header: str, cell: Callable[[Any], str] = str) -> Column[Mapping[str, Any]]:
    return Column("", itemgetter(name), header, cell, right=True)


_BLOCK_GROUP = (
    _column("vaddr", "VADDR"),
    _column("length", "LENGTH", format_size),
    _column("used", "USED", format_size),
    _column("used_pct", "USED%", "{}%".format),
    _column("fragments", "FRAGS"),
    _column("largest_free", "LARGEST", format_size),
    _column("score", "SCORE", score_words),
    _column("benefit", "BENEFIT", benefit_words),
    _column("extents", "EXTENTS"),
    _column("references", "REFS"),
)
_COSTS, _NOT_BESIDE_COSTS = ("EXTENTS", "REFS"), ("LENGTH", "USED%")
"""A terminal of 80 columns is too narrow for all of them."""


def _histogram(survey: Survey) -> list[str]:
    classes, blocks = histogram(survey), has_blocks()
    if not classes:
        return []
    whole = sum(size_class["bytes"] for size_class in classes)
    columns: tuple[Column[Mapping[str, Any]], ...] = (
        _column("at_least", "FROM", format_size),
        _column("extents", "FREE EXTENTS", "{:,}".format),
        _column("bytes", "BYTES", format_size),
        _column("bytes", "SHARE", lambda size: format_share(size / whole)),
        Column("", itemgetter("bytes"), "", lambda size: bar(size / whole, _BAR, blocks=blocks)),
    )
    return ["", listing(columns, classes)]


# --- JSON, block group by block group


def write_json(filesystem: str, survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> None:
    """Writes one document: the block groups `shown`, by index and in that order, and the histogram of all. `costs`: of `shown`, or
    none.
    """
    click.echo(f'{{"filesystem": {orjson.dumps(filesystem).decode()},\n"block_groups": ', nl=False)
    stream_json(block_groups(survey, shown, costs))
    click.echo(f',"histogram": {orjson.dumps(histogram(survey)).decode()}}}')


def block_groups(survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> Iterator[dict[str, Any]]:
    """Yields the block groups `shown`, by index. Benefit is null if nothing would move, extents and references if they were not
    read.
    """
    columns = [getattr(survey.groups, name)[shown].tolist() for name in _COLUMNS]
    counts = [(cost.extents, cost.references) for cost in costs] if costs else repeat((None, None), len(shown))
    for vaddr, length, used, share, fragments, largest, score, benefit, (extents, references) in zip(*columns, counts, strict=True):
        yield {  # written out: there can be 40,000
            "vaddr": vaddr,
            "length": length,
            "used": used,
            "used_pct": share,
            "fragments": fragments,
            "largest_free": largest,
            "score": score,
            "benefit": None if benefit != benefit else benefit,  # NaN
            "extents": extents,
            "references": references,
        }


def histogram(survey: Survey) -> list[dict[str, int]]:
    """Returns the number and bytes of free extents in classes of sizes, each up to twice the one before."""
    used_classes = np.flatnonzero(survey.extents)
    classes = range(int(used_classes[0]), int(used_classes[-1]) + 1) if len(used_classes) else range(0)
    return [
        {"at_least": 1 << size_class, "extents": int(survey.extents[size_class]), "bytes": int(survey.bytes[size_class])}
        for size_class in classes
    ]


_WIDTH, _ROWS = 72, 6
CELLS = _WIDTH * 2 * _ROWS


def explain_lines(explained: ExplainedBlockGroup) -> list[str]:
    """The whole text."""
    groups = explained.survey.groups
    vaddr, length, used, largest = (int(column[0]) for column in (groups.vaddr, groups.length, groups.used, groups.largest_free))
    where = ", ".join(f"{paddr} on device {devid}" for devid, paddr in explained.stripes)
    sizes = (
        f"{format_size(length)}: {format_size(used)} used ({int(groups.used_pct[0])}%), {format_size(explained.survey.free)} free"
    )
    return [
        *_wrapped(f"block group {vaddr}: {explained.profile}; at {where}"),
        f"{sizes}, the largest free extent {format_size(largest)}",
        "",
        *_map(explained, length),
        "",
        *_parts(explained),
        "",
        *_largest(explained),
        *_cost(explained, float(groups.score[0]), float(groups.benefit[0])),
    ]


def _map(explained: ExplainedBlockGroup, length: int) -> list[str]:
    blocks, colours = has_blocks(), sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    used = "bright" if blocks and colours else HALVES[3] if blocks else ASCII[3]
    size = format_size(length // CELLS)
    legend = (
        f"{used} is used, {'dark' if blocks and colours else 'blank'} is free; the upper and lower half characters are {size} each"
    )
    text = rows(explained.shares, _WIDTH, _painted if blocks and colours else None, HALVES if blocks else ASCII)
    return [*(f"|{row}|" for row in text), legend]


def _painted(character: str, upper: int, lower: int) -> str:
    return click.style(character, fg=upper, bg=lower)


def _parts(explained: ExplainedBlockGroup) -> list[str]:
    score = float(explained.survey.groups.score[0])
    cells = [
        [format_size(least), f"{number:,}", format_size(size), f"{part:.1f}", format_share(part / score) if score else "-"]
        for least, number, size, part in explained.parts
    ]
    fragments = int(explained.survey.groups.fragments[0])
    cells.append(["all", f"{fragments:,}", format_size(sum(part[2] for part in explained.parts)), score_words(score), ""])
    headers = ["FROM", "FREE EXTENTS", "BYTES", "SCORE", "SHARE"]
    joined = int(explained.survey.extents.sum())
    note = (
        ""
        if joined == fragments
        else f"An extent that continues in the next bitmap counts twice; counted once, there are {joined:,} free extents."
    )
    verdict = f"A score above {BAD:.0f} is bad." if score > BAD else f"A score up to {BAD:.0f} is not bad."
    return [table(cells, headers, right=headers), *_wrapped(f"{verdict} {note}")]


def _largest(explained: ExplainedBlockGroup) -> list[str]:
    places = ", ".join(f"{format_size(length)} at {vaddr}" for vaddr, length in explained.largest)
    return _wrapped(f"Largest free extents: {places}.") if places else ["The block group has no free space."]


def _cost(explained: ExplainedBlockGroup, score: float, benefit: float) -> list[str]:
    cost = explained.cost
    if not cost.extents:
        return ["The block group is empty: nothing has to be moved."]
    moves = f"{format_size(cost.moves)} in {counted(cost.extents, 'extent')} (the largest {format_size(cost.largest)})"
    refers = f"with {counted(cost.references, 'reference')}"
    gain = f"That removes a score of {click.unstyle(score_words(score))}, {benefit_words(benefit)} per GiB moved."
    return _wrapped(f"Balancing it moves {moves}, {refers}. {gain}")
