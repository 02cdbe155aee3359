"""Files: browse any backup, see a file's versions, compare two backups, download. A path is only a name here: the root service
opens it, in one backup and through no symlink.

Templates have paths as texts, as in web.files.data; PageLinks returns their addresses. A missing backup or path, and a root service
that does not answer, have their own error pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

from flask import Blueprint, Response, abort, jsonify, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as Answer

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import parse_backup_name, printable
from web import download as downloads
from web import error_pages
from web.files import data
from web.files.data import Beginning, beginning, bytes_of
from web.files.differences import LIMIT, HistoryPage, NeighbouringBackups, compare_at, history, neighbouring_backups
from web.filters import comes_twice
from web.request_values import (
    number_of_request,
    path_of_request,
    path_of_text,
    path_query,
    path_text,
    paths_of_form,
    which_of_request,
)
from web.service_client import root_service
from web.source import require_visible_host, source, viewer

MOST_PATHS = 1000
"""Maximum number of chosen paths; the root service has the same limit."""


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The addresses around one backup of a host. `backup` is its name, or the requested one if it does not exist."""

    host: str
    backup: str | None = None

    def browse(self, path: str, backup: str | None = None, **more: str | int | None) -> str:
        """Returns the address of the folder or file at a path, in this backup or another."""
        return self._to("files.browse", path, backup=backup or self.backup, **more)

    def versions(self, path: str, **more: str | int | None) -> str:
        """Returns the address of its versions over all backups."""
        return self._to("files.versions", path, backup=self.backup, **more)

    def compare(self, path: str, before: str, after: str, **more: str | int | None) -> str:
        """Returns the address of the differences at a path between two backups."""
        return self._to("files.compare", path, before=before, after=after, **more)

    def download(self, path: str, kind: str, backup: str | None = None) -> str:
        """Returns the address of a file ("file"), or of a file or folder as "tar" or "zip"."""
        return self._to("files.download", path, backup=backup or self.backup, **{"as": kind})

    def search(self, path: str, find: str) -> str:
        """Returns the address of a search below a folder."""
        return self._to("files.search", path, backup=self.backup, find=find)

    def restore(self, path: str, backup: str | None = None) -> str:
        """Returns the address of the form to restore."""
        return self._to("restore.form", path, backup=backup or self.backup)

    def _to(self, endpoint: str, path: str, **more: str | int | None) -> str:
        return f"{url_for(endpoint, host=self.host)}?{path_query(bytes_of(path), **more)}"


def steps(path: str) -> Iterator[str]:
    """Yields the folders above a path, the root first, and the path itself."""
    names = [name for name in path.split("/") if name]
    return ("/" + "/".join(names[:count]) for count in range(len(names) + 1))


def last_name(path: str) -> str:
    """Returns the last component; "/" for the root."""
    return path.rsplit("/", 1)[-1] or "/"


def folder_of(path: str) -> str:
    """Returns the folder that contains it; for the root, the root."""
    return path.rsplit("/", 1)[0] or "/"


def below(path: str, folder: str) -> str:
    """Returns a path relative to a folder; "." for the folder itself, or for a file that is shown alone."""
    return path.removeprefix(folder.rstrip("/")).lstrip("/") or "."


def quoted(path: str) -> str:
    """Returns a path for a hidden field."""
    return path_text(bytes_of(path))


def is_escaped(text: str) -> bool:
    """Returns True if `printable` changes the name."""
    return printable(text) != text


def backup_day(name: str, zone: ZoneInfo) -> str:
    """Returns when a backup started, from its name: 2026-11-20 22:00:03 in the pool's zone."""
    started = parse_backup_name(name)
    return local_time(started, zone) if started else printable(name)


def local_time(moment: datetime, zone: ZoneInfo) -> str:
    """Returns a time in the pool's zone. Backups of the same minute, or of the hour that occurs twice, have different texts."""
    local = moment.astimezone(zone)
    return f"{local:%Y-%m-%d %H:%M:%S}{f' {local:%Z}' if comes_twice(moment, zone) else ''}"


_FIELDS = {"mtime": "time", "xattrs": "attributes", "mount": "a mount (not compared below)"}
_WHATS = {"kind": "of another kind"}


def field_word(field: str) -> str:
    """Returns the field in which two versions differ, as a word."""
    return _FIELDS.get(field, field)


def what_word(kind: str) -> str:
    """Returns how two backups differ at a path, as a word."""
    return _WHATS.get(kind, kind)


def add_filters(blueprint: Blueprint) -> None:
    """Adds the filters for the templates of files and restore."""
    for function in (steps, last_name, folder_of, quoted, is_escaped, backup_day, local_time, field_word, what_word, below):
        blueprint.add_app_template_filter(function)


def add_handlers(blueprint: Blueprint) -> None:
    """Adds the handlers to a blueprint that asks the root service; other errors are handled as everywhere."""
    blueprint.register_error_handler(RequestRefused, refused)
    blueprint.register_error_handler(Absent, absent)
    blueprint.register_error_handler(downloads.TooManyDownloads, too_many)


def absent(error: Absent) -> Response:
    """Handles a root service that does not listen."""
    unit = f"btrkeep-serve@{source().settings.pool}.socket"
    return error_pages.page(503, printable(error.message), f"On the backup server: systemctl status {unit}")


def too_many(error: downloads.TooManyDownloads) -> Response:
    """Asks the user to try again later."""
    return error_pages.page(429, error.message, error.hint)


def refused(error: RequestRefused) -> Response:
    """Handles a refusal by the service. For a missing backup or path the page offers alternatives."""
    if error.kind != "missing" or not request.view_args:
        return error_pages.operator_error_page(error)
    host = request.view_args["host"]
    asked = next((backup_name for name in ("backup", "after", "before") if (backup_name := request.values.get(name))), "latest")
    path = data.text_of(path_of_request())
    if _listing_or_none(host, asked, b"/"):
        return _no_path(error, host, asked, path)
    return _gone(error, host, asked, path)


def _gone(error: RequestRefused, host: str, asked: str, path: str) -> Response:
    backup_choices = data.choices(source().catalogue.backups(host), source().now)
    near = data.nearest([which for which in backup_choices if which.name != asked], asked)
    given = {"asked": asked, "near": near, "choices": backup_choices, "zone": source().config.zone}
    return make_response(render_template("files/gone.html", at=PageLinks(host), path=path, error=error, **given), 404)


def _no_path(error: RequestRefused, host: str, backup: str, path: str) -> Response:
    above = _nearest_folder(host, backup, data.bytes_of(path))
    alike = _similar_names(above, path) if above else []
    given = {"at": PageLinks(host, backup), "path": path, "error": error, "above": above, "alike": alike}
    return make_response(render_template("files/no_path.html", **given), 404)


def _listing_or_none(host: str, backup: str, path: bytes) -> data.Listing | None:
    try:
        return data.browse(root_service(), host, backup, path, limit=1000)
    except Absent:
        raise
    except OperatorError:
        return None


def _nearest_folder(host: str, backup: str, path: bytes) -> data.Listing | None:
    """Returns the deepest existing entry above a path in the backup, by bisection: a path may have a thousand components."""
    above = data.ancestors(path)
    low, high, listing = 0, len(above) - 1, None
    while low <= high:
        middle = (low + high) // 2
        if parent := _listing_or_none(host, backup, above[middle]):
            low, listing = middle + 1, parent
        else:
            high = middle - 1
    return listing


def _similar_names(above: data.Listing, path: str) -> list[data.File]:
    """Returns names in that folder that are similar to the missing one."""
    depth = len([name for name in above.entry.path.split("/") if name])
    names = [name for name in path.split("/") if name]
    by_name = {entry.name: entry for entry in above.entries}
    return [by_name[name] for name in get_close_matches(names[depth], by_name, 3, 0.6)] if depth < len(names) else []


blueprint = Blueprint("files", __name__)
add_filters(blueprint)
add_handlers(blueprint)

_COMPLETIONS = 30
_TITLES = {"name": "Name", "kind": "Kind", "size": "Size", "mode": "Mode", "owner": "Owner", "time": "Changed"}


@dataclass(frozen=True, slots=True)
class FolderColumn:
    """A column of a folder's table."""

    title: str
    """Its title."""
    sort: str
    """The order for a click on the title."""
    order: str | None
    """Its present sort order; None: sorted by another column."""
    number: bool = False
    """True if it has numbers."""


@blueprint.get("/files/<host>")
def browse(host: str) -> str | Answer:
    """Shows a folder of a backup, or the details of any other entry."""
    require_visible_host(host)
    which = which_of_request("backup") or "latest"
    find = request.args.get("find", "").strip()
    if "quoted" in request.args or "typed" in request.args:  # a form can only send text
        path = path_of_text(request.args["quoted"]) if "quoted" in request.args else _typed_path(host, which)
        return redirect(PageLinks(host, which).browse(data.text_of(path), find=find or None), 303)
    sort = _sort(request.args.get("sort", "name"))
    path = path_of_request()
    offset, size = number_of_request("offset", 0), data.page_size(path)
    listing = data.browse(root_service(), host, which, path, offset, size, sort, collapse=True, **({"find": find} if find else {}))
    backup_choices = data.choices(source().catalogue.backups(host), source().now)
    past = _history_or_none(listing)
    given = {
        "at": PageLinks(host, listing.backup.name),
        "listing": listing,
        "choices": backup_choices,
        "zone": source().config.zone,
        "around": neighbouring_backups(past, listing.backup.name) if past else NeighbouringBackups(None, None),
        "may_restore": _may_restore(),
        "history": past,
        "unsorted": sort.removeprefix("-") if sort != listing.sort else "",
    }
    if listing.entry.kind == "folder":
        return render_template(
            "files/browse.html",
            **given,
            find=find,
            source_paths=_source_paths(host),
            columns=[_column(title, name, listing.sort) for name, title in _TITLES.items()],
            page_starts=_starts(listing),
        )
    return render_template("files/file.html", **given, text=_text(listing))


@blueprint.get("/files/<host>/search")
def search(host: str) -> str | Answer:
    """Shows the names below a folder that match a text."""
    require_visible_host(host)
    which, find = which_of_request("backup") or "latest", request.args.get("find", "").strip()
    at = PageLinks(host, which)
    if "quoted" in request.args:
        return redirect(at.search(data.text_of(path_of_text(request.args["quoted"])), find), 303)
    path = path_of_request()
    if not find:
        return redirect(at.browse(data.text_of(path)), 303)
    result = data.search(root_service(), host, which, path, find)
    at = PageLinks(host, result.backup.name)
    return render_template("files/search.html", at=at, result=result, zone=source().config.zone, may_restore=_may_restore())


@blueprint.get("/files/<host>/complete")
def complete(host: str) -> Answer:
    """Returns a few paths that begin with the typed text, as JSON. None if there are none, or if the service is busy."""
    require_visible_host(host)
    above, _, start = f"/{request.args.get('typed', '').lstrip('/')}".rpartition("/")
    path, which = _checked_text(above or "/"), which_of_request("backup") or "latest"
    try:
        listing = data.browse(root_service(), host, which, path, limit=_COMPLETIONS, find=f"{start}*", typed=True)
    except OperatorError:
        return jsonify([])
    return jsonify([printable(entry.path) + ("/" if entry.kind == "folder" else "") for entry in listing.entries])


def _typed_path(host: str, which: str) -> bytes:
    """Returns the typed path. Names in it may have the escapes with which the pages show them."""
    path = _checked_text(f"/{request.args['typed'].lstrip('/')}")
    if b"\\" not in path:
        return path
    try:
        return data.bytes_of(data.browse(root_service(), host, which, path, limit=1, typed=True).entry.path)
    except RequestRefused:
        return path  # its own page has what is similar


def _checked_text(path: str) -> bytes:
    return path_of_text(path_text(data.bytes_of(path)))


def _source_paths(host: str) -> tuple[str, ...]:
    """Returns the host's configured paths; none if it is not configured, or if everything is backed up."""
    configured = source().config.hosts.get(host)
    return tuple(path for path in configured.paths if path != "/") if configured else ()


@blueprint.get("/files/<host>/versions")
def versions(host: str) -> str:
    """Shows every version of a path over all backups."""
    require_visible_host(host)
    path, by_content = path_of_request(), request.args.get("content") == "1"
    past = history(root_service(), host, path, by_content, which_of_request("since"))
    given = {"at": PageLinks(host, which_of_request("backup")), "history": past, "path": data.text_of(path)}
    return render_template("files/versions.html", **given, may_restore=_may_restore(), zone=source().config.zone)


@blueprint.get("/files/<host>/compare")
def compare(host: str) -> str | Answer:
    """Shows the differences at a path between two backups."""
    require_visible_host(host)
    backup_choices = data.choices(source().catalogue.backups(host), source().now)
    after = which_of_request("after") or "latest"
    before = which_of_request("before") or data.one_before(backup_choices, after)
    if "quoted" in request.args:
        path = data.text_of(path_of_text(request.args["quoted"]))
        return redirect(PageLinks(host).compare(path, before, after), 303)
    limit = min(max(number_of_request("limit", LIMIT), 1), 5000)
    since = path_of_text(request.args["since"]) if "since" in request.args else None
    compared = compare_at(root_service(), host, path_of_request(), before, after, limit, since)
    given = {"at": PageLinks(host, compared.after), "comparison": compared, "since": since and data.text_of(since)}
    return render_template("files/compare.html", **given, choices=backup_choices, zone=source().config.zone)


@blueprint.get("/files/<host>/download")
def download(host: str) -> Answer:
    """Sends a file, or a file or folder as an archive, as a stream."""
    require_visible_host(host)
    if request.headers.get("Sec-Fetch-Site") == "cross-site":  # a link from another site shows the page, but starts nothing
        return redirect(PageLinks(host, which_of_request("backup")).browse(data.text_of(path_of_request())), 303)
    return _download(host, path_of_request(), [], request.args.get("as", "file"))


@blueprint.post("/files/<host>/download")
def download_selected(host: str) -> Answer:
    """Sends the paths chosen in a folder as one archive, as a stream; the folder if none was chosen."""
    require_visible_host(host)
    folders, paths = paths_of_form("folder"), list(dict.fromkeys(paths_of_form()))
    if not paths and not folders:
        abort(400, "choose a path")
    if len(paths) > MOST_PATHS:
        abort(400, f"more than {MOST_PATHS:,} paths are chosen: choose their folder instead")
    return _download(host, paths[0] if len(paths) == 1 or not folders else folders[0], paths, request.form.get("as", "zip"))


def _download(host: str, path: bytes, paths: list[bytes], kind: str) -> Answer:
    """Sends the path, or `paths` as an archive that has the name of the path."""
    if kind not in downloads.KINDS:
        abort(400, "the format of a download is file, tar or zip")
    if kind != "file" and request.environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return error_pages.page(
            426, "An archive needs HTTP/1.1: over 1.0 a client cannot see whether it is complete", "nginx: proxy_http_version 1.1"
        )
    which, who = which_of_request("backup") or "latest", viewer()
    more: dict[str, Any] = {"paths": [data.text_of(chosen) for chosen in paths]} if paths else {}
    with downloads.place(who) as places:
        stream = root_service().stream("download", host=host, backup=which, path=data.text_of(path), **{"as": kind}, **more)
        return downloads.sent(stream, downloads.name_of(host, which, path, kind), who, places)


def _may_restore() -> bool:
    return viewer().operator and not source().config.no_restores


def _sort(text: str) -> str:
    if text.removeprefix("-") not in data.SORTS:
        abort(400, f"sort is one of: {', '.join(data.SORTS)}, with a minus before it for descending order")
    return text


def _column(title: str, name: str, sort: str) -> FolderColumn:
    """Returns the sort order for a click on a column: a second click reverses it; sizes and times start with the largest."""
    is_number = name in ("size", "owner")
    first = f"-{name}" if name in ("size", "time") else name
    if sort.removeprefix("-") != name:
        return FolderColumn(title, first, None, is_number)
    turned = name if sort.startswith("-") else f"-{name}"
    return FolderColumn(title, turned, "descending" if sort.startswith("-") else "ascending", is_number)


def _starts(listing: data.Listing) -> list[int | None]:
    """Returns the pages that have a link: the first, the last and those around this one; None for the gaps between."""
    last = (listing.total - 1) // listing.limit if listing.total else 0
    here = listing.offset // listing.limit
    wanted = sorted({page for page in (0, last, *range(here - 2, here + 3)) if 0 <= page <= last})
    starts: list[int | None] = []
    for before, page in zip([-1, *wanted], wanted, strict=False):
        if page > before + 1:
            starts.append(None)
        starts.append(page * listing.limit)
    return starts


def _history_or_none(listing: data.Listing) -> HistoryPage | None:
    """Returns its history; None if the service is busy, because the page works without it."""
    try:
        return history(root_service(), listing.host, data.bytes_of(listing.entry.path))
    except RequestRefused:
        return None


def _text(listing: data.Listing) -> Beginning | None:
    """Returns the first lines of a text file; None if it cannot be read, because the page works without them."""
    entry = listing.entry
    if entry.kind != "file" or not entry.size or source().config.no_downloads:
        return None
    try:
        asked: dict[str, Any] = {"host": listing.host, "backup": listing.backup.name, "path": entry.path, "as": "file"}
        with root_service().stream("download", **asked) as stream:
            return beginning(stream, entry.size)
    except OperatorError:
        return None
