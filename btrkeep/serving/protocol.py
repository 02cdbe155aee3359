r"""The messages between the dashboard and the root service. docs/serve.rst describes them.

One request on each connection: a line of JSON, {"verb", "session", "arguments"}, or "who" instead of "session". The answer is a
line of JSON, {"ok": true, "answer"}, or {"ok": false, "error", "hint", "kind", "own"}, with "job" if a job continues with the
request, or {"ok": true, "stream": {"name", "type", "length"}} followed by frames: four bytes of length, the highest first, and that
many bytes. A frame of length 0 is the end of a complete stream. FAILED instead of a length, followed by the line of an error, is
the end of a stream that failed midway.

All JSON is ASCII. Bytes of a path that are not UTF-8 have the form of Python: lone surrogates, \udc80 to \udcff.
"""

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from btrkeep.errors import ConfigError, Exit, LockHeld, OperatorError, PoolUnusable, StateConflict, UsageError

LONGEST_REQUEST = 64 << 10
"""Maximum bytes of a request's line, including its end."""
LONGEST_ANSWER = 64 << 20
"""Maximum bytes of an answer that a client accepts."""
LONGEST_FRAME = 1 << 20
FAILED = 0xFFFFFFFF
HEAD = struct.Struct(">I")
JOB_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
BACKUP_NAME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}Z")
WHICH_BACKUP = re.compile(r"latest|[0-9][0-9TZ-]{3,17}")
"""A backup by its name, by the beginning of names, or the last complete one."""
LONGEST_REASON = 500
"""Characters of the reason for a change, such as a hold."""
MOST_TARGETS = 500
"""Hosts of one request for an action."""
KINDS = ("usage", "missing", "unusable", "locked", "refused", "busy", "failed")
"""Kinds of failures: wrong arguments; no such host, backup or path; the pool is unusable; another job is running; not allowed, or
not possible in the present state; too many requests, possible later; anything else.
"""
_OF_ERRORS: tuple[tuple[type[OperatorError], str], ...] = (
    (LockHeld, "locked"),
    (PoolUnusable, "unusable"),
    (UsageError, "usage"),
    (StateConflict, "refused"),
    (ConfigError, "unusable"),
)
_EXITS = {"usage": Exit.USAGE, "missing": Exit.USAGE, "locked": Exit.LOCKED, "busy": Exit.LOCKED, "unusable": Exit.UNUSABLE}


class RequestRefused(OperatorError):
    """The service refused or failed. `kind` is one of KINDS.

    `is_public`: the message is only about the requested host and names no other host and no path of the server. `job`: the job that
    continues with the request.
    """

    def __init__(
        self, message: str, hint: str = "", kind: str = "failed", *, is_public: bool = False, job: str | None = None
    ) -> None:
        super().__init__(message, hint)
        self.kind, self.is_public, self.job = kind, is_public, job

    @property
    def exit_code(self) -> Exit:  # type: ignore[override]
        """Returns the exit status for a command line."""
        return _EXITS.get(self.kind, Exit.ATTENTION)


@dataclass(frozen=True, slots=True)
class Request:
    """A request."""

    verb: str
    """The requested action, one of SERVICE_VERBS."""
    who: str
    """The user, given by root; "" with a `session`."""
    arguments: Mapping[str, Any]
    """The arguments as JSON."""
    session: str | None = None
    """The random word of a login or a token, which identifies the user; None: root gives the user."""


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """An answer in frames."""

    name: str
    """The file's name."""
    type: str
    """The media type."""
    length: int | None
    """Bytes; None: unknown before the end."""


def socket_of(pool: str) -> Path:
    """Returns the socket of a pool's service."""
    return Path(f"/run/btrkeep/serve-{pool}.sock")


def login_socket_of(pool: str) -> Path:
    """Returns the socket of the login service, which knows the users of a pool's dashboard."""
    return Path(f"/run/btrkeep/login-{pool}.sock")


def encoded(value: object) -> bytes:
    """Encodes a value as a line of JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def decoded(line: bytes) -> Any:
    """Decodes a line of JSON. Raises ValueError for invalid JSON, NaN and infinities, and duplicate names."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is too large")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def request_line(verb: str, who: str, arguments: Mapping[str, Any], session: str | None = None) -> bytes:
    """Returns the line of a request, with a session or in the name of `who`. Raises UsageError if it is too long."""
    asker = {"who": who} if session is None else {"session": session}
    line = encoded({"verb": verb, **asker, "arguments": dict(arguments)})
    if len(line) > LONGEST_REQUEST:
        raise UsageError(f"the request is too long ({len(line):,} bytes)", "ask for fewer paths at a time")
    return line


def read_request(line: bytes) -> Request:
    """Parses the request in a line. Raises RequestRefused, of kind usage."""
    try:
        fields = decoded(line)
    except ValueError:  # without its message, which would repeat the request
        raise RequestRefused("the request is not JSON", kind="usage") from None
    if not isinstance(fields, dict) or fields.keys() not in ({"verb", "who", "arguments"}, {"verb", "session", "arguments"}):
        raise RequestRefused("a request has verb, who or session, and arguments, and nothing else", kind="usage")
    verb, who, session, arguments = fields["verb"], fields.get("who", ""), fields.get("session"), fields["arguments"]
    if not isinstance(verb, str) or not isinstance(who, str) or not isinstance(arguments, dict):
        raise RequestRefused("verb and who must be strings, arguments an object", kind="usage")
    if "session" in fields and not isinstance(session, str):
        raise RequestRefused("session must be a string", kind="usage")
    return Request(verb, who, arguments, session)


def answer_line(answer: object) -> bytes:
    """Encodes an answer as a line."""
    return encoded({"ok": True, "answer": answer})


def stream_line(stream: StreamHeader) -> bytes:
    """Encodes the line before a stream's frames."""
    return encoded({"ok": True, "stream": {"name": stream.name, "type": stream.type, "length": stream.length}})


def error_line(error: OperatorError) -> bytes:
    """Encodes an error as a line."""
    is_public = isinstance(error, StateConflict) or (isinstance(error, RequestRefused) and error.is_public)
    job = {"job": error.job} if isinstance(error, RequestRefused) and error.job else {}
    return encoded({"ok": False, "error": error.message, "hint": error.hint, "kind": kind_of(error), "own": is_public, **job})


def kind_of(error: OperatorError) -> str:
    """Returns the kind of an error, one of KINDS."""
    if isinstance(error, RequestRefused):
        return error.kind
    return next((kind for of, kind in _OF_ERRORS if isinstance(error, of)), "failed")


def read_answer(line: bytes) -> Any:
    """Decodes an answer: a StreamHeader, or any other value. Raises RequestRefused."""
    try:
        fields = decoded(line)
        if not fields["ok"]:
            job, is_public = fields.get("job"), fields.get("own") is True
            raise RequestRefused(
                str(fields["error"]),
                str(fields["hint"]),
                str(fields["kind"]),
                is_public=is_public,
                job=job if isinstance(job, str) else None,
            )
        if "stream" in fields:
            stream = fields["stream"]
            return StreamHeader(str(stream["name"]), str(stream["type"]), stream["length"])
        return fields["answer"]
    except (ValueError, KeyError, TypeError):
        raise RequestRefused("the service sent an invalid answer", "check that it has the same version") from None
