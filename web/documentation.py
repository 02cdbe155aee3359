"""The documentation that is installed on the server, for the links of the footer and of empty pages."""

import re

from flask import Blueprint, Response, abort, redirect, send_file, url_for
from werkzeug.wrappers import Response as Answer

from btrkeep.config import page

blueprint = Blueprint("docs", __name__, url_prefix="/docs")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}", re.ASCII)


@blueprint.get("")
def index() -> Answer:
    """Redirects to the first page, so that its relative links work."""
    return redirect(url_for("docs.document", name="index"), 302)


@blueprint.get("/<name>")
def document(name: str) -> Response:
    """Sends a page: HTML if it is installed, otherwise its source as text."""
    stem = name.removesuffix(".html")
    path = page(stem) if _NAME.fullmatch(stem) else None
    if path is None or not path.is_file():
        abort(404, "there is no such page of the documentation; it may not be installed")
    return send_file(path, mimetype="text/html" if path.suffix == ".html" else "text/plain; charset=utf-8", max_age=0)
