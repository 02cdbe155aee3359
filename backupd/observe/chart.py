"""Charts of characters for a terminal. Pure: returns lines of text, plain or in block characters. docs/decisions/0014 explains why
they are our own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from btrkeep.units import format_size

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SHARE_OF_GAP = 0.25
"""At least this share of the height is for the difference between used and allocated, as long as the axis can start above zero."""


@dataclass(frozen=True, slots=True)
class ChartCharacters:
    """The characters that a chart is drawn with."""

    used: str
    """For used space."""
    unused: str
    """For allocated space that is not used."""
    bar: str
    """For the bar of a number."""
    on: str
    """For a time in which something ran."""
    unknown: str
    """For a time without samples."""

    @property
    def has_eighths(self) -> bool:
        """Returns True if a bar may end within a line."""
        return self.bar == "█"


BLOCKS = ChartCharacters("█", "░", "█", "━", "·")
ASCII = ChartCharacters("#", ":", "#", "=", ".")


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of a chart, in bytes."""

    least: float
    """At its lower end."""
    most: float
    """At its upper end."""

    def rows(self, value: float, height: int) -> float:
        """Returns the height of a value in lines."""
        span = self.most - self.least
        return min(max((value - self.least) / span if span else 0.0, 0.0), 1.0) * height


def axis_for(used: Sequence[int], allocated: Sequence[int]) -> Axis:
    """Returns an axis that starts at zero, unless the difference of the two would be too thin to be seen."""
    most, lowest = max(allocated), min(used)
    gap = max(high - low for high, low in zip(allocated, used, strict=True))
    moved = max(max(used) - lowest, max(allocated) - min(allocated), gap, most // 100)
    if moved >= _SHARE_OF_GAP * most:
        return Axis(0, most)
    return Axis(max(lowest - moved / 2, 0), most)


def filled(columns: Sequence[tuple[int, int] | None], axis: Axis, height: int, characters: ChartCharacters) -> list[str]:
    """Returns `height` lines: each column shows used up to one value and allocated up to the other; unknown columns are empty."""
    heights = [tuple(round(axis.rows(value, height)) for value in column) if column else (0, 0) for column in columns]
    return [
        "".join(characters.used if row <= used else characters.unused if row <= allocated else " " for used, allocated in heights)
        for row in range(height, 0, -1)
    ]


def bars(values: Sequence[float | None], most: float, height: int, characters: ChartCharacters) -> list[str]:
    """Returns `height` lines of bars from zero to `most`. Non-zero values are always visible; unknown ones are a dot at
    the bottom.
    """
    parts = 8 if characters.has_eighths else 1
    full = height * parts
    tall = [max(round(value / most * full), 1) if value and most else 0 for value in values]
    lines = [[_piece(value - row * parts, parts, characters) for value in tall] for row in range(height - 1, -1, -1)]
    for column, value in enumerate(values):
        if value is None:
            lines[-1][column] = characters.unknown
    return ["".join(line) for line in lines]


def _piece(left: int, parts: int, characters: ChartCharacters) -> str:
    if left <= 0:
        return " "
    return characters.bar if left >= parts else _EIGHTHS[left]


def labelled(lines: Sequence[str], axis: Axis, every: int, width: int, words: Callable[[int], str] = format_size) -> list[str]:
    """Returns the lines with a scale on their left, `width` columns wide: a number at the top, at the bottom and at each `every`-th
    line.
    """
    height = len(lines)
    rows = []
    for number, line in enumerate(lines):
        at = axis.least + (axis.most - axis.least) * (height - number) / height
        rows.append(f"{words(round(at)) if number % every == 0 else '':>{width}} {line}".rstrip())
    return [*rows, f"{words(round(axis.least)):>{width}} "]


def under(places: Sequence[tuple[int, str]], width: int) -> str:
    """Returns one line of labels that start at these columns; a label that would touch the one before is left out."""
    line = ""
    for column, label in places:
        if column + len(label) <= width and (not line or column > len(line)):
            line = line.ljust(column) + label
    return line


def strip(spans: Sequence[tuple[float, float]], width: int, characters: ChartCharacters) -> str:
    """Returns one line that is marked between the two shares of the width, with at least one character for each span."""
    line = [" "] * width
    for begin, end in spans:
        first = min(int(begin * width), width - 1)
        for column in range(first, max(min(round(end * width), width), first + 1)):
            line[column] = characters.on
    return "".join(line).rstrip()
