"""Expiry: its runs, and what waited for the kernel's cleaner."""

from flask import Blueprint, render_template

from web.access import whole_pool
from web.data.expiry import expiries
from web.data.trend import SPANS, USUAL, trend
from web.pages.pool import filesystem
from web.pages.words import number
from web.source import source

blueprint = Blueprint("expiry", __name__, url_prefix="/pool/expiry")


@blueprint.get("")
@whole_pool
def index() -> str:
    """All runs, and a chart of what waited."""
    from web.charts.trend import has, words

    here, of = source(), filesystem()
    wanted = number("days", USUAL, 36500) or USUAL
    days = min(SPANS, key=lambda one: abs(one - wanted))
    return render_template(
        "pool/expiry.html",
        runs=here.cached("expiries", lambda: expiries(here.catalogue, here.now)),
        trend=here.cached(("trend", of, days), lambda: trend(here.catalogue, of, here.now, days)),
        spans=SPANS,
        words=words,
        has=has,
    )
