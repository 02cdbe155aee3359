"""Reads the values of a request: paths of files, numbers, choices, times, names of backups, and the address to continue at.

The paths of files in backups are the host's bytes, and often not valid UTF-8. In an address a path is the parameter `path`,
percent-encoded byte by byte; Werkzeug would decode it as UTF-8 and lose other bytes. In a form it is a field of that name with the
same percent-encoded text: a browser sends it unchanged.
"""

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime, time
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes, urlencode, urlsplit
from zoneinfo import ZoneInfo

from flask import abort, has_request_context, request

from btrkeep.serving.protocol import WHICH_BACKUP
from btrkeep.units import parse_time

NAME = "path"
LONGEST = 4096
"""Maximum bytes; Linux has no longer paths."""
_PLAIN = "/"


def path_of_request() -> bytes:
    """Returns the path in this request's address; the root if there is none; aborts with 400 if it is invalid."""
    paths = _in_query()
    return _checked(paths[-1]) if paths else b"/"


def paths_of_request() -> list[bytes]:
    """Returns all paths in the address; aborts with 400 if one is invalid."""
    return [_checked(raw) for raw in _in_query()]


def paths_of_form(name: str = NAME) -> list[bytes]:
    """Returns the paths in the fields of that name of a form, as `path_text` wrote them; aborts with 400 if one is invalid."""
    return [path_of_text(text) for text in request.form.getlist(name)]


def path_of_text(text: str) -> bytes:
    """Returns the path from the text of `path_text`; aborts with 400 if it is invalid."""
    try:
        return _checked(unquote_to_bytes(text.encode("ascii")))
    except UnicodeEncodeError:
        abort(400, "percent-encode the path")


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
    paths = []
    for part in request.query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if unquote_to_bytes(name.replace(b"+", b" ")) == NAME.encode():
            paths.append(unquote_to_bytes(value.replace(b"+", b" ")))
    return paths


def _checked(path: bytes) -> bytes:
    """Returns the path if it is absolute, without a NUL and without `.` and `..`; removes redundant slashes."""
    if not path.startswith(b"/") or b"\0" in path or len(path) > LONGEST:
        abort(400, "a path begins with / and has at most 4096 bytes")
    parts = [part for part in path.split(b"/") if part]
    if b"." in parts or b".." in parts:
        abort(400, "a path must not contain . or ..")
    return b"/" + b"/".join(parts)


_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


def number(name: str, default: int | None = None, most: int = 2**63 - 1) -> int | None:
    """Returns a non-negative integer; ignores an invalid one."""
    text = request.args.get(name, "")
    return min(int(text[:19]), most) if text.isascii() and text.isdigit() else default


def choice(name: str, words: Collection[str]) -> str | None:
    """Returns one of the known words; ignores any other."""
    text = request.args.get(name)
    return text if text in words else None


def moment(name: str, now: datetime) -> datetime | None:
    """Parses a time (RFC 3339), or a day, for which its midnight in UTC counts; aborts with 400 if it is invalid."""
    text = request.args.get(name, "").strip()
    if not text:
        return None
    try:
        return min(parse_time(f"{text}T00:00:00Z" if len(text) == len("2026-11-20") else text), now)
    except ValueError as error:
        abort(400, str(error))


def which_of_request(name: str) -> str | None:
    """Returns the requested backup, None if none is named; aborts with 400 if it is invalid."""
    backup = request.values.get(name)
    if not backup:
        return None
    if not WHICH_BACKUP.fullmatch(backup):
        abort(400, "name a backup like 2026-11-20T220003Z, by the start of such a name, or as latest")
    return backup


def number_of_request(name: str, default: int) -> int:
    """Returns an integer; aborts with 400 if it is invalid."""
    text = request.args.get(name, str(default))
    if not _WHOLE.fullmatch(text):
        abort(400, f"{name} must be a whole number")
    return int(text)


_LONGEST = 2000


def is_within(address: str) -> bool:
    """Returns True if the address is on this site. Browsers treat a backslash as a slash, and ignore tabs and newlines."""
    if not address.startswith("/") or address.startswith("//") or "\\" in address or len(address) > _LONGEST:
        return False
    if not address.isascii() or not address.isprintable():
        return False
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return not parts.scheme and not parts.netloc


def within(address: str | None) -> str:
    """Returns the address, or the front page."""
    return address if address and is_within(address) else "/"


def next_of_request() -> str | None:
    """Returns the page to show after the login; None for the front page, and for a submitted form, which must not be sent twice."""
    if request.method != "GET":
        return None
    query = request.query_string.decode("latin-1")  # unparsed: paths in it may not be UTF-8
    address = f"{quote(request.path)}?{query}" if query else quote(request.path)
    return address if address != "/" and is_within(address) else None


ALL_ROWS = 10_000
_TELEPHONE = 25


def is_csv() -> bool:
    """Returns True if a table of the page is downloaded (`web.csv_tables`)."""
    return has_request_context() and "csv" in request.args


def rows_per_page(usual: int) -> int:
    """Returns the number of rows of a list's page: all for a download, few on a telephone, which names itself `Mobile`."""
    if is_csv():
        return ALL_ROWS
    return min(usual, _TELEPHONE) if has_request_context() and "Mobi" in request.user_agent.string else usual


def day_of_form(name: str, zone: ZoneInfo) -> datetime | None:
    """Returns the start of the day in a field of the form, in that zone; None without a day; aborts with 400 for any other text."""
    text = request.form.get(name, "").strip()
    if not text:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(0), zone)
    except ValueError:
        abort(400, "write the day like 2027-01-31")
