"""The OpenAPI document, made from the table of endpoints: the types themselves describe parameters, bodies and answers.

pydantic makes JSON Schemas of plain dataclasses; OpenAPI 3.1 takes these unchanged. This module adds the
lines below fields as their descriptions, and corrects two points that pydantic
cannot know: an answer always has all of its fields, and a path is text with percent-encoded bytes.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from btrkeep import __version__
from web.api import TAGS, Bytes, Endpoint, adapters_of, bare, hints_of, required_of
from web.api.answers import MEANINGS, Error

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
a query takes it. A later version may add keys; those that are here stay."""


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
                    "description": "A browser that is logged in. What changes something then needs the header X-CSRFToken.",
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
            body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
            for field, text in pairwise(body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(line))):
                        lines[name] = " ".join(line.split())
    return lines


def _schemas(endpoints: Iterable[Endpoint]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the named schemas, and each endpoint's answer by the endpoint's name."""
    answers = [(endpoint.name, endpoint.answer) for endpoint in endpoints if not isinstance(endpoint.answer, Bytes)] + [("", Error)]
    by_endpoint, rest = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in answers],
        ref_template=_REF,
        schema_generator=_DescribedFields,
    )
    schemas = {name: _mended(schema) for name, schema in rest.get("$defs", {}).items()}
    return schemas, {name: _mended(schema) for (name, _), schema in by_endpoint.items()}


def _mended(schema: Any) -> Any:
    """Answers are complete, and have further keys only beside names that are not UTF-8; titles that only repeat a name go."""
    if isinstance(schema, list):
        return [_mended(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("title", "default")}
    mended = {key: _mended(value) for key, value in kept.items() if key != "properties"}
    if "properties" in schema:
        mended["properties"] = {name: _mended(member) for name, member in schema["properties"].items()}
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
    return {"description": "As asked for.", "content": {"application/json": {"schema": of_answer[endpoint.name]}}}


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
        schema = _without_none(_mended(adapter.json_schema(mode="validation")))
        if bare(hints_of(kind)[name]) is bytes:
            schema["pattern"] = _PATH
        elif bare(hints_of(kind)[name]) == tuple[bytes, ...]:
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
