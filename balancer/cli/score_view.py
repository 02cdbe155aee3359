"""The survey as text: the worst block groups, the sizes of free extents, and a sentence; and as JSON."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import click
import numpy as np
import orjson

from balancer.cli.bars import bar, has_blocks
from balancer.score import BAD, Array
from balancer.survey import Cost, Survey
from balancer.verdict import judgement
from btrkeep.cli import stream_json, table
from btrkeep.units import counted, format_share, format_size

_HEADERS = ["VADDR", "LENGTH", "USED", "USED%", "FRAGS", "LARGEST", "SCORE", "BENEFIT"]
_WITH_COSTS = ["VADDR", "USED", "FRAGS", "LARGEST", "SCORE", "BENEFIT", "EXTENTS", "REFS"]  # no room for all of them in 80 columns
_COLUMNS = ("vaddr", "length", "used", "used_pct", "fragments", "largest_free", "score", "benefit")
_BAR = 30
_PAPER = 80


def lines(filesystem: str, survey: Survey, shown: Array, costs: Sequence[Cost] | None, more: int, least_score: float) -> list[str]:
    """The whole text. `shown` are indices, `costs` theirs; `more` block groups that score `least_score` or more are not shown."""
    groups = survey.groups
    whole, used = int(groups.length.sum()), int(groups.used.sum())
    count = counted(len(groups.vaddr), "data block group")
    head = f"{filesystem}: {count}, {format_size(used)} used of {format_size(whole)}"
    return [
        *textwrap.wrap(head, _PAPER),
        *_table(survey, shown, costs, more, least_score),
        *_histogram(survey),
        "",
        *textwrap.wrap(judgement(groups.score, groups.used, survey.bytes), _PAPER),
    ]


def _table(survey: Survey, shown: Array, costs: Sequence[Cost] | None, more: int, least_score: float) -> list[str]:
    if not len(survey.groups.vaddr):
        return []
    if not len(shown):
        return ["", f"none of them scores {least_score:g} or more"]
    headers = _WITH_COSTS if costs else _HEADERS
    text = ["", table(_rows(survey, shown, costs, headers), headers, right=headers)]
    if more:
        text.append(f"{more:,} more: --top N shows more of them, --json all")
    return text


def _rows(survey: Survey, shown: Array, costs: Sequence[Cost] | None, headers: list[str]) -> list[list[str]]:
    groups = survey.groups
    columns = [getattr(groups, name)[shown].tolist() for name in _COLUMNS]
    rows = []
    for vaddr, length, used, share, fragments, largest, score, benefit, cost in zip(
        *columns, costs or repeat(None, len(shown)), strict=True
    ):
        cells = {
            "VADDR": str(vaddr),
            "LENGTH": format_size(length),
            "USED": format_size(used),
            "USED%": f"{share}%",
            "FRAGS": str(fragments),
            "LARGEST": format_size(largest),
            "SCORE": score_words(score),
            "BENEFIT": benefit_words(benefit),
            "EXTENTS": str(cost.extents) if cost else "-",
            "REFS": str(cost.references) if cost else "-",
        }
        rows.append([cells[name] for name in headers])
    return rows


def score_words(score: float) -> str:
    """With one digit, in red above BAD. Cut, not rounded: its whole part is what python-btrfs's example prints."""
    words = f"{math.floor(score * 10) / 10:.1f}"
    return click.style(words, fg="red") if score > BAD else words


def benefit_words(benefit: float) -> str:
    """Formats the benefit as briefly as possible; "-" if nothing would move."""
    if math.isnan(benefit):
        return "-"
    return f"{benefit:.1f}" if benefit < 1000 else f"{benefit:.0f}" if benefit < 1e7 else f"{benefit:.1e}"


def _histogram(survey: Survey) -> list[str]:
    found, blocks = histogram(survey), has_blocks()
    if not found:
        return []
    whole = sum(one["bytes"] for one in found)
    rows = [
        [
            f"{format_size(one['at_least'])}",
            f"{one['extents']:,}",
            format_size(one["bytes"]),
            format_share(one["bytes"] / whole),
            bar(one["bytes"] / whole, _BAR, blocks=blocks),
        ]
        for one in found
    ]
    headers = ["FROM", "FREE EXTENTS", "BYTES", "SHARE", ""]
    return ["", table(rows, headers, right=headers[:-1])]


# --- JSON, block group by block group


def write_json(filesystem: str, survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> None:
    """Writes one document: the block groups `shown`, by index and in that order, and the histogram of all. `costs`, if any, are
    those of `shown`.
    """
    click.echo(f'{{"filesystem": {orjson.dumps(filesystem).decode()},\n"block_groups": ', nl=False)
    stream_json(block_groups(survey, shown, costs))
    click.echo(f',"histogram": {orjson.dumps(histogram(survey)).decode()}}}')


def block_groups(survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> Iterator[dict[str, Any]]:
    """Yields the block groups of the indices `shown`. Benefit is null if nothing would move, extents and references if they
    were not read.
    """
    columns = [getattr(survey.groups, name)[shown].tolist() for name in _COLUMNS]
    known = [(cost.extents, cost.references) for cost in costs] if costs else repeat((None, None), len(shown))
    for vaddr, length, used, share, fragments, largest, score, benefit, (extents, references) in zip(*columns, known, strict=True):
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
    there = np.flatnonzero(survey.extents)
    classes = range(int(there[0]), int(there[-1]) + 1) if len(there) else range(0)
    return [{"at_least": 1 << one, "extents": int(survey.extents[one]), "bytes": int(survey.bytes[one])} for one in classes]
