"""Reads the catalogue without writing anything; see docs/decisions/0018. The dashboard reads a copy: docs/decisions/0075.

In WAL mode a reader needs the files -wal and -shm. The last writer to close the catalogue writes everything into the file itself
and deletes both. A reader that may not create them gets SQLITE_READONLY_DIRECTORY then, which is most of the day. So each query
checks first:

- If there is a -wal, some program has the catalogue open, or was killed. SQLite's own read-only mode (`mode=ro`) is right in both
  cases. It holds a lock that keeps the -wal in place until the connection is closed.
- If there is none, the file is complete and has no writer. It is read as a file that never changes (`immutable=1`), to the end of
  the result. Afterwards it must still be the same file without a -wal; otherwise the result is discarded and the query runs again.

Only SQLite opens the file here: closing it elsewhere would drop the locks of this process's other connections.
"""

import shlex
import sqlite3
import time
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from btrkeep.catalogue import migrate, tables
from btrkeep.catalogue.sqlite import NOT_OURS, QueryResult, Row, Session, Values, busy, text_out
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import HINT, answers

PATIENCE = 5.0
"""Seconds of trying before a query gives up: the moments in which files appear or disappear last microseconds."""
_PAUSE = 0.002
_TRUSTED = 10.0  # seconds; the dashboard opens the catalogue for each request
_MADE_BY = "`backupd check` creates it; if it was lost, `backupd rebuild` creates it from the pool"
_SETTLED = 50_000_000  # ns; a second change within a tick of the filesystem's clock would leave the same time
_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_SCHEMA,
)


class CatalogueUnready(OperatorError):
    """The catalogue does not exist, is not readable, or has another version: trying again would not help."""


# Identifies the state of a file: its inode and size, and when its content and its metadata last changed.
Mark = tuple[int, int, int, int]


class ReadOnlySession(Session):
    """A session that only reads. Each query sees one consistent state of the catalogue."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._mark: Mark | None = None  # of the file that is opened as immutable

    def _answer(self, query: str, values: Values) -> QueryResult:
        """Repeats the query until the catalogue has not changed while it ran."""
        deadline = time.monotonic() + PATIENCE
        while not self._closed:
            try:
                if answer := self._try(query, values):
                    return answer
            except sqlite3.DatabaseError as error:
                if not _is_passing(error.sqlite_errorcode) or time.monotonic() > deadline:
                    raise
            else:
                if time.monotonic() > deadline:
                    raise busy(self.path)
            self._let_go()
            time.sleep(_PAUSE)
        raise sqlite3.ProgrammingError("the catalogue is closed")

    def _try(self, query: str, values: Values) -> QueryResult | None:
        """Returns None if the file changed while it was read."""
        connection = self._settled()
        if connection is None:
            return None
        if self._mark is None:
            return connection.execute(query, values)
        try:
            rows = connection.execute(query, values).fetchall()
        except (sqlite3.DatabaseError, *NOT_OURS):
            if self._mark == _mark(self.path):
                raise
            return None  # the file changed while it was read, so the error may not be the catalogue's
        return _FetchedRows(rows) if self._mark == _mark(self.path) else None

    def _settled(self) -> sqlite3.Connection | None:
        """Returns the open file; None if it was written so recently that two states could not be distinguished."""
        if self._connection and self._mark and self._mark != _mark(self.path):
            self._let_go()
        if self._connection is None:
            mark = _mark(self.path)
            if mark and abs(time.time_ns() - max(mark[2:])) < _SETTLED:
                return None
            self._connection, self._mark = _connected(self.path, immutable=mark is not None), mark
        return self._connection

    def _let_go(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = self._mark = None

    def _meaning(self, error: sqlite3.Error) -> OperatorError | None:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN or (code & 0xFF == sqlite3.SQLITE_READONLY and _is_passing(code)):
            return CatalogueUnready(
                f"the catalogue {self.path} cannot be opened for reading",
                f"make its folder and its files readable for this user: `ls -la {shlex.quote(str(self.path.parent))}`",
            )
        return super()._meaning(error)


class CopySession(ReadOnlySession):
    """A session on the dashboard's copy, which never changes: all queries see the copy that existed at the first one."""

    def _answer(self, query: str, values: Values) -> QueryResult:
        if self._connection is None and not self._closed:
            self._connection = _connected(self.path, immutable=True)
        return self._open().execute(query, values)


class _FetchedRows:
    """Rows that were read completely."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = iter(rows)

    def fetchmany(self, size: int) -> list[Row]:
        return list(islice(self._rows, size))


def state_mark(path: Path) -> tuple[Mark | None, Mark | None]:
    """Returns a value that differs for each state of the catalogue, from the file and its -wal."""
    return _file_mark(path), _file_mark(_beside(path, "-wal"))


def _mark(path: Path) -> Mark | None:
    """Returns a value that differs for each state of the file; None if the file is missing or not the complete catalogue."""
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
    """Returns True if the cause may be files that appear and disappear. Plain READONLY is a bug: an attempt to write."""
    return code & 0xFF in _PASSING or (code & 0xFF == sqlite3.SQLITE_READONLY and code != sqlite3.SQLITE_READONLY)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def require_schema(session: Session) -> None:
    """Raises CatalogueUnready if the schema is not the one of this code: a reader cannot migrate it."""
    version = migrate.version_of(session)
    if not version:
        raise CatalogueUnready(f"the catalogue {session.path} is still empty", _MADE_BY)
    if version != tables.SCHEMA_VERSION:
        raise CatalogueUnready(
            f"the catalogue {session.path} has the older schema {version}, this btrkeep reads {tables.SCHEMA_VERSION}",
            "any command of this version migrates it, such as: `backupd status`",
        )


def require_catalogue(path: Path) -> None:
    """Raises CatalogueUnready if there is no catalogue, if this user may not read it, or if its folder does not answer."""
    if not answers(path.parent, _TRUSTED):
        raise CatalogueUnready(migrate.unanswered(path), HINT)
    try:
        path.stat()
    except FileNotFoundError:
        raise CatalogueUnready(f"there is no catalogue {path} yet", f"{_MADE_BY}; check also `state` in [pool]") from None
    except OSError as error:
        hint = f"`ls -la {shlex.quote(str(path.parent))}`"
        raise CatalogueUnready(f"the catalogue {path} cannot be read: {error.strerror}", hint) from error


def _connected(path: Path, *, immutable: bool) -> sqlite3.Connection:
    file = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"
    kinds = sqlite3.PARSE_COLNAMES
    connection = sqlite3.connect(file, uri=True, timeout=PATIENCE, isolation_level=None, detect_types=kinds)
    connection.text_factory = text_out
    connection.execute("PRAGMA query_only = ON")
    return connection
