"""How values are kept: column types that mean the same on every database.

Each takes and gives Python's own values and keeps plain text, readable with `sqlite3 catalogue.sqlite`. The conversions are handed
to SQLAlchemy as bare functions (bind_processor, result_processor) and not as the usual methods of a TypeDecorator, which cost a
second call for each value: a list of 96,000 backups has 700,000 of them.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

_UNSTORABLE = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|x00|u[0-9a-f]{4})")


def escape(text: str | None) -> str | None:
    r"""`text` as a database can keep it: a surrogate becomes \udcff, a NUL \x00, and so that it can be undone, a backslash two.

    Names from hosts are bytes; those that are no UTF-8 arrive as surrogate escapes (PEP 383), which neither SQLite nor PostgreSQL
    can store, and PostgreSQL stores no NUL.
    """
    return _UNSTORABLE.sub(_escaped, text) if text else text


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return "\\\\" if char == "\\" else "\\x00" if char == "\x00" else f"\\u{ord(char):04x}"


def unescape(text: str | None) -> str | None:
    """What `escape` was given."""
    return _ESCAPED.sub(_unescaped, text) if text and "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return "\\" if code == "\\" else chr(int(code[1:], 16))


def _time_in(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no zone: the catalogue takes aware times only")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _time_out(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _name_in(name: str | None) -> str:
    return escape(name) or ""


def _name_out(text: str) -> str | None:
    return unescape(text) or None


def _lines_in(lines: tuple[str, ...] | None) -> str | None:
    return json.dumps(lines) if lines else None


def _lines_out(text: str | None) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()


def _document_in(document: Mapping[str, object] | None) -> str | None:
    return None if document is None else json.dumps(dict(document), separators=(",", ":"))


def _document_out(text: str | None) -> dict[str, object]:
    return json.loads(text) if text else {}


def _rows_in(rows: tuple[tuple[int, ...], ...]) -> str:
    return json.dumps(rows, separators=(",", ":"))


def _rows_out(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in json.loads(text))


class _Kept(TypeDecorator[Any]):
    """Text in the database; `_in` and `_out` convert a value, None too."""

    impl = Text
    cache_ok = True
    _in: Callable[[Any], Any]
    _out: Callable[[Any], Any]

    def bind_processor(self, _dialect: Dialect) -> Callable[[Any], Any]:
        return type(self)._in

    def result_processor(self, _dialect: Dialect, _coltype: object) -> Callable[[Any], Any]:
        return type(self)._out

    def coerce_compared_value(self, _op: object, _value: object) -> "_Kept":
        return self  # also when compared with None, which for a Name is a value


class Words(_Kept):
    """Text of any kind, that of hosts too. See `escape`."""

    cache_ok = True
    _in, _out = staticmethod(escape), staticmethod(unescape)


class Name(_Kept):
    """A backup's name, or None while it is in `.working`: kept as '', because NULLs are never equal and a key must be unique."""

    cache_ok = True
    _in, _out = staticmethod(_name_in), staticmethod(_name_out)


class Moment(_Kept):
    """An aware UTC datetime, kept as RFC 3339 of fixed width, so that text order is time order: 2026-11-20T22:00:03.000000Z."""

    cache_ok = True
    _in, _out = staticmethod(_time_in), staticmethod(_time_out)


class Lines(_Kept):
    """Some lines of text, kept as a JSON array; none is NULL. JSON in ASCII keeps surrogates and NULs by its own escapes."""

    cache_ok = True
    _in, _out = staticmethod(_lines_in), staticmethod(_lines_out)


class Document(_Kept):
    """A JSON object, in ASCII."""

    cache_ok = True
    _in, _out = staticmethod(_document_in), staticmethod(_document_out)


class Rows(_Kept):
    """Rows of whole numbers, kept as a JSON array of arrays. Never NULL."""

    cache_ok = True
    _in, _out = staticmethod(_rows_in), staticmethod(_rows_out)
