"""The search box of every page, and the saved links of a user.

Found are pages, groups, hosts (by the words of `web.hosts`), and jobs of the last two weeks. Saved links are addresses of filters
with a name, which the login service keeps for each user.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.units import printable
from web.auth import LONGEST_LINK_NAME, sessions
from web.hosts.data import Query, every_row, host_list, visible_to
from web.jobs.data import USUAL, JobRow, by_hand, jobs
from web.request_values import within
from web.source import RequestContext, source, viewer, visible_hosts

blueprint = Blueprint("search", __name__)
_MOST = 20
_LONGEST = 200
PAGES = {
    "Overview": "overview.index",
    "Hosts": "hosts.index",
    "Copies": "copies.index",
    "Proof: verified, restored, copied": "proof.index",
    "Jobs": "jobs.index",
    "Log": "log.index",
    "Account, password, sessions": "account.account",
}
POOL_PAGES = {
    "Pool, space, forecast": "pool.index",
    "A day of the disks": "pool.day",
    "Heatmap": "heatmap.index",
    "Timelapse": "heatmap.timelapse",
    "Free space, fragmentation, score": "pool.score",
    "Balance": "balance.index",
    "Expiry": "expiry.index",
    "Doctor": "doctor.index",
    "Proposed changes": "changes.index",
}


@dataclass(frozen=True, slots=True)
class Matches:
    """What was found: of each kind the first, each with its address."""

    pages: tuple[tuple[str, str], ...]
    """Titles and addresses."""
    groups: tuple[tuple[str, str], ...]
    """Names, and addresses of their lists of hosts."""
    hosts: tuple[str, ...]
    """Names."""
    more_hosts: int
    """Number of further hosts."""
    jobs: tuple[JobRow, ...]
    """The newest first."""


@blueprint.get("/search")
def index() -> str | Response:
    """Shows the matches; goes to the host if the text is its name, and to a path of its newest backup for HOST:/PATH."""
    text = request.args.get("q", "").strip()[:_LONGEST]
    here, who = source(), viewer()
    names, (name, colon, path) = {row.host for row in visible_to(who, every_row(here))}, text.partition(":/")
    if text in names:
        return redirect(url_for("hosts.host", host=text))
    if colon and name in names:
        return redirect(url_for("files.browse", host=name, typed=f"/{path}"))
    return render_template("search.html", text=text, found=_matches(here, text) if text else None)


def _matches(here: RequestContext, text: str) -> Matches:
    who, words = viewer(), text.casefold().split()
    listed = host_list(here, who, Query(q=text))
    pages = PAGES if who.limited else PAGES | POOL_PAGES
    return Matches(
        tuple((name, url_for(view)) for name, view in pages.items() if _has(name, words)),
        tuple((name, url_for("hosts.index", group=name)) for name in listed.groups if _has(name, words))[:_MOST],
        tuple(row.host for row in listed.rows[:_MOST]),
        max(0, listed.matching - _MOST),
        tuple(row for row in _recent_jobs(here) if row.id and _has(f"{row.id} {row.title} {row.state}", words))[:_MOST],
    )


def _has(text: str, words: Iterable[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)


def _recent_jobs(here: RequestContext) -> tuple[JobRow, ...]:
    """Returns the jobs of two weeks; a viewer who is limited to hosts gets only the backups of these."""
    hosts, since = visible_hosts(), here.now - timedelta(days=USUAL)
    if hosts is not None:
        return tuple(by_hand(here.catalogue, hosts, here.now, since))
    of, red = here.config.filesystem, here.config.red_share
    return here.cached(("jobs", of, USUAL, (), red), lambda: jobs(here.catalogue, of, here.now, USUAL, (), red))


def saved_links() -> list[Mapping[str, str]]:
    """Returns the links that the viewer has saved, by name."""
    return [{"name": link["name"], "address": within(link["address"])} for link in sessions.ask("links", g.word)]


@blueprint.post("/saved")
def save() -> Response:
    """Saves the address of a filter under a name, in place of another of that name."""
    viewer()
    address, name = within(request.form.get("address")), " ".join(request.form.get("name", "").split())
    if not name or len(name) > LONGEST_LINK_NAME:
        abort(400, f"a saved view has a name of at most {LONGEST_LINK_NAME} characters")
    sessions.ask("save_link", g.word, name=name, address=address)
    flash(f"Saved as {printable(name)}.")
    return redirect(address, 303)


@blueprint.post("/saved/remove")
def remove() -> Response:
    """Removes a saved link."""
    viewer()
    sessions.ask("remove_link", g.word, name=request.form.get("name", ""))
    return redirect(within(request.form.get("address")), 303)
