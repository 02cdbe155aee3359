"""The picture of bench.soak: the nights from left to right, a panel for each kind of figure, and marks where faults were.

python -m bench.soak_picture FOLDER/soak.json PICTURE.svg
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from btrkeep.charts.frame import AxisScale, decimal_scale, number_frame
from btrkeep.charts.svg import MARGIN, ChartStyle, Panel, Sheet, file_of
from btrkeep.charts.trend import NightLine, draw_nights

_LOOK = ChartStyle(960)
_COLOURS = ("blue", "red", "green", "purple", "orange", "sky", "faint", "ink")
_DASHES = ("", "6 4", "8 3 2 3", "2 3")
_MIB = 1 << 20
_LANE = 18
Nights = Sequence[Mapping[str, Any]]


def draw(nights: Nights, picture: Path) -> None:
    """Draws the picture."""
    memory = ("run", "expire", "replicate", "expire copies", "verify", "balance", "status")
    timed = ("run", "expire", "replicate", "balance")
    figures: tuple[tuple[str, int, dict[str, list[float | None]]], ...] = (
        ("peak of memory, MB", 260, {name: _command(nights, name, "memory") for name in memory}),
        ("seconds", 200, {name: _command(nights, name, "seconds") for name in timed}),
        (
            "MiB of the disk",
            200,
            {
                f"{figure}, {pool}": _sizes(nights, pool, figure)
                for pool in ("pool", "second pool")
                for figure in ("allocated", "used")
            },
        ),
        ("catalogue, MiB", 150, {"": [_of(night, "catalogue", _MIB) for night in nights]}),
        ("free space score", 150, {"": [_of(night, "score") for night in nights]}),
        ("complete backups", 170, {"pool": _all(nights, "backups"), "second pool": _all(nights, "copies")}),
    )
    kinds = sorted({fault for night in nights for fault in night["faults"]})
    scales = [_scale(lines) for _, _, lines in figures]
    beside = max(*(_LOOK.width_of(kind) for kind in ("", *kinds)), *(scale.width(_LOOK) for scale in scales)) + MARGIN
    panels = [
        Panel(title, _lines(lines, scale, height, beside)) for (title, height, lines), scale in zip(figures, scales, strict=True)
    ]
    panels.append(Panel("faults", _faults(nights, kinds, beside)))
    picture.write_bytes(file_of(f"A soak of {len(nights)} nights", panels, "Figures and faults of a soak, night by night"))


def _scale(lines: Mapping[str, Sequence[float | None]]) -> AxisScale:
    return decimal_scale(
        max((value for line in lines.values() for value in line if value is not None), default=0.0), "{:,g}".format
    )


def _lines(lines: Mapping[str, Sequence[float | None]], scale: AxisScale, height: int, beside: float) -> Sheet:
    drawn = [
        NightLine(name, _COLOURS[number], _DASHES[number % len(_DASHES)], values)
        for number, (name, values) in enumerate(lines.items())
    ]
    return draw_nights(drawn, scale, _LOOK, height, first=0, beside=beside, named=len(lines) > 1)


def _faults(nights: Nights, kinds: Sequence[str], beside: float) -> Sheet:
    sheet = Sheet(_LOOK, 60 + _LANE * len(kinds))
    inside = number_frame(sheet, 0, max(len(nights) - 1, 0), AxisScale(1.0, 2.0, lambda _: ""), 0, beside, "night")
    for row, kind in enumerate(kinds):
        y = inside.top + _LANE * (row + 0.5)
        sheet.line(inside.left, y, inside.right, y)
        sheet.text(inside.left - 6, y + 4, kind, anchor="end", colour="ink")
        for night in nights:
            if kind in night["faults"]:
                sheet.mark(inside.x(night["night"]), y, "cross", "red")
    return sheet


def _command(nights: Nights, name: str, figure: str) -> list[float | None]:
    """Returns the figures of the nights in which the command completed."""
    done = [night["commands"].get(name) for night in nights]
    return [command[figure] if command and command["status"] >= 0 else None for command in done]


def _sizes(nights: Nights, pool: str, key: str) -> list[float | None]:
    places = [night if pool == "pool" else night.get("second", {}) for night in nights]
    return [_of(place, key, _MIB) for place in places]


def _all(nights: Nights, key: str) -> list[float | None]:
    return [_of(night, key) for night in nights]


def _of(place: Mapping[str, Any], key: str, unit: int = 1) -> float | None:
    return place[key] / unit if key in place else None


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["nights"], Path(sys.argv[2]))
