"""The pool in a small chart: what its devices have, what is allocated of it, what is used, over the last months. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from btrkeep.units import format_share, format_size
from web.charts.plot import PlotArea, frame, line, size_steps, size_words
from web.data.trend import TrendPoint


@dataclass(frozen=True, slots=True)
class PoolChart:
    """Paths of the areas of what is used and allocated, and the height at which the devices end."""

    alt: str
    frame: PlotArea
    used: str
    allocated: str
    size: float


def pool_chart(points: Sequence[TrendPoint], zone: ZoneInfo) -> PoolChart | None:
    """Of points, oldest first; None with fewer than two, or with nothing to measure them by."""
    if len(points) <= 1 or not points[-1].size:
        return None
    first, last = points[0], points[-1]
    where = frame([point.taken for point in points], max(point.size for point in points), zone, size_steps, size_words)
    alt = (
        f"From {first.taken.astimezone(zone).date()} to {last.taken.astimezone(zone).date()}: "
        f"used went from {format_size(first.used)} to {format_size(last.used)}, "
        f"allocated from {format_size(first.allocated)} to {format_size(last.allocated)}, "
        f"of {format_size(last.size)} ({format_share(last.allocated / last.size)} allocated)."
    )
    used = _area(where, [(where.x(point.taken), where.y(point.used)) for point in points])
    allocated = _area(where, [(where.x(point.taken), where.y(point.allocated)) for point in points])
    return PoolChart(alt, where, used, allocated, where.y(last.size))


def _area(where: PlotArea, places: Sequence[tuple[float, float]]) -> str:
    return f"{line(places)}L{places[-1][0]:g} {where.base:g}L{places[0][0]:g} {where.base:g}z"
