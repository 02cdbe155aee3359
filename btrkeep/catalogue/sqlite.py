"""SQLite: how a connection is set up, what its errors mean. With migrate.py and readonly.py the only modules that know which
database it is.

Python's own transaction handling (begin before the first INSERT, and none for a SELECT) is switched off. A connection is in
autocommit, each query its own read transaction, unless it was made for writing: then each transaction is a BEGIN IMMEDIATE.
A deferred one that reads first and then writes fails at once with "database is locked" when another process has written in
between; an immediate one waits its turn, up to BUSY_TIMEOUT. See https://www.sqlite.org/lang_transaction.html.
"""

import os
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from btrkeep.errors import OperatorError

BUSY_TIMEOUT = 30.0
"""How long a writer waits for the others, in seconds."""
PAGE_CACHE = 16 << 20
"""Bytes. SQLite's 2 MB make a list of 96,000 backups read most pages many times."""
_WRITING = "btrkeep_writing"
_HIGHEST = (1 << 63) - 1


class CatalogueBusy(OperatorError):
    """Another program was writing for longer than a writer waits. Nothing was changed; it may be tried again."""


class CatalogueUnusable(OperatorError):
    """The file is damaged, or its disk is full, broken or read-only. What it knows of backups the pool knows too."""


class CatalogueDamaged(CatalogueUnusable):
    """Making it anew from the pool is what helps."""


class CatalogueFull(CatalogueUnusable):
    """There is no room for it. What is there is not damaged by that."""


_REBUILD = "make it anew from the pool: backupd rebuild"
_READ_ONLY = "run this as root, and see that its filesystem is not read-only"
_DAMAGED = (CatalogueDamaged, "the catalogue {path} is damaged: {error}", _REBUILD)
_FULL = (
    CatalogueFull,
    "there is no room for the catalogue {path}",
    "make room on the filesystem of {path}; nothing is lost",
)
_BROKEN = (
    CatalogueDamaged,
    "the catalogue {path} cannot be read or written: {error}",
    f"look for disk errors (dmesg), then {_REBUILD}",
)
_MEANINGS: tuple[tuple[str, tuple[type[OperatorError], str, str]], ...] = (
    ("not a database", _DAMAGED),
    ("malformed", _DAMAGED),
    ("could not decode", _DAMAGED),
    ("disk i/o error", _BROKEN),
    ("locked", (CatalogueBusy, "the catalogue {path} was held by another program for too long", "see by whom: fuser -v {path}")),
    ("disk is full", _FULL),
    ("readonly", (CatalogueUnusable, "the catalogue {path} cannot be written", _READ_ONLY)),
    ("unable to open", (CatalogueUnusable, "the catalogue {path} cannot be opened", _READ_ONLY)),
)
_NEEDED = 64 << 10
"""Bytes: the index of a journal takes 32 KB at once, and when there is no room for it SQLite says "disk I/O error"."""


def engine_of(path: Path) -> Engine:
    """An engine for the file. Nothing is opened yet; no connection outlives its use, and each serves one thread."""
    arguments = {"timeout": BUSY_TIMEOUT, "check_same_thread": True}
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool, connect_args=arguments)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", _keep_within, retval=True)

    @event.listens_for(engine, "handle_error")
    def explain(context: ExceptionContext) -> BaseException | None:
        if isinstance(context.original_exception, (ValueError, TypeError)):  # a column's type refused a value of the caller's
            return context.original_exception
        return meaning_of(context.original_exception, path)

    return engine


def _keep_within(
    _connection: Connection, _cursor: object, statement: str, parameters: Any, _context: object, many: bool
) -> tuple[str, Any]:
    """Every number that is on its way into the catalogue, as one that SQLite can hold: the nearest.

    The engine bounds what it reads of a host, and a record that an earlier version wrote. This is for what is overlooked there: one
    number too large is an error for the whole transaction, and rows of other hosts are in it.
    """
    if many:
        return statement, [_within(row) for row in parameters]
    return statement, _within(parameters)


def _within(row: Any) -> Any:
    """The row itself as long as there is nothing to change."""
    if isinstance(row, tuple) and any(type(value) is int and not -_HIGHEST <= value <= _HIGHEST for value in row):
        return tuple(max(-_HIGHEST, min(value, _HIGHEST)) if type(value) is int else value for value in row)
    return row


def for_writing(connection: Connection) -> Connection:
    """The same connection; from now on its transactions are BEGIN IMMEDIATE."""
    return connection.execution_options(**{_WRITING: True})


def wait_at_most(connection: Connection, seconds: float) -> None:
    """From now on this connection waits no longer than that for other writers."""
    raw = connection.connection.driver_connection  # by SQLAlchemy's own it would begin a transaction, and so wait
    assert isinstance(raw, SqliteConnection)
    raw.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def meaning_of(error: BaseException, path: Path) -> OperatorError | None:
    """What the operator can do about an error of SQLite; None when it is no error of hers but ours."""
    text = str(error)
    for words, meaning in _MEANINGS:
        if words in text.lower():
            kind, message, hint = _FULL if meaning is _BROKEN and _is_full(path.parent) else meaning
            facts = {"path": path, "error": text}
            return kind(message.format(**facts), hint.format(**facts))
    return None


def no_room(path: Path) -> CatalogueFull:
    """The error for a file that could not be made."""
    _, message, hint = _FULL
    return CatalogueFull(message.format(path=path), hint.format(path=path))


def _is_full(folder: Path) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _NEEDED


def see_whole(connection: Connection, path: Path) -> None:
    """Raises CatalogueDamaged when any of its pages is not as SQLite left it; reads all of the file."""
    found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    if found != "ok":
        raise CatalogueDamaged(f"the catalogue {path} is damaged: {str(found).splitlines()[-1]}", _REBUILD)


def _set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    assert isinstance(connection, SqliteConnection)
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE // 1024}")


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITING):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
