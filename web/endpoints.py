"""The JSON API below /api/v1: the content of the pages, for programs, with an OpenAPI document made from the same table.

For each request the viewer is identified and the parameters are parsed; the endpoint's answer is sent as JSON.
"""

from collections.abc import Callable
from functools import cache

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from btrkeep.errors import OperatorError
from btrkeep.units import format_size
from web import alarms, copies, doctor, log, overview, redaction, running
from web.api import LONGEST_BODY, ApiRequest, Endpoint, answers, parse_body, parse_query
from web.api.answers import document, dumped
from web.files import api as files
from web.hosts import api as hosts
from web.jobs import api as jobs
from web.pool import api as pool
from web.restore import api as restore
from web.source import public, require_visible_host, source, viewer

PREFIX = "/api/v1"
_MODULES = (overview, running, copies, hosts, files, jobs, restore, pool, alarms, doctor, log)
ENDPOINTS = tuple(endpoint for module in _MODULES for endpoint in module.ENDPOINTS)
LONGEST_OF_HOST = 16 << 20
"""Maximum bytes of an answer about one host: its files or messages must not use up the memory of the dashboard."""


def _view(endpoint: Endpoint) -> Callable[..., Response]:
    def view(**in_path: str) -> Response:
        try:
            return _answered(endpoint, in_path)
        except OperatorError as error:
            return answers.operator_error_answer(redaction.redact_error(error))

    return view


def _answered(endpoint: Endpoint, in_path: dict[str, str]) -> Response:
    who = viewer()
    if (endpoint.operator and not who.operator) or (endpoint.pool_wide and who.limited):
        abort(403)
    if endpoint.of_host:
        require_visible_host(in_path["host"])
    body = parse_body(endpoint.body, _read_body(), request.mimetype) if endpoint.body else None
    given = parse_query(endpoint.takes, request.query_string, in_path)
    result = endpoint.act(ApiRequest(source(), who, given, body))
    if isinstance(result, Response):
        return result
    answer = dumped(result)
    if endpoint.of_host and len(answer) > LONGEST_OF_HOST:
        raise OperatorError(
            f"the answer has {format_size(len(answer))}, more than the limit of {format_size(LONGEST_OF_HOST)}",
            "use backupd on the server, which has no such limit",
        )
    return Response(answer, content_type="application/json")


def _read_body() -> bytes:
    request.max_content_length = LONGEST_BODY
    try:
        return request.get_data()
    except RequestEntityTooLarge:
        raise
    except HTTPException:
        abort(400)


blueprint = Blueprint("api", __name__, url_prefix=PREFIX)
for _endpoint in ENDPOINTS:
    blueprint.add_url_rule(_endpoint.path, _endpoint.name, _view(_endpoint), methods=[_endpoint.method])


@blueprint.get("/openapi.json")
@public
def openapi() -> Response:
    """Returns the document. It contains nothing about this pool."""
    return Response(_openapi(), content_type="application/json")


@cache
def _openapi() -> bytes:
    return dumped(document(ENDPOINTS, PREFIX))
