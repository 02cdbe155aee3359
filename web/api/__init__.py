"""The JSON API below /api/v1: the content of the pages, for programs, with an OpenAPI document made from the same table."""

from functools import cache

from flask import Blueprint, Response

from web.access import public
from web.api import endpoints_files, endpoints_hosts, endpoints_jobs, endpoints_keeping, endpoints_pool, endpoints_tasks
from web.api.document import document
from web.api.errors import of_http
from web.api.routes import add
from web.api.values import dumped

PREFIX = "/api/v1"
_MODULES = (endpoints_hosts, endpoints_keeping, endpoints_files, endpoints_tasks, endpoints_pool, endpoints_jobs)
ENDPOINTS = tuple(one for module in _MODULES for one in module.ENDPOINTS)

blueprint = Blueprint("api", __name__, url_prefix=PREFIX)
for _endpoint in ENDPOINTS:
    add(blueprint, _endpoint)


@blueprint.get("/openapi.json")
@public
def openapi() -> Response:
    """Returns the document. It contains nothing about this site."""
    return Response(_openapi(), content_type="application/json")


@cache
def _openapi() -> bytes:
    return dumped(document(ENDPOINTS, PREFIX))


__all__ = ["ENDPOINTS", "blueprint", "of_http"]
