"""Sheets of SVG: shapes and words, escaped, as a part of a page or as a file.

A sheet inside a page uses the page's colours; the page scales it, and keeps the size of its letters. Its readings are the text that
chart.js shows at each place. A file always has a white background. Neither contains a style sheet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from markupsafe import Markup

LIGHT, PAGE, VARIANTS = "light", "page", "variants"
_USUAL = 720
FONT = 12
MARGIN, _HEAD, _HEADING, _APART = 8, 44, 24, 14
"""Pixels of a file: its left margin, its title, the line above a chart, and the space below one."""
_CHARACTER = 7.0
"""The approximate width of a character in pixels."""

# By Okabe and Ito (https://jfly.uni-koeln.de/color/): distinguishable for colour-blind people.
PALETTES: Mapping[str, Mapping[str, str]] = {
    LIGHT: {
        "ground": "#ffffff",
        "ink": "#24292f",
        "faint": "#59636e",
        "grid": "#d9dee3",
        "blue": "#0072b2",
        "sky": "#56b4e9",
        "orange": "#e69f00",
        "red": "#c14600",
        "green": "#00795a",
        "purple": "#b0518a",
    },
    PAGE: {
        "ink": "var(--text)",
        "faint": "var(--quiet)",
        "grid": "var(--line)",
        "ground": "var(--card)",
        "blue": "var(--busy)",
        "sky": "var(--busy)",
        "orange": "var(--late)",
        "red": "var(--bad)",
        "green": "var(--good)",
        "purple": "var(--odd)",
    },
    VARIANTS: {  # of the page of a rehearsal, with a colour for each variant
        "ink": "var(--ink)",
        "faint": "var(--grey)",
        "grid": "var(--line)",
        **{f"c{number}": f"var(--c{number})" for number in range(6)},
    },
}


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """The style of a chart."""

    width: int = _USUAL
    """Its width in pixels."""
    ground: str = LIGHT
    """The background."""
    font: int = FONT
    """The size of letters for which it reserves space, in pixels."""

    def colour(self, name: str) -> str:
        """Returns a colour of the palette for that background."""
        return PALETTES[self.ground][name]

    def width_of(self, words: str) -> float:
        """Returns the approximate width of words in pixels."""
        return len(words) * _CHARACTER * self.font / FONT


IN_PAGE = ChartStyle(640, PAGE, 20)
"""Part of a page: a drawing of 640 units that the page scales. On a telephone its letters are 20 units high."""


_MARKS: Mapping[str, str] = {
    "square": "M-4 -4h8v8h-8z",
    "diamond": "M0 -5.5L5.5 0L0 5.5L-5.5 0z",
    "down": "M-5 -4h10L0 5z",
    "up": "M-5 4h10L0 -5z",
    "plus": "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "cross": "M-4 -5L0 -1L4 -5L5 -4L1 0L5 4L4 5L0 1L-4 5L-5 4L-1 0L-5 -4z",
    "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
}


@dataclass(frozen=True, slots=True)
class Readings:
    """The text that a page shows at each place of a chart."""

    area: tuple[float, float, float, float]
    """The left, upper, right and lower edge of the plot."""
    names: Sequence[str]
    """The names of the values."""
    rows: Sequence[tuple[float, Sequence[str]]]
    """From left to right: x, and in words the place and its values; "" for an unknown value."""
    span: tuple[datetime, datetime] | None = None
    """The times at the left and at the right edge; None: a part of the chart cannot be chosen."""


class Sheet:
    """Collects shapes, and makes a document of them."""

    def __init__(self, style: ChartStyle, height: int) -> None:
        self.style, self.height = style, height
        self.readings: Readings | None = None
        self._parts: list[str] = []
        self._links: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", colour: str = "faint", font: int | None = None
    ) -> None:
        """Draws words; y is their baseline."""
        ink = self.style.colour(colour)
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{font or self.style.font}" fill="{ink}">'
            f"{escape(words)}</text>"
        )

    def mark(self, x: float, y: float, shape: str, colour: str) -> None:
        """Draws one of `_MARKS` with its centre there."""
        self._parts.append(f'<path transform="translate({x:.1f} {y:.1f})" d="{_MARKS[shape]}" fill="{self.style.colour(colour)}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "grid", width: float = 1.0) -> None:
        """Draws a straight line."""
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{self.style.colour(colour)}"'
            f' stroke-width="{width}"/>'
        )

    def rect(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> None:
        """Draws a filled rectangle."""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
            f' fill="{self.style.colour(colour)}" fill-opacity="{opacity}"/>'
        )

    def area(self, points: Iterable[tuple[float, float]], colour: str, opacity: float = 1.0) -> None:
        """Draws a filled polygon."""
        self._parts.append(f'<path d="{_path(points)}Z" fill="{self.style.colour(colour)}" fill-opacity="{opacity}"/>')

    def curve(self, points: Iterable[tuple[float, float]], colour: str, dash: str = "", width: float = 1.6) -> None:
        """Draws a line through points."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="{_path(points)}" fill="none" stroke="{self.style.colour(colour)}" stroke-width="{width}"'
            f' stroke-linejoin="round"{dashed}/>'
        )

    def bars(self, places: Iterable[tuple[float, float]], base: float, width: float, colour: str) -> None:
        """Draws vertical bars on `base`, each with its middle at x and its top at y; very low ones are made visible."""
        paths = (f"M{x - width / 2:.1f} {base:g}V{min(y, base - 1):.1f}h{width:.1f}V{base:g}z" for x, y in places)
        self._parts.append(f'<path d="{"".join(paths)}" fill="{self.style.colour(colour)}"/>')

    def dot(self, x: float, y: float, colour: str, words: str = "", *, hollow: bool = False) -> None:
        """Draws a small circle; `words` are its tooltip."""
        own = self.style.colour(colour)
        ink = f'fill="{self.style.colour("ground")}" stroke="{own}"' if hollow else f'fill="{own}"'
        title = f"<title>{escape(words)}</title>" if words else ""
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if words else 2.5}" {ink}>{title}</circle>')

    def link(self, box: tuple[float, float, float, float], colour: str, address: str, words: str) -> None:
        """Draws a filled rectangle (x, y, width, height) that is a link of the page; `words` are its name and its tooltip."""
        x, y, width, height = box
        self._links.append(
            f'<a href="{escape(address)}" aria-label="{escape(words)}"><title>{escape(words)}</title><rect x="{x:.1f}" y="{y:.1f}"'
            f' width="{width:.1f}" height="{height:.1f}" fill="{self.style.colour(colour)}"/></a>'
        )

    def put(self, other: "Sheet", y: float) -> None:
        """Draws all of another sheet, with its upper edge at y."""
        self._parts.append(f'<g transform="translate(0 {y:.1f})">{"".join(other._parts)}</g>')

    def document(self, title: str) -> bytes:
        """Returns the whole file."""
        size = f'width="{self.style.width}" height="{self.height}" viewBox="0 0 {self.style.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">'
        return f"{head}<title>{escape(title)}</title>{''.join(self._parts)}</svg>".encode()

    def markup(self, title: str) -> Markup:
        """Returns a part of a page. Its title is for screen readers, which skip what is inside an image."""
        drawing = f'<g role="img" aria-label="{escape(title)}">{"".join(self._parts)}</g>{"".join(self._links)}'
        data, mark = (_data(self.readings), _mark(self.readings)) if self.readings and self.readings.rows else ("", "")
        size = f"0 0 {self.style.width} {self.height}"
        return Markup(f'<svg viewBox="{size}"{data}>{drawing}{mark}</svg>')  # noqa: S704  every text in it is escaped


def _data(readings: Readings) -> str:
    """Returns the attributes that chart.js reads; their words contain neither "|" nor ";"."""
    rows = ";".join("|".join((f"{x:.1f}", *values)) for x, values in readings.rows)
    span = f' data-span="{readings.span[0].timestamp():.0f} {readings.span[1].timestamp():.0f}"' if readings.span else ""
    return f' data-names="{escape("|".join(readings.names))}" data-rows="{escape(rows)}"{span}'


def _mark(readings: Readings) -> str:
    """Returns the shapes that chart.js moves: the chosen part, the line at the place, and the area of the pointer."""
    left, top, right, bottom = readings.area
    rect = f'<rect x="{left:.1f}" y="{top:.1f}" height="{bottom - top:.1f}" width='
    return (
        f'<g class="reading" display="none">{rect}"0"/><path d="M0 {top:.1f}V{bottom:.1f}"/>'
        f'{rect}"{right - left:.1f}" fill-opacity="0"/></g>'
    )


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the charts of a file."""

    heading: str
    """The line above it."""
    sheet: Sheet
    """The chart."""


def file_of(title: str, panels: Sequence[Panel], described: str, foot: str = "") -> bytes:
    """Returns a file of charts below each other, on white. `foot`: the last line. `described`: a description in words."""
    style = panels[0].sheet.style
    height = _HEAD + sum(panel.sheet.height + (_HEADING if panel.heading else 0) + _APART for panel in panels)
    sheet = Sheet(style, height + (style.font + _APART if foot else 0))
    sheet.rect(0, 0, style.width, sheet.height, "ground")
    sheet.text(
        MARGIN, 26, title, colour="ink", font=max(min(17, int(style.width * FONT / _CHARACTER / len(title))), 6)
    )  # the whole path, even if it is long
    y = _HEAD
    for panel in panels:
        if panel.heading:
            sheet.text(MARGIN, y + 14, panel.heading, colour="ink", font=14)
            y += _HEADING
        sheet.put(panel.sheet, y)
        y += panel.sheet.height + _APART
    if foot:
        sheet.text(MARGIN, y + style.font, foot, colour="ink")
    return sheet.document(described)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
