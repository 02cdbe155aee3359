"""The error pages of files: for a missing backup or path, and for a root service that does not answer."""

from difflib import get_close_matches

from flask import Blueprint, Response, make_response, render_template, request

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import printable
from web import download as downloads
from web import errors
from web.files import data
from web.files.links import PageLinks
from web.request_values import path_of_request
from web.service_client import agent
from web.source import source


def add_handlers(blueprint: Blueprint) -> None:
    """Adds the handlers to a blueprint that asks the root service; other errors are handled as everywhere."""
    blueprint.register_error_handler(RequestRefused, refused)
    blueprint.register_error_handler(Absent, absent)
    blueprint.register_error_handler(downloads.TooManyDownloads, too_many)


def absent(error: Absent) -> Response:
    """Handles a root service that does not listen."""
    unit = f"btrkeep-serve@{source().settings.pool}.socket"
    return errors.page(503, printable(error.message), f"On the backup server: systemctl status {unit}")


def too_many(error: downloads.TooManyDownloads) -> Response:
    """Asks the user to try again later."""
    return errors.page(429, error.message, error.hint)


def refused(error: RequestRefused) -> Response:
    """Handles a refusal by the service. For a missing backup or path the page offers alternatives."""
    if error.kind != "missing" or not request.view_args:
        return errors.of_operator(error)
    host = request.view_args["host"]
    asked = next((found for name in ("backup", "after", "before") if (found := request.values.get(name))), "latest")
    path = data.text_of(path_of_request())
    if _looked(host, asked, b"/"):
        return _no_path(error, host, asked, path)
    return _gone(error, host, asked, path)


def _gone(error: RequestRefused, host: str, asked: str, path: str) -> Response:
    whiches = data.choices(source().catalogue.backups(host), source().now)
    near = data.nearest([which for which in whiches if which.name != asked], asked)
    given = {"asked": asked, "near": near, "known": whiches, "zone": source().site.zone}
    return make_response(render_template("files/gone.html", at=PageLinks(host), path=path, error=error, **given), 404)


def _no_path(error: RequestRefused, host: str, backup: str, path: str) -> Response:
    above = _nearest_folder(host, backup, data.bytes_of(path))
    alike = _alike(above, path) if above else []
    given = {"at": PageLinks(host, backup), "path": path, "error": error, "above": above, "alike": alike}
    return make_response(render_template("files/no_path.html", **given), 404)


def _looked(host: str, backup: str, path: bytes) -> data.Listing | None:
    try:
        return data.browse(agent(), host, backup, path, limit=1000)
    except Absent:
        raise
    except OperatorError:
        return None


def _nearest_folder(host: str, backup: str, path: bytes) -> data.Listing | None:
    """Returns the deepest entry above a path that the backup has, by bisection: a path may have a thousand components."""
    above = data.ancestors(path)
    low, high, listing = 0, len(above) - 1, None
    while low <= high:
        middle = (low + high) // 2
        if one := _looked(host, backup, above[middle]):
            low, listing = middle + 1, one
        else:
            high = middle - 1
    return listing


def _alike(above: data.Listing, path: str) -> list[data.File]:
    """Names in that folder that are like the one that is missing."""
    depth = len([name for name in above.entry.path.split("/") if name])
    names = [name for name in path.split("/") if name]
    by_name = {entry.name: entry for entry in above.entries}
    return [by_name[name] for name in get_close_matches(names[depth], by_name, 3, 0.6)] if depth < len(names) else []
