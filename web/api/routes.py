"""Turns a request into an endpoint's answer: identifies the viewer, parses the parameters, calls the endpoint, returns JSON."""

from collections.abc import Callable

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from btrkeep.errors import OperatorError
from btrkeep.units import format_size
from web import redaction as telling
from web.access import require_visible_host, viewer
from web.api import errors
from web.api.parameters import LONGEST_BODY, of_body, of_query
from web.api.table import ApiRequest, Endpoint
from web.api.values import dumped
from web.source import source

LONGEST_OF_HOST = 16 << 20
"""Bytes of an answer about one host: whoever writes its files or its messages must not use up the memory of the dashboard."""


def add(blueprint: Blueprint, endpoint: Endpoint) -> None:
    """Adds one endpoint under its path."""
    blueprint.add_url_rule(endpoint.path, endpoint.name, _view(endpoint), methods=[endpoint.method])


def _view(endpoint: Endpoint) -> Callable[..., Response]:
    def view(**in_path: str) -> Response:
        try:
            return _answered(endpoint, in_path)
        except OperatorError as error:
            return errors.of_operator(telling.told(error))

    return view


def _answered(endpoint: Endpoint, in_path: dict[str, str]) -> Response:
    who = viewer()
    if (endpoint.operator and not who.operator) or (endpoint.pool_wide and who.limited):
        abort(403)
    if endpoint.of_host:
        require_visible_host(in_path["host"])
    body = of_body(endpoint.body, _read_body(), request.mimetype) if endpoint.body else None
    given = of_query(endpoint.takes, request.query_string, in_path)
    found = endpoint.act(ApiRequest(source(), who, given, body))
    if isinstance(found, Response):
        return found
    answer = dumped(found)
    if endpoint.of_host and len(answer) > LONGEST_OF_HOST:
        raise OperatorError(
            f"the answer has {format_size(len(answer))}, more than the {format_size(LONGEST_OF_HOST)} of one answer",
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
