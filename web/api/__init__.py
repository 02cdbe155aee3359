"""The operations of the API: one description from which routes, checks and the OpenAPI document are made.

Parameters are a frozen dataclass: the types of its fields are the accepted types, fields with a default are optional. `Annotated`
with `Field` adds limits and a description. A request is parsed into it; unknown, repeated and out-of-range parameters are rejected
with a message. Answers are the frozen dataclasses that the pages show.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

from pydantic import Field, TypeAdapter, ValidationError

from btrkeep.errors import UsageError, did_you_mean
from btrkeep.serving.protocol import BACKUP_NAME, WHICH_BACKUP, decoded
from btrkeep.serving.viewer import Viewer
from btrkeep.units import printable
from web.request_values import LONGEST
from web.source import RequestContext

Path = Annotated[
    bytes,
    Field(description="An absolute path of the host. In a query it is percent-encoded byte by byte, as it need not be UTF-8."),
]
"""A path within a backup, as bytes. In a body it is a string, in which a byte that is not UTF-8 is a lone surrogate (\\udcXX)."""
Host = Annotated[str, Field(max_length=255, description="The host's name in the configuration.")]
Which = Annotated[
    str, Field(pattern=f"^({WHICH_BACKUP.pattern})$", description="The backup's name, `latest`, or a day for its last backup.")
]
Name = Annotated[str, Field(pattern=f"^{BACKUP_NAME.pattern}$", description="The backup's name, 2026-11-20T220003Z.")]
Moment = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
STATE, HOSTS, KEEPING, FILES, TASKS, POOL, JOBS = TAGS = ("state", "hosts", "keeping", "files", "tasks", "pool", "jobs")
"""The groups of operations, as the OpenAPI document orders them."""
SHOWN = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""A pattern for a text of characters that can be shown."""


@dataclass(frozen=True, slots=True)
class NoParameters:
    """No parameters."""


@dataclass(frozen=True, slots=True)
class HostParameters:
    """The host of the request."""

    host: Host


@dataclass(frozen=True, slots=True)
class IdParameter:
    """Parameters: an id."""

    number: Annotated[str, Field(pattern=r"^[0-9]{1,18}$", description="The id.")]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose parameters, role and host are validated."""

    source: RequestContext
    """The dashboard's data."""
    viewer: Viewer
    """The user."""
    given: Any
    """An instance of the type `takes` of the endpoint."""
    body: Any = None
    """An instance of the type `body` of the endpoint; None: it has none."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """An answer that is not JSON: its media type, and its meaning in words."""

    media: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation."""

    method: Literal["GET", "POST"]
    """The method of HTTP."""
    path: str
    """The path in Flask's notation."""
    name: str
    """Its operationId."""
    tag: str
    """The group of operations in the document."""
    summary: str
    """A sentence about the endpoint."""
    answer: Any
    """The type of its answer."""
    act: Callable[[ApiRequest], Any]
    """Returns the answer."""
    takes: type = NoParameters
    """The type of its parameters."""
    body: type | None = None
    """The type of its body; None: it has none."""
    operator: bool = False
    """True if only operators may use it."""
    pool_wide: bool = False
    """True if it covers all hosts, so that users who are limited to some may not use it."""
    needs_root_service: bool = False
    """True if it asks the root service."""
    errors: tuple[int, ...] = field(default=())
    """Statuses besides 400, 401 and those of the root service."""

    @property
    def of_host(self) -> bool:
        """Returns True if it concerns one host, which the viewer must be allowed to see."""
        return "<host>" in self.path


LONGEST_BODY = 64 << 10
"""Maximum bytes: a request to the root service has the same limit."""
_HINT = "the OpenAPI document, /api/v1/openapi.json, lists all parameters"
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_YES_OR_NO = {"true": True, "false": False}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotates a text that is one of these words."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _source: object, handler: Any) -> Any:
        return handler.generate_schema(Literal[self.words])


def either_way(orders: Collection[str]) -> OneOf:
    """Annotates a sort order, reversed by a minus sign."""
    return OneOf((*orders, *(f"-{order}" for order in orders)))


def parse_query(kind: type, raw: bytes, in_path: Mapping[str, str]) -> Any:
    """Parses `kind` from a raw query string and the values in the URL's path. Raises UsageError."""
    hints = hints_of(kind)
    arguments: dict[str, Any] = dict(in_path)
    for name, value in _pairs(raw):
        if name not in hints or name in in_path:
            raise UsageError(
                f"there is no parameter {_shown(name)} here", _near(name, [hint for hint in hints if hint not in in_path])
            )
        if name in arguments:
            raise UsageError(f"the parameter {name} is given twice", "give it once")
        arguments[name] = _value(name, value, bare_type(hints[name]))
    return _made(kind, arguments)


def parse_body(kind: type, body: bytes, media: str) -> Any:
    """Parses `kind` from a JSON document. Raises UsageError."""
    if media != "application/json":
        raise UsageError("the body is not JSON", "send it with Content-Type: application/json")
    try:
        document = decoded(body)
    except ValueError:
        raise UsageError("the body is invalid JSON", _HINT) from None
    if not isinstance(document, dict):
        raise UsageError("the body is not a JSON object", _HINT)
    hints = hints_of(kind)
    for name in document:
        if name not in hints:
            raise UsageError(f"there is no {_shown(name)} in the body", _near(name, list(hints)))
    return _made(kind, {name: _from_json(value, bare_type(hints[name])) for name, value in document.items()})


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Returns the type of each field, with its Annotated metadata."""
    return get_type_hints(kind, include_extras=True)


@cache
def required_of(kind: type) -> frozenset[str]:
    """Returns the fields without a default."""
    return frozenset(
        attribute.name for attribute in fields(kind) if attribute.default is MISSING and attribute.default_factory is MISSING
    )


@cache
def adapters_of(kind: type) -> dict[str, TypeAdapter[Any]]:
    """Returns the adapters that validate and describe the values of each field."""
    return {name: TypeAdapter(hint) for name, hint in hints_of(kind).items()}


def bare_type(hint: Any) -> Any:
    """Returns a type without None and without its Annotated metadata."""
    if get_origin(hint) is Annotated:
        return bare_type(get_args(hint)[0])
    inner = [arg for arg in get_args(hint) if arg is not type(None)]
    return bare_type(inner[0]) if len(inner) < len(get_args(hint)) else hint


def _made(kind: type, arguments: Mapping[str, Any]) -> Any:
    if missing := sorted(required_of(kind) - arguments.keys()):
        raise UsageError(f"{missing[0]} is missing", _HINT)
    adapters = adapters_of(kind)
    return kind(**{name: _seen(name, adapters[name], value) for name, value in arguments.items()})


def _seen(name: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise UsageError(f"{name}: {printable(first['msg'][:1].lower() + first['msg'][1:])}", _HINT) from None


def _from_json(value: Any, kind: Any) -> Any:
    """Lists are tuples here, and paths are bytes."""
    if kind is bytes and isinstance(value, str):
        return normalised_path(_bytes_of(value))
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_from_json(item, bare_type(get_args(kind)[0])) for item in value)
    return value


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which encodes no byte
        raise UsageError(
            "a path has a surrogate that encodes no byte", "encode bytes that are not UTF-8 as \\udc80 to \\udcff"
        ) from None


def _pairs(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields names and values of a query string. Werkzeug would replace bytes that are not UTF-8."""
    for part in raw.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            yield _decoded(unquote_to_bytes(name.replace(b"+", b" "))), unquote_to_bytes(value.replace(b"+", b" "))


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _value(name: str, value: bytes, kind: Any) -> Any:
    """Converts a value of a query to the type; if it does not fit, raises an error in words for a query."""
    if kind is bytes:
        return normalised_path(value)
    text = _decoded(value)
    if kind is int:
        if not _WHOLE.fullmatch(text):
            raise UsageError(f"{name} is not a whole number: {_shown(text)}", _HINT)
        return int(text)
    if kind is bool:
        if text not in _YES_OR_NO:
            raise UsageError(f"{name} is neither true nor false: {_shown(text)}", _HINT)
        return _YES_OR_NO[text]
    return text


def normalised_path(path: bytes) -> bytes:
    """Returns an absolute path without a NUL, `.` and `..`, and without redundant slashes. Raises UsageError."""
    parts = [part for part in path.split(b"/") if part]
    if not path.startswith(b"/") or b"\0" in path or len(path) > LONGEST or b"." in parts or b".." in parts:
        raise UsageError(f"{_shown(_decoded(path))} is not a path of a backup", "a path must begin with / and not contain . or ..")
    return b"/" + b"/".join(parts)


def _shown(text: str) -> str:
    return f'"{printable(text[:_SHOWN])}"'


def _near(name: str, names: list[str]) -> str:
    return did_you_mean(name, names, f"there are {', '.join(names)}" if names else "this operation has no parameters")
