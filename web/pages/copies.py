"""Copies in and from other pools. Who is limited to some hosts sees those of these hosts."""

from flask import Blueprint, render_template

from web.access import viewer
from web.data.copies import copies
from web.source import source

blueprint = Blueprint("copies", __name__, url_prefix="/copies")
_MOST = 200


@blueprint.get("")
def index() -> str:
    """Shows replicas, hosts without a copy, and the oldest copies."""
    page = copies(source(), viewer())
    oldest = sorted(page.copies, key=lambda one: -(one.age or 0.0))
    return render_template("copies/copies.html", page=page, oldest=oldest[:_MOST], most=_MOST)
