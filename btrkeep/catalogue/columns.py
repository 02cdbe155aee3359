"""How values are stored: plain text and numbers that mean the same in every database and can be read with `sqlite3
catalogue.sqlite`.

On the way in, a value is converted by its type (`bound`), except JSON, which `Table.values` encodes. On the way out, all text goes
through `text_out`. Columns that hold more than text say so in the query: `started AS "started [moment]"` makes sqlite3 call the
conversion from C, for values that are neither NULL nor empty. A list of 96,000 backups has 700,000 values; a Python function called
for each row would take longer than the query.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from btrkeep.causes import Cause, Condition, cause_of, conditions_of

_UNSTORABLE = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|x00|u[0-9a-f]{4})")
_HIGHEST = (1 << 63) - 1


def escape(text: str) -> str:
    r"""`text` as a database can keep it: a surrogate becomes \udcff, a NUL \x00, and so that it can be undone, a backslash two.

    Names from hosts are bytes; those that are not UTF-8 arrive as surrogate escapes (PEP 383), which neither SQLite nor PostgreSQL
    can store, and PostgreSQL stores no NUL.
    """
    return _UNSTORABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return "\\\\" if char == "\\" else "\\x00" if char == "\x00" else f"\\u{ord(char):04x}"


def unescape(text: str) -> str:
    """Reverses `escape`."""
    return _ESCAPED.sub(_unescaped, text) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return "\\" if code == "\\" else chr(int(code[1:], 16))


class Json(str):
    """JSON in ASCII, which keeps surrogates and NULs by its own escapes."""

    __slots__ = ()


def bound(value: Any) -> Any:
    """Converts a value for the catalogue. Raises ValueError for a time without a zone.

    A number that is too large becomes the nearest one that a database can hold. The engine already bounds numbers that come from
    hosts or from records. This catches the ones it misses, because a single number out of range would fail the
    whole transaction, including the rows of other hosts.
    """
    kind = type(value)
    if kind is str:
        return escape(value)
    if kind is int:
        return max(-_HIGHEST, min(value, _HIGHEST))
    if kind is datetime:
        return moment(value)
    return value


def moment(when: datetime) -> str:
    """RFC 3339 of fixed width, so that text order is time order: 2026-11-20T22:00:03.000000Z. Raises ValueError without a zone."""
    if when.tzinfo is None:
        raise ValueError(f"{when!r} has no zone: the catalogue takes aware times only")
    return when.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def lines_in(lines: tuple[str, ...]) -> Json | None:
    """Some lines of text as a JSON array; none is NULL."""
    return Json(json.dumps(lines)) if lines else None


def names_in(names: Collection[str]) -> Json:
    """Names for a query that looks for them with json_each: a statement takes only so many values one by one."""
    return Json(json.dumps([escape(name) for name in names]))


def document_in(document: Mapping[str, object]) -> Json:
    """A JSON object."""
    return Json(json.dumps(dict(document), separators=(",", ":")))


def rows_in(rows: tuple[tuple[int, ...], ...]) -> Json:
    """Rows of whole numbers as a JSON array of arrays."""
    return Json(json.dumps(rows, separators=(",", ":")))


def cause_in(cause: Cause) -> Json:
    """A cause as a JSON object."""
    return Json(json.dumps(cause.as_json(), separators=(",", ":")))


def cause_out(raw: bytes | str) -> Cause | None:
    """The cause of a column; None for one that is damaged or that only a newer version knows: the row has its words besides."""
    try:
        return cause_of(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def _conditions_out(raw: bytes) -> tuple[Condition, ...]:
    """The conditions of a column; none from one that is damaged: the backup has its warnings besides."""
    try:
        return conditions_of(json.loads(raw))
    except (ValueError, RecursionError):
        return ()


def text_out(raw: bytes) -> str:
    """The text_factory of a connection."""
    return unescape(raw.decode())


def _rows_out(raw: bytes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in json.loads(raw))


OUT: Mapping[str, Callable[[bytes], Any]] = {
    "moment": lambda raw: datetime.fromisoformat(raw.decode()),
    "lines": lambda raw: tuple(json.loads(raw)) if raw != b"[]" else (),
    "document": json.loads,
    "rows": _rows_out,
    "flag": lambda raw: raw != b"0",
    "cause": cause_out,
    "conditions": _conditions_out,
}
"""How a value comes out of a column that a query names so, in brackets."""
for _name, _conversion in OUT.items():
    sqlite3.register_converter(_name, _conversion)
