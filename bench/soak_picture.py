"""The picture of bench.soak: the nights from left to right, a panel for each kind of figure, and marks where faults were.

python -m bench.soak_picture FOLDER/soak.json PICTURE.png
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK, _GRID, _GREY = "#222222", "#dddddd", "#777777"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#222222")
_STYLES = ("-", "--", "-.", ":")
_MIB = 1 << 20
Nights = Sequence[Mapping[str, Any]]


def draw(nights: Nights, picture: Path) -> None:
    """Draws it."""
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(10, 13), layout="constrained")
        panels = figure.subplots(7, 1, sharex=True, height_ratios=(2.2, 1.4, 1.4, 1, 1, 1, 2.2))
        memory = ("run", "expire", "replicate", "expire copies", "verify", "balance", "status")
        _lines(panels[0], "peak of memory, MB", {name: _command(nights, name, "memory") for name in memory})
        _lines(
            panels[1], "seconds", {name: _command(nights, name, "seconds") for name in ("run", "expire", "replicate", "balance")}
        )
        sizes = {
            f"{what}, {pool}": _sizes(nights, pool, what) for pool in ("pool", "second pool") for what in ("allocated", "used")
        }
        _lines(panels[2], "MiB of the disk", sizes)
        _lines(panels[3], "catalogue, MiB", {"": [_of(night, "catalogue", _MIB) for night in nights]})
        _lines(panels[4], "free space score", {"": [_of(night, "score") for night in nights]})
        _lines(panels[5], "complete backups", {"pool": _all(nights, "backups"), "second pool": _all(nights, "copies")})
        _faults(panels[6], nights)
        figure.savefig(picture, dpi=110)


def _lines(axes: Axes, title: str, lines: Mapping[str, Sequence[float | None]]) -> None:
    for number, (name, values) in enumerate(lines.items()):
        shown = [float("nan") if value is None else value for value in values]
        axes.plot(shown, color=_COLOURS[number], linestyle=_STYLES[number % 4], linewidth=1.5, label=name or None)
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontsize=9, color=_INK)
    if len(lines) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    _plain(axes)


def _faults(axes: Axes, nights: Nights) -> None:
    kinds = sorted({fault for night in nights for fault in night["faults"]}, reverse=True)
    for row, kind in enumerate(kinds):
        hit = [night["night"] for night in nights if kind in night["faults"]]
        axes.plot(hit, [row] * len(hit), "x", color=_COLOURS[1])
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_title("faults", loc="left", fontsize=9, color=_INK)
    axes.set_xlabel("night")
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GREY)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=8)


def _command(nights: Nights, name: str, what: str) -> list[float | None]:
    """Of the nights in which the command came to its end."""
    done = [night["commands"].get(name) for night in nights]
    return [one[what] if one and one["status"] >= 0 else None for one in done]


def _sizes(nights: Nights, pool: str, what: str) -> list[float | None]:
    places = [night if pool == "pool" else night.get("second", {}) for night in nights]
    return [_of(place, what, _MIB) for place in places]


def _all(nights: Nights, what: str) -> list[float | None]:
    return [_of(night, what) for night in nights]


def _of(place: Mapping[str, Any], what: str, unit: int = 1) -> float | None:
    return place[what] / unit if what in place else None


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["nights"], Path(sys.argv[2]))
