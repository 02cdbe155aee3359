"""Files: browse any backup, see a file's versions, compare two backups, download. A path is only ever a name here: the root service
opens it, beneath one backup and through no symlink.
"""

from dataclasses import dataclass
from typing import Any

from flask import Blueprint, abort, redirect, render_template, request
from werkzeug.wrappers import Response as Answer

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import RequestRefused
from web import download as downloads
from web import errors
from web.access import require_visible_host, viewer
from web.files import data
from web.files.data import Beginning, beginning
from web.files.differences import LIMIT, HistoryPage, NeighbouringBackups, compare_at, history, neighbouring_backups
from web.files.errors import add_handlers
from web.files.links import PageLinks, add_filters
from web.request_values import number_of_request, path_of_request, path_of_text, which_of_request
from web.service_client import agent
from web.source import source

blueprint = Blueprint("files", __name__)
add_filters(blueprint)
add_handlers(blueprint)

_TITLES = {"name": "Name", "kind": "Kind", "size": "Size", "mode": "Mode", "owner": "Owner", "time": "Changed"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a folder's table. `sort` is what a click on its title asks for, `order` how it is sorted now."""

    title: str
    sort: str
    order: str | None
    number: bool = False


@blueprint.get("/files/<host>")
def browse(host: str) -> str | Answer:
    """Shows a folder of a backup, or the details of any other entry."""
    require_visible_host(host)
    which = which_of_request("backup") or "latest"
    if "quoted" in request.args:  # the form that chooses a backup carries only text
        return redirect(PageLinks(host, which).browse(data.text_of(path_of_text(request.args["quoted"]))), 303)
    sort = _sort(request.args.get("sort", "name"))
    path = path_of_request()
    listing = data.browse(agent(), host, which, path, number_of_request("offset", 0), data.page_size(path), sort)
    whiches = data.choices(source().catalogue.backups(host), source().now)
    past = _past(listing)
    given = {
        "at": PageLinks(host, listing.backup.name),
        "listing": listing,
        "known": whiches,
        "zone": source().site.zone,
        "around": neighbouring_backups(past, listing.backup.name) if past else NeighbouringBackups(None, None),
        "may_restore": _may_restore(),
        "history": past,
        "unsorted": sort.removeprefix("-") if sort != listing.sort else "",
    }
    if listing.entry.kind == "folder":
        return render_template(
            "files/browse.html",
            **given,
            columns=[_column(title, name, listing.sort) for name, title in _TITLES.items()],
            page_starts=_starts(listing),
        )
    return render_template("files/file.html", **given, text=_text(listing))


@blueprint.get("/files/<host>/versions")
def versions(host: str) -> str:
    """Shows every version of a path over all backups."""
    require_visible_host(host)
    path, by_content = path_of_request(), request.args.get("content") == "1"
    past = history(agent(), host, path, by_content, which_of_request("since"))
    given = {"at": PageLinks(host, which_of_request("backup")), "history": past, "path": data.text_of(path)}
    return render_template("files/versions.html", **given, may_restore=_may_restore(), zone=source().site.zone)


@blueprint.get("/files/<host>/compare")
def compare(host: str) -> str | Answer:
    """Shows the differences at a path between two backups."""
    require_visible_host(host)
    whiches = data.choices(source().catalogue.backups(host), source().now)
    after = which_of_request("after") or "latest"
    before = which_of_request("before") or data.one_before(whiches, after)
    if "quoted" in request.args:
        path = data.text_of(path_of_text(request.args["quoted"]))
        return redirect(PageLinks(host).compare(path, before, after), 303)
    limit = min(max(number_of_request("limit", LIMIT), 1), 5000)
    since = path_of_text(request.args["since"]) if "since" in request.args else None
    compared = compare_at(agent(), host, path_of_request(), before, after, limit, since)
    given = {"at": PageLinks(host, compared.after), "found": compared, "since": since and data.text_of(since)}
    return render_template("files/compare.html", **given, known=whiches, zone=source().site.zone)


@blueprint.get("/files/<host>/download")
def download(host: str) -> Answer:
    """Sends a file, or a file or folder as an archive, as a stream."""
    require_visible_host(host)
    kind = request.args.get("as", "file")
    if kind not in downloads.KINDS:
        abort(400, "a download is as file, tar or zip")
    if request.headers.get("Sec-Fetch-Site") == "cross-site":  # a link from elsewhere leads to the page, and starts nothing
        return redirect(PageLinks(host, which_of_request("backup")).browse(data.text_of(path_of_request())), 303)
    if kind != "file" and request.environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return errors.page(
            426, "An archive needs HTTP/1.1: over 1.0 a client cannot see whether it is complete", "nginx: proxy_http_version 1.1"
        )
    path, which, who = path_of_request(), which_of_request("backup") or "latest", viewer()
    with downloads.place(who) as places:
        stream = agent().stream("download", host=host, backup=which, path=data.text_of(path), **{"as": kind})
        return downloads.sent(stream, downloads.name_of(host, which, path, kind), who, places)


def _may_restore() -> bool:
    return viewer().operator and not source().site.no_restores


def _sort(text: str) -> str:
    if text.removeprefix("-") not in data.SORTS:
        abort(400, f"sort is one of: {', '.join(data.SORTS)}, with a minus before it to go down")
    return text


def _column(title: str, name: str, sort: str) -> Column:
    """Returns the sort order for a click on a column: a second click reverses it; sizes and times begin with the greatest."""
    is_number = name in ("size", "owner")
    first = f"-{name}" if name in ("size", "time") else name
    if sort.removeprefix("-") != name:
        return Column(title, first, None, is_number)
    turned = name if sort.startswith("-") else f"-{name}"
    return Column(title, turned, "descending" if sort.startswith("-") else "ascending", is_number)


def _starts(listing: data.Listing) -> list[int | None]:
    """Returns the pages that have a link: the first, the last and those around this one; None for the gaps between."""
    last = (listing.total - 1) // listing.limit if listing.total else 0
    here = listing.offset // listing.limit
    wanted = sorted({page for page in (0, last, *range(here - 2, here + 3)) if 0 <= page <= last})
    found: list[int | None] = []
    for before, page in zip([-1, *wanted], wanted, strict=False):
        if page > before + 1:
            found.append(None)
        found.append(page * listing.limit)
    return found


def _past(listing: data.Listing) -> HistoryPage | None:
    """Returns its history; None if the service is busy, because the page works without it."""
    try:
        return history(agent(), listing.host, data.bytes_of(listing.entry.path))
    except RequestRefused:
        return None


def _text(listing: data.Listing) -> Beginning | None:
    """Returns the beginning of a text file; None if it cannot be read, because the page works without it."""
    entry = listing.entry
    if entry.kind != "file" or not entry.size or source().site.no_downloads:
        return None
    try:
        asked: dict[str, Any] = {"host": listing.host, "backup": listing.backup.name, "path": entry.path, "as": "file"}
        with agent().stream("download", **asked) as stream:
            return beginning(stream, entry.size)
    except OperatorError:
        return None
