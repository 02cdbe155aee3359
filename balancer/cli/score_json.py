"""The survey as JSON, written block group by block group."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import click
import numpy as np
import orjson

from balancer.score import Array
from balancer.survey import Cost, Survey
from btrkeep.cli import stream_json

_COLUMNS = ("vaddr", "length", "used", "used_pct", "fragments", "largest_free", "score", "benefit")


def write_json(filesystem: str, survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> None:
    """One document: the block groups `shown`, by index and in that order, and the histogram of all. `costs`, if any, are theirs."""
    click.echo(f'{{"filesystem": {orjson.dumps(filesystem).decode()},\n"block_groups": ', nl=False)
    stream_json(block_groups(survey, shown, costs))
    click.echo(f',"histogram": {orjson.dumps(histogram(survey)).decode()}}}')


def block_groups(survey: Survey, shown: Array, costs: Sequence[Cost] | None) -> Iterator[dict[str, Any]]:
    """Those of the indices `shown`. Benefit is null where nothing would move, extents and references where they were not read."""
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
