"""Reading the catalogue without the right to write anything, as the dashboard does; see docs/decisions/0018.

In WAL mode a reader needs the files -wal and -shm. The last writer to close the catalogue has everything in the file itself and
deletes both; a reader that may not make them anew then gets SQLITE_READONLY_DIRECTORY, and that is most of the day. So each
query looks first:

- There is a -wal: somebody has the catalogue open, or was killed. SQLite's own reading (`mode=ro`) is right in both cases. It holds
  a lock that keeps the -wal where it is until the connection is closed.
- There is none: the file is complete by itself and nobody writes. It is read as a file that never changes (`immutable=1`), to the
  end of the result; then it has to be still the same file, without a -wal. If not, the result is thrown away and the query runs
  again.

Nobody but SQLite opens the file here: closing it would drop the locks of this process's other connections.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.pool import NullPool

from btrkeep.catalogue import migrate, tables
from btrkeep.catalogue.sqlite import meaning_of
from btrkeep.errors import OperatorError

PATIENCE = 5.0
"""Seconds of trying before a query gives up: a moment in which the files come or go lasts microseconds."""
_PAUSE = 0.002
_SETTLED = 50_000_000  # ns; a change within one tick of the filesystem's clock after another would leave the same time
_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_SCHEMA,
)


class CatalogueUnready(OperatorError):
    """The catalogue is not there, not readable, or of another version: nothing that trying again would help."""


# What tells one state of a file from another: its inode, its size, and when its content and anything of it changed last.
Mark = tuple[int, int, int, int]


class ReadOnlyConnection:
    """As much of a DBAPI connection as SQLAlchemy asks of one that only reads. Each query sees one state of the catalogue."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._mark: Mark | None = None  # of the file that is read as one that never changes
        self._functions: list[tuple[Any, ...]] = []

    def cursor(self) -> "ReadOnlyCursor":
        """A cursor for one query after the other."""
        return ReadOnlyCursor(self)

    def create_function(self, *words: Any, **named: Any) -> None:
        """Nothing: SQLAlchemy would add a function for regular expressions, which no query here uses."""

    def commit(self) -> None:
        """Nothing is to be committed."""

    def rollback(self) -> None:
        """Nothing is to be rolled back."""

    def close(self) -> None:
        """Close the file."""
        if self._open:
            self._open.close()
        self._open = self._mark = None

    def run(self, statement: str, values: Any) -> "tuple[sqlite3.Cursor, list[Any] | None]":
        """The cursor of the query and its rows; the rows are None where SQLite itself sees to it that they stay the same."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if answer := self._try(statement, values):
                    return answer
            except sqlite3.DatabaseError as error:
                if not _is_passing(error.sqlite_errorcode) or time.monotonic() > deadline:
                    raise
            else:
                if time.monotonic() > deadline:
                    raise sqlite3.OperationalError("database is locked: it changed whenever it was read")
            self.close()
            time.sleep(_PAUSE)

    def _try(self, statement: str, values: Any) -> "tuple[sqlite3.Cursor, list[Any] | None] | None":
        """None when the file changed meanwhile."""
        connection = self._connection()
        if connection is None:
            return None
        if self._mark is None:
            return connection.execute(statement, values), None
        try:
            cursor = connection.execute(statement, values)
            rows = cursor.fetchall()
        except sqlite3.DatabaseError:
            if self._mark == _mark(self._path):
                raise
            return None  # half of the file was new: whatever the error says, it is no news of the catalogue
        return (cursor, rows) if self._mark == _mark(self._path) else None

    def _connection(self) -> sqlite3.Connection | None:
        """The open file; None when it was written a moment ago, which is too near to tell one state from the next."""
        if self._open and self._mark and self._mark != _mark(self._path):
            self.close()
        if self._open is None:
            mark = _mark(self._path)
            if mark and abs(time.time_ns() - max(mark[2:])) < _SETTLED:
                return None
            self._open, self._mark = _opened(self._path, immutable=mark is not None), mark
        return self._open


class ReadOnlyCursor:
    """A cursor of PEP 249, as far as it reads."""

    arraysize = 1
    rowcount = -1
    lastrowid = None

    def __init__(self, connection: ReadOnlyConnection) -> None:
        self._connection = connection
        self._cursor: sqlite3.Cursor | None = None
        self._rows: Iterator[Any] = iter(())

    @property
    def description(self) -> Any:
        """The columns of the result; None before there is one."""
        return self._cursor.description if self._cursor else None

    def execute(self, statement: str, values: Any = ()) -> "ReadOnlyCursor":
        """Run one query."""
        self._cursor, rows = self._connection.run(statement, values)
        self._rows = iter(self._cursor if rows is None else rows)
        return self

    def executemany(self, _statement: str, _values: Sequence[Any]) -> None:
        """Refused: only what writes is run many times."""
        raise sqlite3.NotSupportedError("the catalogue is open for reading")

    def fetchone(self) -> Any:
        """The next row, None at the end."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """So many rows, or what is left."""
        return [row for _, row in zip(range(size or self.arraysize), self._rows, strict=False)]

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return list(self._rows)

    def close(self) -> None:
        """Give up the rest of the result."""
        if self._cursor:
            self._cursor.close()
        self._rows = iter(())


def state_mark(path: Path) -> tuple[Mark | None, Mark | None]:
    """What tells one state of the catalogue from another: of the file and of its -wal."""
    return _file_mark(path), _file_mark(_beside(path, "-wal"))


def _mark(path: Path) -> Mark | None:
    """What tells one state of the file from another; None when the file is not all of the catalogue, or not there."""
    if _file_mark(_beside(path, "-wal")) or _file_mark(_beside(path, "-journal")):
        return None
    return _file_mark(path)


def _file_mark(path: Path) -> Mark | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_passing(code: int) -> bool:
    """Whether it may come of files that come and go. Plain READONLY is ours: somebody tries to write."""
    return code & 0xFF in _PASSING or (code & 0xFF == sqlite3.SQLITE_READONLY and code != sqlite3.SQLITE_READONLY)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def read_only_engine(path: Path) -> Engine:
    """An engine that reads the file, as each query finds it. Its errors are OperatorErrors of what can be done."""
    engine = create_engine("sqlite://", creator=lambda: ReadOnlyConnection(path), poolclass=NullPool)

    @event.listens_for(engine, "handle_error")
    def explain(context: ExceptionContext) -> BaseException | None:
        code = getattr(context.original_exception, "sqlite_errorcode", sqlite3.SQLITE_OK)
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN or (code & 0xFF == sqlite3.SQLITE_READONLY and _is_passing(code)):
            return CatalogueUnready(
                f"the catalogue {path} cannot be opened for reading",
                f"its folder and its files have to be readable for this user: ls -la {path.parent}",
            )
        return meaning_of(context.original_exception, path)

    return engine


def see_schema(connection: Connection, path: Path) -> None:
    """Raises CatalogueUnready when the schema is another than this code knows: who only reads cannot migrate it."""
    version = migrate.version_of(connection, path)
    if version is None:
        raise CatalogueUnready(f"the catalogue {path} is empty so far", "`backupd check` makes it")
    if version != tables.SCHEMA_VERSION:
        raise CatalogueUnready(
            f"the catalogue {path} has the older schema {version}, this btrkeep reads {tables.SCHEMA_VERSION}",
            "any command of this version migrates it, such as: backupd status",
        )


def see_there(path: Path) -> None:
    """Raises CatalogueUnready when there is no catalogue, or not for this user."""
    try:
        path.stat()
    except FileNotFoundError:
        raise CatalogueUnready(f"there is no catalogue {path} yet", "`backupd check` makes it; see also [pool] state") from None
    except OSError as error:
        raise CatalogueUnready(f"the catalogue {path} cannot be read: {error.strerror}", f"ls -la {path.parent}") from error


def _opened(path: Path, *, immutable: bool) -> sqlite3.Connection:
    how = "mode=ro&immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=PATIENCE, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    return connection
