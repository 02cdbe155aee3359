"""A rehearsal as one page that needs no other file: numbers, charts and timelapses, for light and dark, wide and narrow."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from statistics import median
from typing import NamedTuple

from backupd.rehearse.cli.rehearsal_words import (
    ASKS,
    LIMITS,
    NAMES,
    RehearsalResult,
    about_hosts,
    change,
    comparison_cells,
    conclusion,
    extent_words,
    remarks,
    settings_words,
)
from backupd.rehearse.rehearsal_types import NightReading
from backupd.rehearse.variants import QUESTIONS, VariantJudgement, Verdict
from btrkeep import __version__
from btrkeep.charts.frame import decimal_scale, labels, nice_step, size_scale
from btrkeep.charts.svg import VARIANTS, ChartStyle, Sheet
from btrkeep.charts.trend import NightLine, draw_nights
from btrkeep.units import format_duration, format_size, printable

COLOURS = 6
DASHES = ("", "6 4", "8 3 2 3", "2 3", "6 2 2 2 2 2", "1 2")
_BORDERS = (
    "solid",
    "dashed",
    "dotted",
    "double",
    "dashed",
    "dotted",
)  # neighbours differ: a repeated colour is replaced by the next one
_MARKS = ("circle", "square", "diamond", "up", "down", "plus")
_LOOK, _HEIGHT = ChartStyle(400, VARIANTS), 230  # three charts fit side by side without scaling their text
_WIDE, _NARROW = ChartStyle(800, VARIANTS), ChartStyle(360, VARIANTS)
_ROW = 16


class VariantLook(NamedTuple):
    """The style of a variant."""

    colour: int
    """The number of its colour in the style sheet."""
    dash: str
    """The dash pattern of its lines in SVG; "": solid."""
    border: str
    """The same as a border style of CSS."""
    mark: str
    """The shape of its marks."""

    @property
    def ink(self) -> str:
        """Returns the name of the colour in the style sheet."""
        return f"c{self.colour}"


def look_of(number: int) -> VariantLook:
    """Returns the look of the variant with that number. If colours repeat, lines and marks differ."""
    colour = number % COLOURS
    other = (number + number // COLOURS) % COLOURS
    return VariantLook(colour, DASHES[other], _BORDERS[other], _MARKS[other])


Band = Sequence[tuple[float, float, float]]
"""The least, the median and the most of each night."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of `intervals`: a relative change with its range."""

    name: str
    """The measure."""
    least: float
    """The lower end."""
    median: float
    """The median."""
    most: float
    """The upper end."""
    variant: int
    """The number of the variant."""


def curves(
    bands: Mapping[str, Band], described: str, words: Callable[[float], str] | None = None, faint: Mapping[str, Band] | None = None
) -> str:
    """A line for each variant over the nights. `faint`: thin lines of the same variants. `words` formats a number of the axis;
    None: bytes.
    """
    lines = []
    for number, (name, band) in enumerate(bands.items()):
        look = look_of(number)
        middle = [median for _, median, _ in band]
        lines.append(NightLine(name, look.ink, look.dash, middle, 1.9, [(least, most) for least, _, most in band]))
        if faint:
            lines.append(NightLine(name, look.ink, look.dash, [median for _, median, _ in faint[name]], 0.8))
    most = max((most for many in (bands, faint or {}) for band in many.values() for *_, most in band), default=0.0)
    scale = decimal_scale(most, words) if words else size_scale(most)
    return draw_nights(lines, scale, _LOOK, _HEIGHT).markup(described)


def intervals(
    rows: Sequence[Interval], names: Sequence[str], words: Callable[[float], str], described: str, *, narrow: bool = False
) -> str:
    """Changes against the first variant, a row for each measure: the median, and the least to the most of all pairs. `narrow`: the
    names of measures are above their rows, for a screen as wide as a telephone's.
    """
    look = _NARROW if narrow else _WIDE
    groups = [(name, list(of_name)) for name, of_name in groupby(rows, lambda row: row.name)]
    head = _legend(Sheet(look, 0), rows, names)
    between = _ROW * (1.6 if narrow else 0.8)
    bottom = head + sum(between + _ROW * len(of_name) for _, of_name in groups) + 6
    sheet = Sheet(look, round(bottom + look.font + 12))
    _legend(sheet, rows, names)
    left = 8.0 if narrow else max((look.width_of(name) for name, _ in groups), default=0) + 16
    right = look.width - 8.0
    end = max((max(abs(row.least), abs(row.most)) for row in rows), default=0.1)
    end = max(end, 0.02) * 1.08

    def x(value: float) -> float:
        return (left + right) / 2 + value / end * (right - left) / 2

    step = nice_step(end / (3 if narrow else 4))
    values = [step * number for number in range(-int(end / step), int(end / step) + 1)]
    for value in values:
        sheet.line(x(value), head, x(value), bottom, "ink" if value == 0 else "grid")
    y = float(head)
    for name, of_name in groups:
        y += between
        if narrow:
            sheet.text(left, y - 4, name, colour="ink")
        else:
            sheet.text(left - 8, y + _ROW / 2 + 4, name, anchor="end", colour="ink")
        for row in of_name:
            _interval(sheet, x, y + _ROW / 2, row)
            y += _ROW
    labels(sheet, bottom, ((x(value), words(value)) for value in values if abs(value) < 1))
    return sheet.markup(described)


def _legend(sheet: Sheet, rows: Sequence[Interval], names: Sequence[str]) -> int:
    """Draws the names with their marks, at the top; returns their height in pixels."""
    left, y = 8.0, 14
    for number in sorted({row.variant for row in rows}):
        wide = sheet.style.width_of(names[number]) + 46
        if left > 8 and left + wide > sheet.style.width:
            left, y = 8.0, y + 20
        look = look_of(number)
        sheet.line(left, y - 4, left + 24, y - 4, look.ink, 1.8)
        sheet.mark(left + 12, y - 4, look.mark, look.ink)
        sheet.text(left + 30, y, names[number], colour="ink")
        left += wide
    return y + 8


def _interval(sheet: Sheet, x: Callable[[float], float], y: float, row: Interval) -> None:
    look = look_of(row.variant)
    sheet.line(x(row.least), y, x(row.most), y, look.ink, 1.8)
    sheet.mark(x(row.median), y, look.mark, look.ink)


_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d1d1d;--grey:#767676;--line:#ddd;--soft:#f4f4f2;--good:#00674c;--bad:#a33c00;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b5588a;--c4:#b87a00;--c5:#2f8fc4}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e6e6e3;--grey:#9a9a9a;--line:#383c42;--soft:#1e2126;--good:#43c59e;
--bad:#ff9a62;--c0:#56b4e9;--c1:#ff8a3c;--c2:#2fc79a;--c3:#e29ac2;--c4:#f0b93a;--c5:#9ad4f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.5rem clamp(.8rem,3vw,2rem) 3rem}
h1{font-size:1.7rem;line-height:1.2;margin:.3rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.6rem 0 .2rem}
p,li{max-width:60rem}.grey{color:var(--grey)}
.answer{background:var(--soft);border-left:.35rem solid var(--c0);padding:.8rem 1rem;margin:1rem 0}.answer p{margin:.25rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.v{white-space:nowrap}
.asked td:first-child{font-weight:600}.better{color:var(--good);font-weight:600}.worse{color:var(--bad);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));gap:1.2rem 1.6rem}
figure{margin:0}figcaption{font-weight:600}figcaption span{font-weight:400;color:var(--grey)}
svg{width:100%;height:auto;color:var(--ink)}
svg text{font-family:system-ui,sans-serif}
.wide svg{max-width:54rem}.narrow{display:none}
.numbers th:last-child,.numbers td:last-child{padding-left:1rem}
img{width:100%;max-width:18rem;image-rendering:pixelated;border:1px solid var(--line);display:block}
@media(max-width:44rem){body{font-size:15px}.wide{display:none}.narrow{display:block}
.numbers thead{display:none}.numbers tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}
.numbers td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.05rem 0;text-align:right}
.numbers td:last-child{padding-left:0}.numbers td:first-child{font-weight:600;text-align:left}
.numbers td[data-of]::before{content:attr(data-of);color:var(--grey);text-align:left}}
@media print{:root{color-scheme:light}main{max-width:none}}
"""
_SHOWN = (  # name, text below the name, number of a night, format of the axis
    ("score", "lower means fewer small pieces", lambda night: night.score, "number"),
    ("fragments", "free extents in data block groups", lambda night: night.fragments, "number"),
    ("night_seconds", "writing a night", lambda night: night.night_seconds, "seconds"),
    ("expiry_seconds", "of each night", lambda night: night.expiry_seconds, "seconds"),
)
_AXES: Mapping[str, Callable[[float], str]] = {
    "number": lambda value: f"{value:,.0f}",
    "ratio": lambda value: f"{value:g}",
    "seconds": lambda value: f"{value:g} s",
}


def page(result: RehearsalResult) -> str:
    """The whole document."""
    title = ASKS[result.question] if result.question else "Settings compared in a rehearsal"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(_body(result, title))}</main></body></html>\n"
    )


def _body(result: RehearsalResult, title: str) -> Iterator[str]:
    plan = result.plan
    yield f'<p class="grey">backupd rehearse, btrkeep {escape(__version__)}</p><h1>{escape(title)}</h1>'
    yield f'<div class="answer">{"".join(f"<p>{escape(line)}</p>" for line in conclusion(result))}</div>'
    took = f"{extent_words(plan)}, on a pool of {format_size(plan.size)}; the rehearsal took {format_duration(result.seconds)}."
    yield f"<p>{escape(took)} {escape(about_hosts(plan, result.facts))}</p>"
    yield from _variants(result)
    if any(run.nights for run in result.runs):
        yield from _changes(result)
        yield from _charts(result)
    yield from _timelapses(result)
    yield "<h2>How far this can be trusted</h2><ul>"
    yield from (f"<li>{escape(text)}</li>" for text in (*remarks(result), *LIMITS))
    yield "</ul>"


def _variants(result: RehearsalResult) -> Iterator[str]:
    yield '<h2>The variants</h2><div class="scroll"><table>'
    for number, variant in enumerate(result.plan.variants):
        yield f'<tr><td class="v">{_mark(number)}<b>{_text(variant.name)}</b></td>'
        yield f"<td>{_text(settings_words(variant.settings))}</td></tr>"
    yield "</table></div>"


def _mark(number: int) -> str:
    look = look_of(number)
    return (
        f'<i style="display:inline-block;width:1.8rem;margin-right:.5rem;vertical-align:middle;'
        f'border-top:.2rem {look.border} var(--c{look.colour})"></i>'
    )


def _changes(result: RehearsalResult) -> Iterator[str]:
    names = [variant.name for variant in result.plan.variants]
    first = names[0]
    variant_judgements = [judgement for judgement in result.judgements if judgement.comparisons]
    if not variant_judgements:
        return
    rows = [
        Interval(NAMES[each.measure], each.least, each.median, each.most, names.index(variant_judgement.variant))
        for each_of_all in zip(*(variant_judgement.comparisons for variant_judgement in variant_judgements), strict=True)
        for variant_judgement, each in zip(variant_judgements, each_of_all, strict=True)
    ]
    yield f"<h2>Compared with {_text(first)}</h2>"
    shown = [printable(name) for name in names]
    described = f"Changes of every measure against {printable(first)}"
    yield "<figure><figcaption>Further left is less, and better <span>(median, and the range of all seeds)</span></figcaption>"
    for kind in ("wide", "narrow"):
        yield f'<div class="{kind}">{intervals(rows, shown, change, described, narrow=kind == "narrow")}</div>'
    yield "</figure>"
    for variant_judgement in variant_judgements:
        yield from _numbers(variant_judgement, result.question)


def _numbers(judgement: VariantJudgement, question: str | None) -> Iterator[str]:
    asked = QUESTIONS[question].measures if question else ()
    heads = ("measure", judgement.against, judgement.variant, "change", "range", "agree", "verdict")
    yield f"<h3>{_text(judgement.variant)} against {_text(judgement.against)}</h3>"
    yield '<div class="scroll"><table class="numbers"><thead><tr>'
    yield "".join(f"<th{' class=n' if 0 < at < 6 else ''}>{_text(head)}</th>" for at, head in enumerate(heads))
    yield "</tr></thead><tbody>"
    for each in judgement.comparisons:
        kind = {Verdict.BETTER: "better", Verdict.WORSE: "worse"}.get(each.verdict, "")
        yield f'<tr class="{"asked" if each.measure in asked else ""}"><td>{escape(NAMES[each.measure])}</td>'
        yield "".join(
            f'<td class="n" data-of="{_text(head)}">{escape(cell)}</td>'
            for head, cell in zip(heads[1:], comparison_cells(each), strict=False)
        )
        yield f'<td class="{kind}" data-of="verdict">{escape(str(each.verdict))}</td></tr>'
    yield "</tbody></table></div>"


def _charts(result: RehearsalResult) -> Iterator[str]:
    yield '<h2>Night by night</h2><p class="grey">Lines are medians over the seeds, shades show the range from least to most.</p>'
    yield '<div class="charts">'
    used, allocated = (_bands(result, of) for of in (lambda night: night.used, lambda night: night.allocated))
    chart = curves(allocated, "Allocated and used space by night", faint=used)
    yield _figure("Allocated, and used (thin)", "bytes of the device", chart)
    for name, about, of, axis in _SHOWN[:2]:
        yield _figure(NAMES[name].capitalize(), about, curves(_bands(result, of), NAMES[name], _AXES[axis]))
    written = _bands(result, lambda night: night.written, summed=True)
    yield _figure("Written", "to the device so far, in all", curves(written, "Bytes written so far"))
    ratio = _bands(result, lambda night: night.written, summed=True, per=lambda night: night.new)
    yield _figure("Write amplification", "written for each new byte, so far", curves(ratio, "Write amplification", _AXES["ratio"]))
    for name, about, of, axis in _SHOWN[2:]:
        yield _figure(NAMES[name].removesuffix(" in all").capitalize(), about, curves(_bands(result, of), NAMES[name], _AXES[axis]))
    yield "</div>"


def _figure(name: str, about: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(name)} <span>{escape(about)}</span></figcaption>{chart}</figure>"


def _bands(
    result: RehearsalResult,
    of: Callable[[NightReading], float],
    *,
    summed: bool = False,
    per: Callable[[NightReading], float] | None = None,
) -> dict[str, Band]:
    """Returns for each variant and night the minimum, median and maximum over the seeds.

    `summed` adds up all nights so far, `per` divides by another sum.
    """
    bands: dict[str, Band] = {}
    for variant in result.plan.variants:
        lines = [_line(run.nights, of, per, summed=summed) for run in result.runs if run.variant == variant.name and run.nights]
        if lines:
            bands[variant.name] = [(min(values), median(values), max(values)) for values in zip(*lines, strict=False)]
    return bands


def _line(
    nights: tuple[NightReading, ...],
    of: Callable[[NightReading], float],
    per: Callable[[NightReading], float] | None,
    *,
    summed: bool,
) -> list[float]:
    if not summed:
        return [of(night) for night in nights]
    line, total, other = [], 0.0, 0.0
    for night in nights:
        total += of(night)
        other += per(night) if per else 0.0
        line.append(total / other if per and other else 0.0 if per else total)
    return line


def _timelapses(result: RehearsalResult) -> Iterator[str]:
    timelapses = {run.variant: run.timelapse for run in result.runs if run.timelapse}
    if not timelapses:
        return
    yield '<h2>Heatmaps</h2><p class="grey">All block groups by virtual address, one night after the other, with the first '
    yield 'seed: white is data, blue metadata, black is free.</p><div class="charts">'
    for variant in result.plan.variants:
        if data := timelapses.get(variant.name):
            picture = b64encode(data).decode("ascii")
            words = f"Timelapse of the heatmaps of {_text(variant.name)}"
            yield f"<figure><figcaption>{_text(variant.name)}</figcaption>"
            yield f'<img alt="{words}" src="data:image/webp;base64,{picture}"></figure>'
    yield "</div>"


def _text(text: str) -> str:
    return escape(printable(text))
