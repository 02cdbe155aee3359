"""The pool: its space over months, a day of its disks, and the score of its free space.

The distribution of scores and of the sizes of free extents is drawn as vertical bars, each with its label below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from hashlib import blake2b
from math import ceil
from typing import Any

from flask import Blueprint, Response, abort, current_app, render_template, request, url_for
from markupsafe import Markup

from btrkeep.charts.day import day_chart
from btrkeep.charts.frame import AxisScale, number_scale, plot, size_scale
from btrkeep.charts.svg import IN_PAGE, Readings, Sheet
from btrkeep.charts.trend import TrendContext, trend_chart
from btrkeep.charts.trend import has as has_chart
from btrkeep.decisions.day_phases import Phase
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, size_short
from web.filters import backupd, pool_option
from web.pool.data import (
    SPANS,
    DayView,
    Trend,
    TrendPoint,
    both_forecasts,
    day_view,
    outlooks,
    parse_day,
    part_of_day,
    pool_health,
    pool_now,
    shortest_span,
    trend,
    trend_between,
    trend_context,
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
    return render_template(
        "pool/space.html",
        health=pool_health(here),
        now=here.cached(("pool-now", of), lambda: pool_now(here.catalogue, of)),
        numbers=_table_points(shown_trend().points),
        outlooks=here.cached(("outlooks", of), lambda: outlooks(here.catalogue, of, here.now)),
        **trend_values(),
    )


_SHORTEST = 600
"""Seconds: two samples."""


def zoomed() -> tuple[datetime, datetime] | None:
    """Returns the part of the time that was chosen in a chart, as `from` and `until` in seconds since 1970; None: all of it. An
    invalid part is ignored.
    """
    since, until = number("from"), number("until")
    latest = int(source().now.timestamp())
    if since is None or until is None or (until := min(until, latest)) - since < _SHORTEST:
        return None
    return datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC)


def shown_trend() -> Trend:
    """Returns the trend of the chosen part, or of the requested number of days."""
    here, of, part = source(), filesystem(), zoomed()
    if part is None:
        return trend_of(requested_days())
    return here.cached(("trend", of, part), lambda: trend_between(here.catalogue, of, *part))


def trend_values() -> dict[str, Any]:
    """Returns what a template with charts of the trend needs."""
    shown = shown_trend()
    return {
        "trend": shown,
        "zoomed": zoomed() is not None,
        "chart": partial(_trend_chart, shown),
        "has": has_chart,
        "spans": SPANS,
    }


def _trend_chart(shown: Trend, name: str) -> Markup:
    """Draws a chart of the trend."""
    here, of, part = source(), filesystem(), zoomed()
    return here.cached(("chart", name, of, part or shown.days), lambda: trend_chart(name, shown, here.config.zone, _context(shown)))


def _context(shown: Trend) -> TrendContext:
    here, of = source(), filesystem()
    forecast = None if zoomed() else here.cached(("forecasts", of), lambda: both_forecasts(here.catalogue, of, here.now))[1]
    return trend_context(here.catalogue, of, shown, here.config.used_limit, forecast)


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


@blueprint.get("/day")
@needs_all_hosts
def day() -> str:
    """Shows a day of the disks, and the jobs that ran."""
    zone, whole, part = source().config.zone, _day(), zoomed()
    shown = part_of_day(whole, *part) if part else whole
    return render_template(
        "pool/day.html",
        day=whole,
        shown=shown,
        chart=partial(day_chart, day=shown, zone=zone, address=_address_of),
        today=source().now.astimezone(zone).date(),
    )


def _address_of(phase: Phase) -> str:
    """Returns the address of the job that ran the longest in this time."""
    part: dict[str, Any] = {"from": int(phase.start.timestamp()), "until": int(phase.end.timestamp())}
    return url_for("jobs.at", kind=phase.kind, **part)


def _day() -> DayView:
    here, of = source(), filesystem()
    wanted = _wanted_day()
    return here.cached(("day", of, wanted), lambda: day_view(here.catalogue, of, here.config.zone, here.now, wanted))


def _wanted_day() -> date | None:
    try:
        return parse_day(request.args.get("date"))
    except ValueError:
        abort(400, "write the date like 2026-11-20")


@blueprint.get("/score")
@needs_all_hosts
def score() -> str:
    """Shows how fragmented the free space is."""
    gallery = painter().states.gallery(filesystem())
    newest = gallery.recorded[-1] if gallery.recorded else None
    shares = distribution(painter().state(newest)) if newest else None
    return render_template(
        "pool/score.html",
        scores=_scores(),
        distribution=shares,
        newest=newest,
        class_words=class_words,
        score_chart=score_chart,
        size_chart=size_chart,
        **trend_values(),
    )


def _scores() -> Scores:
    here, of, days = source(), filesystem(), requested_days()
    return here.cached(("scores", of, days), lambda: scores(here.catalogue, of, here.now, days))


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


_HEIGHT = 220
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


def bar_chart(title: str, bars: Sequence[Bar], scale: AxisScale, name: str, colour: str = "blue") -> Markup:
    """Returns the bars as a part of a page. If not all labels fit, draws only every second or third one. `name`: of the values."""
    style = IN_PAGE
    sheet = Sheet(style, _HEIGHT)
    area = plot(sheet, scale)
    step = min((area.right - area.left) / max(len(bars), 1), _WIDEST)
    every = ceil(max((style.width_of(bar.label) + 4 for bar in bars), default=0) / step)
    rows = []
    for place, bar in enumerate(bars):
        x, height = area.left + place * step, max(area.bottom - area.y(bar.value), 1.0 if bar.value else 0.0)
        sheet.rect(x + step * 0.08, area.bottom - height, step * 0.84, height, "red" if bar.strong else colour)
        rows.append((x + step / 2, (bar.label, scale.words(bar.value))))
        if place % every == 0:
            half = style.width_of(bar.label) / 2
            middle = min(max(x + step / 2, half), style.width - half)
            sheet.text(middle, area.bottom + 5 + style.font, bar.label, anchor="middle")
    sheet.readings = Readings((area.left, area.top, area.right, area.bottom), (name,), rows)
    return sheet.markup(title)


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


def score_chart(shares: Distribution) -> Markup:
    """Draws block groups by their score; the bad ones in another colour."""
    bars = [
        Bar(
            f"{score_class.least:g}+" if score_class.most is None else f"{score_class.least:g}-{score_class.most:g}",
            score_class.block_groups,
            score_class.most is None,
        )
        for score_class in shares.classes
    ]
    return bar_chart(score_words(shares), bars, number_scale(max(bar.value for bar in bars)), "block groups")


def size_words(sizes: Sequence[SizeClass]) -> str:
    """Describes the chart of sizes, for screen readers."""
    whole = sum(size.bytes for size in sizes)
    large = sum(size.bytes for size in sizes if size.least >= 16 << 20)
    count = sum(size.extents for size in sizes)
    return f"{format_size(whole)} are free in {counted(count, 'extent')}; {format_size(large)} in extents of 16 MiB and more"


def size_chart(sizes: Sequence[SizeClass]) -> Markup:
    """Free bytes by the size of the free extents."""
    bars = [Bar(size_short(size.least), size.bytes) for size in sizes]
    return bar_chart(size_words(sizes), bars, size_scale(max((size.bytes for size in sizes), default=0)), "free", "green")
