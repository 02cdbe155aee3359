"""Paths of files in backups, in addresses and forms. They are the host's bytes, and often not valid UTF-8.

In an address a path is the parameter `path`, percent-encoded byte by byte; Werkzeug would decode it as UTF-8 and lose other bytes.
In a form it is a field of that name, which holds the same percent-encoded text: a browser sends it unchanged.
"""

from collections.abc import Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlencode

from flask import abort, request

NAME = "path"
LONGEST = 4096
"""Bytes; Linux has no longer path."""
_PLAIN = "/"


def path_of_request() -> bytes:
    """Returns the path in this request's address, the root without one; aborts with 400 if it is invalid."""
    found = _in_query()
    return _checked(found[-1]) if found else b"/"


def paths_of_request() -> list[bytes]:
    """Returns all paths in the address; aborts with 400 if one is invalid."""
    return [_checked(raw) for raw in _in_query()]


def paths_of_form(name: str = NAME) -> list[bytes]:
    """Returns the paths in the fields of that name of a form, as `path_text` wrote them; aborts with 400 if one is invalid."""
    return [path_of_text(text) for text in request.form.getlist(name)]


def path_of_text(text: str) -> bytes:
    """Returns the path that `path_text` wrote; aborts with 400 if it is invalid."""
    try:
        return _checked(unquote_to_bytes(text.encode("ascii")))
    except UnicodeEncodeError:
        abort(400, "a path in a form is percent-encoded")


def path_text(path: bytes) -> str:
    """Returns the path as ASCII, percent-encoded: for a hidden field, or as a key."""
    return quote_from_bytes(path, safe=_PLAIN)


def path_query(path: bytes, **more: str | int | None) -> str:
    """Returns `path=...&NAME=...` for an address; leaves out values that are None."""
    others: Mapping[str, str | int] = {name: value for name, value in more.items() if value is not None}
    first = f"{NAME}={path_text(path)}"
    return f"{first}&{urlencode(others)}" if others else first


def _in_query() -> list[bytes]:
    """Returns the raw values of the parameter. A form writes a blank in an address as a plus."""
    found = []
    for part in request.query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if unquote_to_bytes(name.replace(b"+", b" ")) == NAME.encode():
            found.append(unquote_to_bytes(value.replace(b"+", b" ")))
    return found


def _checked(path: bytes) -> bytes:
    """Returns the path if it is absolute, without a NUL and without `.` and `..`; removes redundant slashes."""
    if not path.startswith(b"/") or b"\0" in path or len(path) > LONGEST:
        abort(400, "a path begins with / and is no longer than 4096 bytes")
    parts = [part for part in path.split(b"/") if part]
    if b"." in parts or b".." in parts:
        abort(400, "a path has no . and no .. in it")
    return b"/" + b"/".join(parts)
