"""The last nights of a host as a strip of cells. Pure.

The shape of a cell shows its meaning, as well as its colour: whole for complete, split for failed, an exclamation mark for
suspect, half for partial, a line for skipped, a dot for no run, two dots for unknown, nothing before the host existed.
The cell of a complete backup that has expired is paler.
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
    """Returns a path for each kind of cell."""
    found: dict[str, list[str]] = {}
    for place, night in enumerate(nights):
        kind = "past" if night.outcome == "complete" and night.now not in (KEPT, None) else night.outcome
        found.setdefault(kind, []).append(_cell(kind, place))
    return tuple((kind, "".join(cells)) for kind, cells in found.items())


@cache
def _cell(kind: str, place: int) -> str:
    return "".join(f"M{place * STEP} {top:g}h{WIDE}v{height:g}h-{WIDE}z" for top, height in _SHAPES[kind])


def shape(kind: str) -> str:
    """Returns one cell of a kind, for the legend."""
    return _cell(kind, 0)


def width(nights: Sequence[HostNight]) -> int:
    """Returns the width of the whole strip, in the strip's units."""
    return max(len(nights) * STEP - (STEP - WIDE), 1)
