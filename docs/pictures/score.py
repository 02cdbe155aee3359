"""Draws score.svg beside itself, with the tent that the program uses: `python docs/pictures/score.py` from the top folder."""

import math
import sys
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))  # the page is made in a bare checkout

from balancer.score import tent  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WIDTH, HEIGHT = 730, 452
LEFT, RIGHT, ROOF, FLOOR = 60, 700, 40, 230  # of the curve
USED, FREE, LINE, GREY, RED = "#4c566a", "#d8e6f3", "#1f6fb2", "#888", "#c0392b"
SMALLEST = math.log2(2 * KIB)
TICKS = {4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 128 * MIB: "128 MiB", GIB: "1 GiB"}


def x_of(size: float) -> float:
    """Where a size is on the logarithmic scale."""
    return LEFT + (math.log2(size) - SMALLEST) / (math.log2(GIB) - SMALLEST) * (RIGHT - LEFT)


def y_of(height: float) -> float:
    """Where a height from 0 to 1 is."""
    return FLOOR - height * (FLOOR - ROOF)


def height(size: int) -> float:
    """The score of one free extent in a block group of 1 GiB."""
    return float(tent(np.array([size], np.uint64), np.array([GIB], np.uint64))[0])


def text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 13, fill: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def rectangle(x: float, y: float, width: float, tall: float, fill: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{tall:.1f}" fill="{fill}"/>'


def curve() -> list[str]:
    """The tent over its axes, with the sizes that people think in."""
    sizes = [2**power for power in range(11, 31)]
    top = math.sqrt(2 * KIB * GIB)
    points = " ".join(f"{x_of(size):.1f},{y_of(height(int(size))):.1f}" for size in sorted([*sizes, top]))
    drawn = [
        text(LEFT, 20, "The score of one free extent in a block group of 1 GiB, by its size", anchor="start", size=15),
        line(LEFT, FLOOR, RIGHT, FLOOR, GREY),
        line(LEFT, FLOOR, LEFT, ROOF, GREY),
        text(LEFT - 8, y_of(1) + 4, "1", anchor="end"),
        text(LEFT - 8, y_of(0) + 4, "0", anchor="end"),
        f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2.5"/>',
        line(x_of(top), y_of(1), x_of(top), FLOOR, "#ccc"),
        text(x_of(top) + 20, y_of(1) + 5, "1.4 MiB: the worst size", anchor="start", fill=LINE),
    ]
    for size, words in TICKS.items():
        drawn += [
            line(x_of(size), FLOOR, x_of(size), FLOOR + 5, GREY),
            text(x_of(size), FLOOR + 20, words),
            f'<circle cx="{x_of(size):.1f}" cy="{y_of(height(size)):.1f}" r="3.5" fill="{LINE}"/>',
        ]
    return drawn


def strip(y: float, pieces: int, verdict: str, fill: str) -> list[str]:
    """A block group that is half full, its used half in so many pieces; drawn are no more than 64 of them."""
    shown, wide = min(pieces, 64), RIGHT - LEFT
    each = wide / shown
    drawn = [rectangle(LEFT, y, wide, 34, FREE)]
    drawn += [rectangle(LEFT + number * each, y, each / 2, 34, USED) for number in range(shown)]
    total = pieces * height(GIB // 2 // pieces)
    return [*drawn, text(LEFT, y + 52, f"{verdict}: score {total:.1f}", anchor="start", fill=fill)]


def picture() -> str:
    """The whole of it as SVG, with a background of its own: pages are dark sometimes."""
    parts = [
        *curve(),
        text(LEFT, 300, "Two block groups, both half full (dark: used)", anchor="start", size=15),
        *strip(312, 1, "512 MiB of data and one hole", "#222"),
        *strip(386, 512, "512 pieces of 1 MiB and 512 holes between them", RED),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif">'
    return "\n".join([head, rectangle(0, 0, WIDTH, HEIGHT, "#fff"), *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
