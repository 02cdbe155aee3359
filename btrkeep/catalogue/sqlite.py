"""SQLite: how a connection is set up, what its errors mean. With migrate.py and readonly.py the only modules that know which
database it is.

Python's own transaction handling (begin before the first INSERT, and none for a SELECT) is switched off. A connection is in
autocommit, each query its own read transaction, unless it was made for writing: then each transaction is a BEGIN IMMEDIATE.
A deferred one that reads first and then writes fails at once with "database is locked" when another process has written in
between; an immediate one waits its turn, up to BUSY_TIMEOUT. See https://www.sqlite.org/lang_transaction.html.
"""

from pathlib import Path
from sqlite3 import Connection as SqliteConnection

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from btrkeep.errors import OperatorError

BUSY_TIMEOUT = 30.0
"""How long a writer waits for the others, in seconds."""
PAGE_CACHE = 16 << 20
"""Bytes. SQLite's 2 MB make a list of 96,000 backups read most pages many times."""
_WRITING = "btrkeep_writing"


class CatalogueBusy(OperatorError):
    """Another program was writing for longer than a writer waits. Nothing was changed; it may be tried again."""


_LOCKED = "locked"
_REBUILD = "make it anew from the pool: backupd rebuild"
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    ("not a database", "the catalogue {path} is damaged: {error}", _REBUILD),
    ("malformed", "the catalogue {path} is damaged: {error}", _REBUILD),
    ("could not decode", "the catalogue {path} is damaged: {error}", _REBUILD),
    ("disk i/o error", "the catalogue {path} cannot be read or written: {error}", f"look for disk errors (dmesg), then {_REBUILD}"),
    (_LOCKED, "the catalogue {path} was held by another program for too long", "see by whom: fuser -v {path}"),
    ("disk is full", "there is no room for the catalogue {path}", "make room on the filesystem of {path}"),
    ("readonly", "the catalogue {path} cannot be written", "run this as root, and see that its filesystem is not read-only"),
    ("unable to open", "the catalogue {path} cannot be opened", "run this as root, and see that its filesystem is not read-only"),
)


def engine_of(path: Path) -> Engine:
    """An engine for the file. Nothing is opened yet; no connection outlives its use, and each serves one thread."""
    arguments = {"timeout": BUSY_TIMEOUT, "check_same_thread": True}
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool, connect_args=arguments)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)

    @event.listens_for(engine, "handle_error")
    def explain(context: ExceptionContext) -> BaseException | None:
        if isinstance(context.original_exception, (ValueError, TypeError)):  # a column's type refused a value of the caller's
            return context.original_exception
        return meaning_of(context.original_exception, path)

    return engine


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
    for words, message, hint in _MEANINGS:
        if words in text.lower():
            facts = {"path": path, "error": text}
            kind = CatalogueBusy if words == _LOCKED else OperatorError
            return kind(message.format(**facts), hint.format(**facts))
    return None


def _set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    assert isinstance(connection, SqliteConnection)
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE // 1024}")


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITING):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
