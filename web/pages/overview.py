"""The first page, and the parts of it that renew themselves."""

from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, render_template, url_for
from markupsafe import Markup

from btrkeep.charts.trend import small_chart
from web.access import viewer
from web.alarms import grouped
from web.data.hosts import bad_backups
from web.data.overview import nights, overview
from web.pool.data import trend
from web.pool.page import painter
from web.running import running
from web.source import RequestContext, source

blueprint = Blueprint("overview", __name__)

_DAYS = 90


@dataclass(frozen=True, slots=True)
class Picture:
    """The address of a heatmap, and of when it is."""

    address: str
    taken: datetime


@blueprint.get("/")
def index() -> str:
    """Shows the overview."""
    here, who = source(), viewer()
    found = overview(here, who)
    return render_template(
        "overview/overview.html",
        page=found,
        nights=found.nights,
        running=found.running,
        alarms=grouped(found.alarms),
        is_known=found.alarms_looked is not None,
        damaged=any(count.damaged for host, count in bad_backups(here).items() if who.may_see(host)),
        chart=space_chart(here) if found.pool else None,
        picture=_picture(here) if found.pool else None,
    )


@blueprint.get("/overview/night")
def night() -> str:
    """Returns the state of the night, for the page to refresh."""
    here = source()
    return render_template("overview/night.html", nights=nights(here, viewer()))


@blueprint.get("/overview/running")
def now() -> str:
    """Returns the running jobs, for the page to refresh."""
    return render_template("overview/running.html", running=running(source(), viewer()))


def space_chart(here: RequestContext) -> Markup | None:
    """Draws allocated and used space over three months; None if the filesystem is unknown."""
    filesystem = here.site.filesystem
    if filesystem is None:
        return None
    found = here.cached_for_the_hour(("trend", filesystem, _DAYS), lambda: trend(here.catalogue, filesystem, here.now, _DAYS))
    return small_chart(found, here.site.zone)


def _picture(here: RequestContext) -> Picture | None:
    """Returns the newest heatmap; None without one."""
    recorded = painter().states.gallery(here.site.filesystem).recorded
    return Picture(url_for("pool.picture_latest"), recorded[-1].taken) if recorded else None
