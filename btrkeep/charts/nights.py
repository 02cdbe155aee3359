"""Lines over numbered nights, each with its range if it has one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from btrkeep.charts.frame import AxisScale, NumberFrame, legend, number_frame
from btrkeep.charts.svg import ChartStyle, Sheet


@dataclass(frozen=True, slots=True)
class NightLine:
    """A value for each night; None: not known, a gap. `dash`: of the line, "" for a plain one. `band`: the least and the most of
    each night, drawn as a shade.
    """

    name: str
    colour: str
    dash: str
    values: Sequence[float | None]
    width: float = 1.6
    band: Sequence[tuple[float, float]] = ()


def draw_nights(
    lines: Sequence[NightLine],
    scale: AxisScale,
    look: ChartStyle,
    height: int,
    *,
    first: int = 1,
    beside: float = 0,
    named: bool = False,
) -> Sheet:
    """Draws the lines. `first`: the number of the first night; `named`: with a legend above."""
    sheet = Sheet(look, height)
    above = legend(sheet, [(line.name, line.colour, line.dash) for line in lines]) if named else 0
    last = first + max((len(line.values) for line in lines), default=1) - 1
    inside = number_frame(sheet, first, last, scale, above, beside, "night")
    for line in lines:
        if len(line.band) > 1:
            upper = [(inside.x(first + at), inside.y(most)) for at, (_, most) in enumerate(line.band)]
            lower = [(inside.x(first + at), inside.y(least)) for at, (least, _) in enumerate(line.band)]
            sheet.area([*upper, *lower[::-1]], line.colour, 0.14)
    for line in lines:
        _draw(sheet, inside, line, first)
    return sheet


def _draw(sheet: Sheet, inside: NumberFrame, line: NightLine, first: int) -> None:
    for is_known, run in groupby(enumerate(line.values), lambda pair: pair[1] is not None):
        points = [(inside.x(first + at), inside.y(value)) for at, value in run if value is not None]
        if is_known and len(points) == 1:
            sheet.dot(*points[0], line.colour)
        elif is_known:
            sheet.curve(points, line.colour, line.dash, line.width)
