"""The last nights of a host as a strip of cells. Pure.

What a cell means is told by its shape too, not by its colour alone: whole for complete, split for failed, an exclamation mark for
suspect, half for partial, a line for skipped, a dot for no run, two for what nobody knows, nothing before there was a host.
Of a complete backup that is not kept any more the cell is paler.
"""

from collections.abc import Sequence
from functools import cache

from web.data.nights import KEPT, HostNight

STEP, WIDE = 5, 4
_SHAPES: dict[str, tuple[tuple[float, float], ...]] = {  # (top, height) of the pieces
    "complete": ((0, 16),),
    "past": ((0, 16),),
    "running": ((4, 12),),
    "suspect": ((0, 10), (13, 3)),
    "failed": ((0, 6), (10, 6)),
    "partial": ((8, 8),),
    "skipped": ((7, 2),),
    "none": ((13, 2),),
    "unknown": ((4, 2), (10, 2)),
    "before": (),
}


def strip_paths(nights: Sequence[HostNight]) -> tuple[tuple[str, str], ...]:
    """A path for each kind of cell that there is."""
    found: dict[str, list[str]] = {}
    for place, night in enumerate(nights):
        kind = "past" if night.outcome == "complete" and night.now not in (KEPT, None) else night.outcome
        found.setdefault(kind, []).append(_cell(kind, place))
    return tuple((kind, "".join(cells)) for kind, cells in found.items())


@cache
def _cell(kind: str, place: int) -> str:
    return "".join(f"M{place * STEP} {top:g}h{WIDE}v{height:g}h-{WIDE}z" for top, height in _SHAPES[kind])


def shape(kind: str) -> str:
    """One cell of a kind, for the legend."""
    return _cell(kind, 0)


def width(nights: Sequence[HostNight]) -> int:
    """Of the whole strip, in its own units."""
    return max(len(nights) * STEP - (STEP - WIDE), 1)
