"""Expiry: its runs, and what waited for the kernel's cleaner."""

from flask import Blueprint, render_template

from btrkeep.charts.trend import has, words
from web.access import needs_all_hosts
from web.data.expiry import expiries
from web.data.trend import SPANS
from web.pages.pool import requested_days, trend_of
from web.source import source

blueprint = Blueprint("expiry", __name__, url_prefix="/pool/expiry")


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows all runs, and a chart of waiting subvolumes."""
    here = source()
    return render_template(
        "pool/expiry.html",
        runs=here.cached("expiries", lambda: expiries(here.catalogue, here.now)),
        trend=trend_of(requested_days()),
        spans=SPANS,
        words=words,
        has=has,
    )
