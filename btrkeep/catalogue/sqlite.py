"""SQLite: how values are stored, how a connection is set up and queried, what its errors mean. Only this module, migrate.py and
readonly.py depend on the database.

Values are plain text and numbers that mean the same in every database and can be read with `sqlite3 catalogue.sqlite`. On the way
in, a value is converted by its type (`bound`), except JSON, which `Table.values` encodes. On the way out, all text goes through
`text_out`. For columns that hold more than text, the query names the conversion: `started AS "started [moment]"` makes sqlite3 call
it from C, for values that are neither NULL nor empty. A list of 96,000 backups has 700,000 values; a Python function called for
each row would take longer than the query.

Python's own transaction handling (begin before the first INSERT, and none for a SELECT) is switched off. A connection is in
autocommit, each query its own read transaction; all writes are within a BEGIN IMMEDIATE. A deferred transaction that reads first
and then writes fails at once with "database is locked" when another process has written in between; an immediate one waits its
turn, up to BUSY_TIMEOUT. See https://www.sqlite.org/lang_transaction.html.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from btrkeep.backup_states import Cause, Condition, cause_of, conditions_of
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import OperatorError
from btrkeep.units import LARGEST_NUMBER

_UNSTORABLE = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|x00|u[0-9a-f]{4})")


def escape(text: str) -> str:
    r"""Converts `text` to a form that a database can store: a surrogate becomes \udcff, a NUL \x00, and so that it can be reversed,
    a backslash two.

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
    """JSON in ASCII, which represents surrogates and NULs by its own escapes."""

    __slots__ = ()


def bound(value: Any) -> Any:
    """Converts a value for the catalogue. Raises ValueError for a time without a zone.

    A number that is too large becomes the nearest one that a database can store. Other code already limits numbers from hosts or
    from records. This catches the ones it misses, because a single number out of range would fail the whole transaction, including
    the rows of other hosts.
    """
    kind = type(value)
    if kind is str:
        return escape(value)
    if kind is int:
        return max(-LARGEST_NUMBER, min(value, LARGEST_NUMBER))
    if kind is datetime:
        return moment(value)
    return value


def moment(when: datetime) -> str:
    """RFC 3339 of fixed width, so that text order is time order: 2026-11-20T22:00:03.000000Z. Raises ValueError without a zone."""
    if when.tzinfo is None:
        raise ValueError(f"{when!r} has no zone, so the catalogue cannot store it")
    return when.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def lines_in(lines: tuple[str, ...]) -> Json | None:
    """Returns lines of text as a JSON array; without lines NULL."""
    return Json(json.dumps(lines)) if lines else None


def names_in(names: Collection[str]) -> Json:
    """Returns names for a query that uses json_each: the number of separate values in a statement is limited."""
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
    """Returns the cause of a column; None for a damaged one or one of a newer version: the row also has its text."""
    try:
        return cause_of(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def _conditions_out(raw: bytes) -> tuple[Condition, ...]:
    """Returns the conditions of a column; none for a damaged one: the backup still has its warnings."""
    try:
        return conditions_of(json.loads(raw))
    except (ValueError, RecursionError):
        return ()


def text_out(raw: bytes) -> str:
    """The text_factory of a connection."""
    return unescape(raw.decode())


OUT: Mapping[str, Callable[[bytes], Any]] = {
    "moment": lambda raw: datetime.fromisoformat(raw.decode()),
    "lines": lambda raw: tuple(json.loads(raw)) if raw != b"[]" else (),
    "document": json.loads,
    "rows": lambda raw: tuple(map(tuple, json.loads(raw))),
    "flag": lambda raw: raw != b"0",
    "cause": cause_out,
    "conditions": lambda raw: _conditions_out(raw) if raw != b"[]" else (),
}
"""The conversions of a column's value, by the word in brackets with which a query names them."""
for _name, _conversion in OUT.items():
    sqlite3.register_converter(_name, _conversion)


BUSY_TIMEOUT = 30.0
"""Maximum time that a writer waits for others, in seconds."""
PAGE_CACHE = 16 << 20
"""Bytes. With SQLite's 2 MB, a list of 96,000 backups reads most pages many times."""
_AT_A_TIME = 1000  # rows
NOT_OURS = (ValueError, TypeError, RecursionError)
"""The exceptions of a conversion whose value this program did not write."""

Values = Mapping[str, Any]
Row = tuple[Any, ...]


class CatalogueBusy(OperatorError):
    """Another program was writing for longer than a writer waits. Nothing was changed; the caller may try again."""


class CatalogueUnusable(OperatorError):
    """The file is damaged, or its disk is full, broken or read-only. The pool still has all the data about backups."""


class CatalogueDamaged(CatalogueUnusable):
    """The file is damaged and must be rebuilt from the pool."""


class CatalogueContradicted(CatalogueDamaged):
    """An index disagrees with its table, for example after a flipped bit."""


class CatalogueFull(CatalogueUnusable):
    """The disk of the catalogue is full. Existing rows are undamaged."""


_REBUILD = "rebuild it from the pool: `backupd rebuild`"
_READ_ONLY = f"{'run this as root, and ' if os.geteuid() else ''}check that its filesystem is not read-only"
_Meaning = tuple[type[OperatorError], str, str]
_DAMAGED: _Meaning = (CatalogueDamaged, "the catalogue {path} is damaged: {error}", _REBUILD)
_FULL: _Meaning = (
    CatalogueFull,
    "there is no free space for the catalogue {path}",
    "free some space on the filesystem of {path} (df -h, df -i); nothing is lost",
)
_BROKEN: _Meaning = (
    CatalogueDamaged,
    "the catalogue {path} cannot be read or written: {error}",
    f"check dmesg for disk errors, then {_REBUILD}",
)
_BUSY: _Meaning = (
    CatalogueBusy,
    "the catalogue {path} was locked by another program for too long",
    "find it with `fuser -v {path}`",
)
_MEANINGS: Mapping[int, _Meaning] = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: (CatalogueContradicted, "the catalogue {path} is inconsistent: {error}", _REBUILD),
    sqlite3.SQLITE_IOERR: _BROKEN,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_PROTOCOL: _BUSY,  # a program holds a lock of the -shm file
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: (CatalogueUnusable, "the catalogue {path} cannot be written", _READ_ONLY),
    sqlite3.SQLITE_CANTOPEN: (CatalogueUnusable, "the catalogue {path} cannot be opened", _READ_ONLY),
}
"""By primary result code, or by a complete code if the other codes of its kind are bugs: https://www.sqlite.org/rescode.html."""
_OTHER_FORMAT = "unsupported file format"
"""SQLite's message about a header with an unknown format, which has no separate code."""
_FOR_LACK_OF_ROOM = (_BROKEN, _MEANINGS[sqlite3.SQLITE_CANTOPEN])
"""SQLite's errors when there is no space for the index of a journal, and when there is no inode for it."""
_NEEDED = 64 << 10
"""Bytes: the index of a journal takes 32 KB at once; without that space SQLite reports "disk I/O error"."""
_FILES_NEEDED = 2
"""Inodes: the journal and its index."""


class QueryResult(Protocol):
    """The result of a query, read like a cursor."""

    def fetchmany(self, size: int) -> list[Row]:
        """Returns the next `size` rows, or fewer at the end."""


class Session:
    """One connection to the catalogue: queries with named parameters, in Python's types.

    Raises OperatorError for problems that an operator can solve, else sqlite3's own errors. Used only by the thread that opened it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection | None = None) -> None:
        self.path = path
        self._connection = connection
        self._closed = False

    def all(self, query: str, values: Values = {}) -> list[Row]:  # noqa: B006  it is never changed
        """Returns all rows of the result."""
        return [row for batch in self._parts(query, values) for row in batch]

    def first(self, query: str, values: Values = {}) -> Row | None:  # noqa: B006
        """Returns the first row of the result, or None."""
        return next(iter(next(self._parts(query, values), ())), None)

    def value(self, query: str, values: Values = {}) -> Any:  # noqa: B006
        """Returns the first value of the first row, or None."""
        row = self.first(query, values)
        return row[0] if row else None

    def stream(self, query: str, values: Values = {}) -> Iterator[Row]:  # noqa: B006
        """Yields the rows, as they were when the first one was read. Raises sqlite3.ProgrammingError if closed before the end."""
        for batch in self._parts(query, values):
            for row in batch:
                yield row
                if self._closed:  # otherwise the rows fetched in advance would look like a complete result
                    raise sqlite3.ProgrammingError("the catalogue was closed before its rows were read to the end")

    def run(self, statement: str, values: Values = {}) -> sqlite3.Cursor:  # noqa: B006
        """Runs a statement that changes rows; `rowcount` is their number, `lastrowid` the key of a new one."""
        with self._explained():
            return self._open().execute(statement, _bound(values))

    def run_many(self, statement: str, rows: Sequence[Values]) -> int:
        """Runs the statement for each of the rows. Returns the number of changed rows."""
        with self._explained():
            return self._open().executemany(statement, map(_bound, rows)).rowcount if rows else 0

    @contextmanager
    def transaction(self, change: str) -> Iterator["Session"]:
        """A transaction: the block's changes are applied all together or not at all. `change` describes them. Other writers wait
        until it ends.
        """
        self.run("BEGIN IMMEDIATE")
        try:
            yield self
            with Checkpoint(change):
                self.run("COMMIT")
        except BaseException:
            if self._open().in_transaction:  # a full disk has already ended it
                self._open().rollback()
            raise

    @property
    def changes(self) -> int:
        """The number of rows that this connection has changed; 0 when it is closed."""
        return self._connection.total_changes if self._connection and not self._closed else 0

    def wait_at_most(self, seconds: float) -> None:
        """From now on this connection waits no longer than that for other writers."""
        self.run(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._connection:
            self._connection.close()

    def _parts(self, query: str, values: Values) -> Iterator[list[Row]]:
        given = _bound(values)
        with self._explained():
            try:
                cursor = self._answer(query, given)
                while batch := cursor.fetchmany(_AT_A_TIME):
                    yield batch
            except NOT_OURS as error:
                raise _error(_DAMAGED, self.path, error) from error

    def _answer(self, query: str, values: Values) -> "QueryResult":
        return self._open().execute(query, values)

    def _open(self) -> sqlite3.Connection:
        assert self._connection
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if meaning := self._meaning(error):
                raise meaning from error
            raise

    def _meaning(self, error: sqlite3.Error) -> OperatorError | None:
        return meaning_of(error, self.path)


def _bound(values: Values) -> Values:
    return {name: bound(value) for name, value in values.items()}


def opened(path: Path) -> Session:
    """A session on the file, to read and to write. Raises OperatorError."""
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, detect_types=sqlite3.PARSE_COLNAMES)
    except sqlite3.Error as error:
        raise (meaning_of(error, path) or error) from error
    connection.text_factory = text_out
    session = Session(path, connection)
    try:
        for setting in ("foreign_keys = ON", "synchronous = NORMAL", f"cache_size = -{PAGE_CACHE // 1024}"):
            session.run(f"PRAGMA {setting}")
    except BaseException:
        session.close()
        raise
    return session


def meaning_of(error: sqlite3.Error, path: Path) -> OperatorError | None:
    """Translates an error of SQLite into one with a remedy; None if it is a bug."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_ERROR and str(error) == _OTHER_FORMAT:
        return _error(_DAMAGED, path, error)
    if code is None and isinstance(error, sqlite3.OperationalError):  # raised by Python: text that is not UTF-8
        return _error(_DAMAGED, path, error)
    meaning = (_MEANINGS.get(code) or _MEANINGS.get(code & 0xFF)) if code is not None else None
    return _error(meaning, path, error) if meaning else None


def busy(path: Path) -> CatalogueBusy:
    """Returns the error for a catalogue that other programs locked all the time."""
    _, message, hint = _BUSY
    return CatalogueBusy(message.format(path=path), hint.format(path=path))


def _error(meaning: _Meaning, path: Path, error: Exception) -> OperatorError:
    kind, message, hint = _FULL if meaning in _FOR_LACK_OF_ROOM and _is_full(path.parent) else meaning
    facts = {"path": path, "error": error}
    return kind(message.format(**facts), hint.format(**facts))


def no_room(path: Path) -> CatalogueFull:
    """Returns the error for a file that could not be made."""
    _, message, hint = _FULL
    return CatalogueFull(message.format(path=path), hint.format(path=path))


def _is_full(folder: Path) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _NEEDED or (room.f_files > 0 and room.f_favail < _FILES_NEEDED)


def require_integrity(session: Session) -> None:
    """Raises CatalogueDamaged if any page of the file is not as SQLite wrote it; reads all of the file."""
    result = session.value("PRAGMA integrity_check(1)")
    if result != "ok":
        raise CatalogueDamaged(f"the catalogue {session.path} is damaged: {str(result).splitlines()[-1]}", _REBUILD)
