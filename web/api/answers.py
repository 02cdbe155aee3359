"""The answers of the API, as JSON: frozen dataclasses, and errors as {"error", "hint"} with a status, never a page.

As everywhere in btrkeep, times are RFC 3339 with Z, sizes bytes, durations seconds. A byte of a host that is not UTF-8 is a lone
surrogate, which JSON in ASCII writes as an escape (\\udcXX); beside a text NAME that has one is NAME_encoded, percent-encoded as in
an address.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from flask import Response
from werkzeug.exceptions import HTTPException

from btrkeep.errors import ConfigError, LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, printable, with_encoded


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
    return _odd(value)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _odd(value: object) -> Any:
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
    raise TypeError(f"{type(value).__name__} is nothing that the API shows")


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
    400: "The request does not fit: the error names what.",
    401: "Nobody is logged in, or the token is not known.",
    403: "The user's role or limits do not allow it, or a write came without its CSRF token.",
    404: "It does not exist, or the user may not see it.",
    409: "Something else is going on with it (a run, an expiry), or it does not fit how it is: to accept a complete backup.",
    413: "The body is too long.",
    426: "It needs HTTP/1.1.",
    429: "Too much at once: try again later.",
    502: "The root service failed.",
    503: "The catalogue or the root service cannot be asked now.",
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
