"""The pool: its space over months, a day of its disks, and the score of its free space.

The distribution of scores and of the sizes of free extents is drawn as vertical bars, each with its label below.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from hashlib import blake2b
from math import ceil
from zoneinfo import ZoneInfo

from flask import Blueprint, Response, abort, current_app, render_template, request

from btrkeep.charts.day import NAMES as DAY_CHARTS
from btrkeep.charts.day import day_chart
from btrkeep.charts.day import words as day_words
from btrkeep.charts.frame import AxisScale, number_scale, size_scale
from btrkeep.charts.svg import FONT, ChartStyle, Sheet, style_of
from btrkeep.charts.trend import NAMES as TREND_CHARTS
from btrkeep.charts.trend import has as has_chart
from btrkeep.charts.trend import trend_chart
from btrkeep.charts.trend import words as trend_words
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, size_short
from web.filters import backupd, pool_option
from web.pool.data import (
    SPANS,
    DayView,
    Trend,
    TrendPoint,
    day_view,
    outlooks,
    parse_day,
    pool_health,
    pool_now,
    shortest_span,
    trend,
)
from web.pool.pictures import FOLDER, DrawingRequest, Gallery, Painter, RecordedState, wish_of
from web.pool.scores import Distribution, ScoreClass, Scores, SizeClass, distribution, scores
from web.request_values import number
from web.source import needs_all_hosts, source

blueprint = Blueprint("pool", __name__, url_prefix="/pool")
_PAINTER = "btrkeep-painter"
_LINES = 60


def filesystem() -> str:
    """Returns the UUID of the samples; aborts with 404 if it is unknown."""
    identifier = source().config.filesystem
    if identifier is None:
        abort(404, f"the pool has no samples yet: `{backupd()} sample` takes the first sample")
    return identifier


def painter() -> Painter:
    """Returns the painter of this application, which caches its pictures."""
    current: Painter = current_app.extensions.setdefault(_PAINTER, Painter(source().settings.state / FOLDER))
    return current


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows space: now, over months, and the forecast."""
    here, of = source(), filesystem()
    days = requested_days()
    return render_template(
        "pool/space.html",
        health=pool_health(here),
        now=here.cached(("pool-now", of), lambda: pool_now(here.catalogue, of)),
        trend=trend_of(days),
        numbers=_table_points(trend_of(days).points),
        outlooks=here.cached(("outlooks", of), lambda: outlooks(here.catalogue, of, here.now)),
        spans=SPANS,
        words=trend_words,
        has=has_chart,
    )


def requested_days() -> int:
    """Returns the requested number of days; by default all of the history, at most half a year."""
    wanted = number("days", None, 36500)
    return min(SPANS, key=lambda days: abs(days - wanted)) if wanted else shortest_span(trend_of)


def trend_of(days: int) -> Trend:
    """Returns samples of that many days; cached between requests."""
    here, of = source(), filesystem()
    return here.cached(("trend", of, days), lambda: trend(here.catalogue, of, here.now, days))


def _table_points(points: tuple[TrendPoint, ...]) -> tuple[TrendPoint, ...]:
    """Returns the rows of a table: the last point, and others at equal distances before it."""
    step = -(-len(points) // _LINES)
    return points[::-1][:: step or 1][::-1]


@blueprint.get("/charts/trend/<name>.svg")
@needs_all_hosts
def trend_picture(name: str) -> Response:
    """Returns a chart over months."""
    if name not in TREND_CHARTS:
        abort(404, "there is no such chart")
    month, zone = trend_of(requested_days()), source().config.zone
    return svg(lambda style: trend_chart(name, month, zone, style))


@blueprint.get("/day")
@needs_all_hosts
def day() -> str:
    """Shows a day of the disks, and the jobs that ran."""
    zone = source().config.zone
    return render_template(
        "pool/day.html", day=_day(), words=partial(day_words, zone=zone), today=source().now.astimezone(zone).date()
    )


def _day() -> DayView:
    here, of = source(), filesystem()
    wanted = _wanted_day()
    return here.cached(("day", of, wanted), lambda: day_view(here.catalogue, of, here.config.zone, here.now, wanted))


def _wanted_day() -> date | None:
    try:
        return parse_day(request.args.get("date"))
    except ValueError:
        abort(400, "write the date like 2026-11-20")


@blueprint.get("/charts/day/<name>.svg")
@needs_all_hosts
def day_picture(name: str) -> Response:
    """Returns the chart of bytes written, or read, over a day."""
    if name not in DAY_CHARTS:
        abort(404, "there is no such chart")
    shown = _day()
    return svg(lambda style: day_chart(name, shown, ZoneInfo(shown.zone), style))


@blueprint.get("/score")
@needs_all_hosts
def score() -> str:
    """Shows how fragmented the free space is."""
    gallery = painter().states.gallery(filesystem())
    newest = gallery.recorded[-1] if gallery.recorded else None
    return render_template(
        "pool/score.html",
        scores=_scores(),
        trend=trend_of(requested_days()),
        distribution=distribution(painter().state(newest)) if newest else None,
        newest=newest,
        class_words=class_words,
        score_words=score_words,
        size_words=size_words,
        words=trend_words,
        has=has_chart,
        spans=SPANS,
    )


def _scores() -> Scores:
    here, of, days = source(), filesystem(), requested_days()
    return here.cached(("scores", of, days), lambda: scores(here.catalogue, of, here.now, days))


@blueprint.get("/charts/scores.svg")
@needs_all_hosts
def scores_picture() -> Response:
    """Returns a chart of block groups by their score, of the newest recorded state."""
    gallery = painter().states.gallery(filesystem())
    current = distribution(painter().state(gallery.recorded[-1])) if gallery.recorded else None
    if current is None:
        abort(404, "no scores were recorded")
    return svg(lambda style: score_chart(current, style))


@blueprint.get("/charts/sizes.svg")
@needs_all_hosts
def sizes_picture() -> Response:
    """Returns the chart of the free space by the size of the free extents."""
    current = _scores()
    return svg(lambda style: size_chart(current.sizes, style))


@blueprint.get("/picture.png")
@needs_all_hosts
def picture_latest() -> Response:
    """Returns the newest heatmap with the given `size`, `sort`, `curve` and `colour`; always on black. Aborts with 404 if there
    is none.
    """
    gallery = painter().states.gallery(source().config.filesystem)
    if not gallery.recorded:
        abort(404, f"there is no picture yet: `btrfs-heatmap nightly {pool_option()}` draws the first")
    return picture(painter(), gallery, gallery.recorded[-1], wish_of(request.args))


def svg(draw: Callable[[ChartStyle], bytes]) -> Response:
    """Returns a chart for the background and the width in the request."""
    return revalidated(draw(style_of(request.args)), "image/svg+xml")


def picture(painter: Painter, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> Response:
    """Returns a picture of a recorded state. Aborts with 404 if it cannot be drawn: it may have no scores, or may have been
    deleted.
    """
    try:
        return revalidated(painter.png(gallery, recorded, wish), "image/png")
    except OperatorError as error:
        abort(404, f"{error.message}; {error.hint}")


def revalidated(data: bytes, kind: str) -> Response:
    """Adds cache headers: the browser asks each time, and downloads the picture only if it has changed."""
    answer = Response(data, mimetype=kind)
    answer.headers["Cache-Control"] = "private, no-cache"
    answer.set_etag(blake2b(data, digest_size=12).hexdigest())
    answer.make_conditional(request)  # changes the answer itself
    return answer


_HEIGHT, _TOP, _BOTTOM, _RIGHT = 190, 14, 24, 6
_WIDEST = 90
"""Maximum width in pixels of a bar with its gap: three bars take less of the sheet than thirty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar."""

    label: str
    """Below it."""
    value: float
    """Its height."""
    strong: bool = False
    """True if it has another colour, to draw attention."""


def bar_chart(title: str, bars: Sequence[Bar], scale: AxisScale, style: ChartStyle, colour: str = "blue") -> bytes:
    """Returns the bars as SVG. If not all labels fit, draws only every second or third one."""
    left = max(style.width_of(scale.words(mark)) for mark in scale.marks()) + 8
    right = min(style.width, round(left) + _RIGHT + _WIDEST * max(len(bars), 2)) - _RIGHT
    sheet = Sheet(style, _HEIGHT)
    bottom, tall = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    for mark in scale.marks():
        y = bottom - mark / scale.top * tall
        sheet.line(left, y, right, y)
        sheet.text(left - 6, y + FONT / 3, scale.words(mark), anchor="end")
    step = (right - left) / max(len(bars), 1)
    every = ceil(max((style.width_of(bar.label) + 4 for bar in bars), default=0) / step)
    for place, bar in enumerate(bars):
        x, height = left + place * step, max(bar.value / scale.top * tall, 1.0 if bar.value else 0.0)
        sheet.rect(x + step * 0.08, bottom - height, step * 0.84, height, "red" if bar.strong else colour)
        if place % every == 0:
            half = style.width_of(bar.label) / 2
            sheet.text(min(max(x + step / 2, half), style.width - half), bottom + 5 + FONT, bar.label, anchor="middle")
    return sheet.document(title)


def class_words(score_class: ScoreClass) -> str:
    """Returns the name of a class of scores: "50 to 100", "250 and more"."""
    return f"{score_class.least:g} and more" if score_class.most is None else f"{score_class.least:g} to {score_class.most:g}"


def score_words(shares: Distribution) -> str:
    """Describes the chart of scores, for screen readers."""
    parts = [
        f"{score_class.block_groups:,} score {class_words(score_class)}"
        for score_class in shares.classes
        if score_class.block_groups
    ]
    return f"data block groups by their score: {', '.join(parts) or 'none'}"


def score_chart(shares: Distribution, style: ChartStyle) -> bytes:
    """Draws block groups by their score; the bad ones in another colour."""
    bars = [
        Bar(
            f"{score_class.least:g}+" if score_class.most is None else f"{score_class.least:g}-{score_class.most:g}",
            score_class.block_groups,
            score_class.most is None,
        )
        for score_class in shares.classes
    ]
    return bar_chart(score_words(shares), bars, number_scale(max(bar.value for bar in bars)), style)


def size_words(sizes: Sequence[SizeClass]) -> str:
    """Describes the chart of sizes, for screen readers."""
    whole = sum(size.bytes for size in sizes)
    large = sum(size.bytes for size in sizes if size.least >= 16 << 20)
    count = sum(size.extents for size in sizes)
    return f"{format_size(whole)} are free in {counted(count, 'extent')}; {format_size(large)} in extents of 16 MiB and more"


def size_chart(sizes: Sequence[SizeClass], style: ChartStyle) -> bytes:
    """Free bytes by the size of the free extents."""
    bars = [Bar(size_short(size.least), size.bytes) for size in sizes]
    return bar_chart(size_words(sizes), bars, size_scale(max((size.bytes for size in sizes), default=0)), style, "green")
