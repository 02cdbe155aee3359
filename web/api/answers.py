"""The answers of the API, as JSON: frozen dataclasses, and errors as {"error", "hint"} with a status, never a page; and the OpenAPI
document, made from the table of endpoints: the types themselves describe parameters, bodies and answers.

As everywhere in btrkeep, times are RFC 3339 with Z, sizes bytes, durations seconds. A byte of a host that is not UTF-8 is a lone
surrogate, which JSON in ASCII writes as an escape (\\udcXX); beside a text NAME that has one is NAME_encoded, percent-encoded as in
an address.

pydantic makes JSON Schemas of plain dataclasses; OpenAPI 3.1 takes these unchanged. This module adds the lines below fields as
their descriptions, and corrects two points that pydantic cannot know: an answer always has all of its fields, and a path is text
with percent-encoded bytes.
"""

import ast
import inspect
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from flask import Response
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from werkzeug.exceptions import HTTPException

from btrkeep import __version__
from btrkeep.errors import ConfigError, LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, printable, with_encoded
from web.api import TAGS, Bytes, Endpoint, adapters_of, bare_type, hints_of, required_of


def dumped(value: object) -> bytes:
    """Returns one JSON document in ASCII, with a newline at the end."""
    return json.dumps(with_encoded(plain(value)), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def plain(value: object) -> Any:
    """Converts a value to types that json can write."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(member) for member in value]
    return _plain_other(value)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _plain_other(value: object) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be shown by the API")


STATUSES = {"usage": 400, "missing": 404, "locked": 409, "refused": 409, "busy": 429, "unusable": 503, "failed": 502}
"""The status for each kind of a refused request."""
_OF_ERROR: tuple[tuple[type[OperatorError], int], ...] = (
    (Absent, 503),
    (ConfigError, 503),
    (UsageError, 400),
    (LockHeld, 409),
    (PoolUnusable, 503),
    (OperatorError, 503),
)
MEANINGS = {
    400: "The request is invalid: the error names the fault.",
    401: "No user is logged in, or the token is unknown.",
    403: "The user's role or limits do not allow it, or a change was requested without its CSRF token.",
    404: "The requested host, backup or job does not exist, or the user may not see it.",
    409: "Another job (a run, an expiry) uses the host, or its state does not allow this, such as accepting a complete backup.",
    413: "The body is too long.",
    426: "An archive needs HTTP/1.1.",
    429: "Too many requests at once: try again later.",
    502: "The root service failed.",
    503: "The catalogue or the root service is not available now.",
}


@dataclass(frozen=True, slots=True)
class Error:
    """An error."""

    error: str
    """What happened, in one line."""
    hint: str
    """What to do; "": nothing."""


def operator_error_answer(error: OperatorError) -> Response:
    """Returns the response for an error that the operator can solve."""
    if isinstance(error, RequestRefused):
        status = STATUSES.get(error.kind, 502)
    else:
        status = next(number for kind, number in _OF_ERROR if isinstance(error, kind))
    return answer(status, error.message, error.hint)


def http_error_answer(error: HTTPException) -> Response:
    """Returns the response for an exception of Flask; its headers (Allow, Retry-After, WWW-Authenticate) are kept."""
    status = error.code or 500
    own = error.description if type(error).description != error.description else None
    return with_headers(answer(status, own or MEANINGS.get(status, error.name), ""), error)


def with_headers(response: Response, error: HTTPException) -> Response:
    """Keeps Allow, Retry-After and similar headers."""
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            response.headers[name] = value
    return response


def answer(status: int, error: str, hint: str) -> Response:
    """Returns the response for one error."""
    response = Response(dumped(Error(printable(error), printable(hint))), status, content_type="application/json")
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="btrkeep"'
    return response


TITLE = "btrkeep"
_PATH = "^/"
_REF = "#/components/schemas/{model}"
_VARIABLE = re.compile(r"<(\w+)>")
_ALWAYS = (400, 401, 403, 404)
_OF_AGENT = (409, 429, 502, 503)
_OF_BODY = (413,)
_INTRODUCTION = """What the dashboard shows, for programs. Times are RFC 3339 in UTC ending in `Z`, sizes bytes, durations and
ages seconds, rates bytes per second, shares fractions of one. `null` stands for unknown or missing values. A byte of a host
that is not UTF-8 is a lone surrogate in a string (`\\udcXX`), and `%XX` in a query; beside such a string NAME is NAME_encoded, as
a query takes it. A later version may add keys; existing keys stay."""


def path_of(endpoint: Endpoint) -> str:
    """Returns the endpoint's path in OpenAPI's notation."""
    return _VARIABLE.sub(r"{\1}", endpoint.path)


def document(endpoints: Sequence[Endpoint], prefix: str) -> dict[str, Any]:
    """Returns the whole document as JSON values."""
    schemas, of_answer = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(path_of(endpoint), {})[endpoint.method.lower()] = _operation(endpoint, of_answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": _INTRODUCTION},
        "servers": [{"url": prefix}],
        "security": [{"token": []}, {"session": []}],
        "tags": [{"name": name} for name in TAGS],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `btrkeep-web token add`."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "btrkeep",
                    "description": "A browser that is logged in. Requests that change something then need the header X-CSRFToken.",
                },
            },
        },
    }


class _DescribedFields(GenerateJsonSchema):
    """Takes the line below each field of a dataclass as its description."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dataclass_schema(schema)
        for name, line in _lines_of_fields(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name].setdefault("description", line)
        return made


def _lines_of_fields(kind: type) -> dict[str, str]:
    """Returns the text below each field of a dataclass, those that it inherits included."""
    lines: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            for field, text in pairwise(_classes(base.__module__)[base.__name__].body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(line))):
                        lines[name] = " ".join(line.split())
    return lines


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a module by name. `inspect.getsource` of a class would parse the whole module for each class."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _schemas(endpoints: Iterable[Endpoint]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the named schemas, and each endpoint's answer by the endpoint's name."""
    answers = [(endpoint.name, endpoint.answer) for endpoint in endpoints if not isinstance(endpoint.answer, Bytes)] + [("", Error)]
    by_endpoint, rest = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in answers],
        ref_template=_REF,
        schema_generator=_DescribedFields,
    )
    schemas = {name: _corrected_schema(schema) for name, schema in rest.get("$defs", {}).items()}
    return schemas, {name: _corrected_schema(schema) for (name, _), schema in by_endpoint.items()}


def _corrected_schema(schema: Any) -> Any:
    """Answers are complete, and have further keys only beside names that are not UTF-8; titles that only repeat a name go."""
    if isinstance(schema, list):
        return [_corrected_schema(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("title", "default")}
    mended = {key: _corrected_schema(value) for key, value in kept.items() if key != "properties"}
    if "properties" in schema:
        mended["properties"] = {name: _corrected_schema(member) for name, member in schema["properties"].items()}
        mended["required"] = sorted(schema["properties"])
        mended["patternProperties"] = {"_encoded$": {"type": "string"}}
    if mended.get("format") == "binary":
        del mended["format"]
    return mended


def _operation(endpoint: Endpoint, of_answer: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": {"200": _answer(endpoint, of_answer), **_errors(endpoint)},
    }
    if endpoint.operator:
        operation["description"] = "For operators only."
    elif endpoint.pool_wide:
        operation["description"] = "Not for users who are limited to some hosts."
    if endpoint.body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body(endpoint.body)}}}
    return operation


def _answer(endpoint: Endpoint, of_answer: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(endpoint.answer, Bytes):
        schema = {"type": "string", "format": "binary"}
        return {"description": endpoint.answer.meaning, "content": {endpoint.answer.media: {"schema": schema}}}
    return {"description": "As requested.", "content": {"application/json": {"schema": of_answer[endpoint.name]}}}


def _errors(endpoint: Endpoint) -> dict[str, Any]:
    statuses = sorted(
        {*_ALWAYS, *endpoint.errors, *(_OF_AGENT if endpoint.needs_root_service else (503,)), *(_OF_BODY if endpoint.body else ())}
    )
    content = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {str(status): {"description": MEANINGS[status], "content": content} for status in statuses}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    in_path = _VARIABLE.findall(endpoint.path)
    parameters = []
    for name, schema in _properties(endpoint.takes).items():
        meaning = schema.pop("description", "")
        is_in_path = name in in_path
        parameters.append(
            {
                "name": name,
                "in": "path" if is_in_path else "query",
                "required": is_in_path or name in required_of(endpoint.takes),
                "schema": schema,
                **({"description": meaning} if meaning else {}),
            }
        )
    return parameters


def _body(kind: type) -> dict[str, Any]:
    required = sorted(required_of(kind))
    return {"type": "object", "properties": _properties(kind), "required": required, "additionalProperties": False}


def _properties(kind: type) -> dict[str, dict[str, Any]]:
    """Returns each field as a schema, with its default. A default of None means left out, because a query cannot express it."""
    properties = {}
    defaults = {field.name: field.default for field in fields(kind)}
    for name, adapter in adapters_of(kind).items():
        schema = _without_none(_corrected_schema(adapter.json_schema(mode="validation")))
        if bare_type(hints_of(kind)[name]) is bytes:
            schema["pattern"] = _PATH
        elif bare_type(hints_of(kind)[name]) == tuple[bytes, ...]:
            schema["items"] = {"type": "string", "pattern": _PATH}
        if name not in required_of(kind) and isinstance(default := defaults[name], str | int) and default != "":
            schema["default"] = default
        properties[name] = schema
    return properties


def _without_none(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [alternative for alternative in schema.get("anyOf", ()) if alternative != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{key: value for key, value in schema.items() if key != "anyOf"}, **kinds[0]}
