"""How scores and the sizes of free extents are distributed."""

from collections.abc import Sequence

from btrkeep.units import counted, format_size
from web.charts.bars import Bar, bar_chart
from web.charts.frame import number_scale, plain_size, size_scale
from web.charts.svg import ChartStyle
from web.data.groups import Distribution, ScoreClass
from web.data.score import SizeClass


def class_words(one: ScoreClass) -> str:
    """ "50 to 100", "250 and more"."""
    return f"{one.least:g} and more" if one.most is None else f"{one.least:g} to {one.most:g}"


def score_words(found: Distribution) -> str:
    """What the chart of scores shows, for who cannot see it."""
    parts = [f"{one.block_groups:,} score {class_words(one)}" for one in found.classes if one.block_groups]
    return f"data block groups by their score: {', '.join(parts) or 'none'}"


def score_chart(found: Distribution, look: ChartStyle) -> bytes:
    """Block groups by their score; those that are bad in another colour."""
    bars = [
        Bar(f"{one.least:g}+" if one.most is None else f"{one.least:g}-{one.most:g}", one.block_groups, one.most is None)
        for one in found.classes
    ]
    return bar_chart(score_words(found), bars, number_scale(max(bar.value for bar in bars)), look)


def size_words(sizes: Sequence[SizeClass]) -> str:
    """What the chart of sizes shows, for who cannot see it."""
    whole = sum(one.bytes for one in sizes)
    large = sum(one.bytes for one in sizes if one.least >= 16 << 20)
    count = sum(one.extents for one in sizes)
    return f"{format_size(whole)} are free in {counted(count, 'extent')}; {format_size(large)} of it in extents of 16 MiB and more"


def size_chart(sizes: Sequence[SizeClass], look: ChartStyle) -> bytes:
    """Bytes that are free, by the size of the free extents."""
    bars = [Bar(plain_size(one.least), one.bytes) for one in sizes]
    return bar_chart(size_words(sizes), bars, size_scale(max((one.bytes for one in sizes), default=0)), look, "green")
