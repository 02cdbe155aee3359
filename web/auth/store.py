"""The login service's own database: users, sessions, tokens and failed logins; not in the catalogue, which this service cannot
write.

One file, 0600, in a folder that only the login service's user can enter. Each call opens it separately and runs one transaction, so
any thread and the command line may use it at the same time. Times are stored as seconds since 1970.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from btrkeep.errors import OperatorError
from web.auth import LoginSession, Token, User

FILE = "users.sqlite"
VERSION = 1
_PATIENCE = 10.0
_SESSIONS = 50
"""The limit for one user; the sessions with the oldest use are deleted."""
_SCHEMA = """
CREATE TABLE user (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, hosts TEXT, hash TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL
);
CREATE TABLE session (
    key BLOB PRIMARY KEY, user TEXT NOT NULL REFERENCES user (name) ON DELETE CASCADE,
    created REAL NOT NULL, seen REAL NOT NULL, address TEXT NOT NULL, browser TEXT NOT NULL
);
CREATE INDEX session_of_user ON session (user);
CREATE TABLE token (
    name TEXT PRIMARY KEY, key BLOB NOT NULL UNIQUE, role TEXT NOT NULL, hosts TEXT, created REAL NOT NULL, used REAL
);
CREATE TABLE attempt (id INTEGER PRIMARY KEY, name TEXT NOT NULL, address TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX attempt_by_name ON attempt (name, at);
CREATE INDEX attempt_by_address ON attempt (address, at);
CREATE TABLE known (
    name TEXT NOT NULL REFERENCES user (name) ON DELETE CASCADE, address TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (name, address)
);
CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
# In databases of any age: older versions ignore this table.
_LINKS = """CREATE TABLE IF NOT EXISTS link (
    user TEXT NOT NULL REFERENCES user (name) ON DELETE CASCADE, name TEXT NOT NULL, address TEXT NOT NULL,
    PRIMARY KEY (user, name))"""
MOST_LINKS = 30
"""The limit for one user."""
# The columns in the order of the fields, named so that a query may join the tables.
_OF_USERS = "name, role, hosts, hash, user.created, user.changed"
_OF_SESSIONS = "session.key, session.user, session.created, session.seen, address, browser"
_OF_TOKENS = "name, role, hosts, created, used"
_OWNER = "run this as root or as the login service's user; see --users"
_DAMAGED = ("is damaged", "restore it from a backup, or remove it and add the users again: btrkeep-web user add")
_MEANINGS = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_READONLY: ("cannot be written", _OWNER),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", _OWNER),
    sqlite3.SQLITE_PERM: ("cannot be opened", _OWNER),
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", "free some space on that disk"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "check dmesg for disk errors, and whether the disk is full"),
    sqlite3.SQLITE_BUSY: ("is locked by another program", "`fuser -v` on the file shows the program"),
}
"""The message and hint by primary result code (https://www.sqlite.org/rescode.html); any other is a bug."""


class Store:
    """The database in the folder `data`; created if it is missing."""

    def __init__(self, data: Path) -> None:
        self.path = data / FILE
        try:
            self._prepare()
        except OSError as error:
            raise OperatorError(f"{self.path} cannot be used: {error.strerror}", _OWNER) from error

    def _prepare(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if not stat.S_ISREG(self.path.lstat().st_mode):  # opening a pipe would block for ever
            raise OperatorError(f"{self.path} is not a file", "find out which program created it, and remove it")
        with self.writing() as connection:
            [version] = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute(_LINKS)
            elif version == VERSION:
                connection.execute(_LINKS)
            else:
                raise OperatorError(
                    f"{self.path} was written by another version of btrkeep (format {version}, not {VERSION})",
                    "run the version that wrote it",
                )

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection for queries."""
        with self._meaning(), closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection within one transaction, which an error rolls back."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _meaning(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            is_text = code is None and isinstance(error, sqlite3.OperationalError)  # raised by Python: text that is not UTF-8
            if is_text or str(error) == "unsupported file format":
                code = sqlite3.SQLITE_CORRUPT
            if code is None or code & 0xFF not in _MEANINGS:
                raise
            message, hint = _MEANINGS[code & 0xFF]
            raise OperatorError(f"{self.path} {message}", hint) from error

    def _change(self, statement: str, values: tuple[Any, ...]) -> int:
        """Runs one statement in a separate transaction; returns how many rows it changed."""
        with self.writing() as connection:
            return connection.execute(statement, values).rowcount

    # --- users

    def user(self, name: str) -> User | None:
        """Returns the user of that name, None if there is none."""
        with self.reading() as connection:
            row = connection.execute(f"SELECT {_OF_USERS} FROM user WHERE name = ?", (name,)).fetchone()
        return _user(row) if row else None

    def users(self) -> list[User]:
        """Returns all users, by name."""
        with self.reading() as connection:
            rows = connection.execute(f"SELECT {_OF_USERS} FROM user ORDER BY name").fetchall()
        return [_user(row) for row in rows]

    def add_user(self, user: User) -> bool:
        """Adds a user; returns False if the name exists."""
        with self.writing() as connection:
            _begin(connection)
            return connection.execute("INSERT OR IGNORE INTO user VALUES (?, ?, ?, ?, ?, ?)", _user_row(user)).rowcount == 1

    def fill(self, users: Iterable[User], sessions: Iterable[LoginSession], tokens: Iterable[tuple[Token, bytes]]) -> bool:
        """Inserts all users, sessions, and tokens with their digests, or nothing: returns False if the database ever had a user or
        token. Raises ValueError for duplicates, invalid values, and sessions without a user.
        """
        try:
            with self.writing() as connection:
                if not _begin(connection):
                    return False
                connection.executemany("INSERT INTO user VALUES (?, ?, ?, ?, ?, ?)", map(_user_row, users))
                connection.executemany("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?)", map(_session_row, sessions))
                connection.executemany("INSERT INTO token VALUES (?, ?, ?, ?, ?, NULL)", (_token_row(*token) for token in tokens))
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
            raise ValueError(str(error)) from error
        return True

    def change_user(self, name: str, role: str, hosts: tuple[str, ...] | None, now: datetime) -> bool:
        """Changes role and hosts; returns False if there is no such user."""
        values = (role, _hosts_text(hosts), _number(now), name)
        return self._change("UPDATE user SET role = ?, hosts = ?, changed = ? WHERE name = ?", values) == 1

    def set_hash(self, name: str, text: str, now: datetime, *, before: str | None = None, log_out: bool = True) -> bool:
        """Changes the password: ends all of the user's sessions, and clears the attempts for the name. Returns False, without a
        change, if the user does not exist, or the hash is no longer `before`.
        """
        with self.writing() as connection:
            values = (text, _number(now), name, before, before)
            change = "UPDATE user SET hash = ?, changed = ? WHERE name = ? AND (? IS NULL OR hash = ?)"
            is_changed = connection.execute(change, values).rowcount == 1
            if is_changed and log_out:
                connection.execute("DELETE FROM session WHERE user = ?", (name,))
                connection.execute("DELETE FROM attempt WHERE name = ?", (name,))
            return is_changed

    def remove_user(self, name: str) -> bool:
        """Removes the user and all its sessions; returns False if there is no such user."""
        return self._change("DELETE FROM user WHERE name = ?", (name,)) == 1

    # --- sessions

    def add_session(self, login_session: LoginSession, text: str) -> bool:
        """Adds a session for a login with the password of the hash `text`; returns False if the hash has changed, or if the user
        no longer exists.

        If the user has too many sessions, deletes those with the oldest use.
        """
        with self.writing() as connection:
            still = "SELECT ?, ?, ?, ?, ?, ? FROM user WHERE name = ? AND hash = ?"
            added = (
                connection.execute(
                    f"INSERT INTO session {still}", (*_session_row(login_session), login_session.user, text)
                ).rowcount
                == 1
            )
            kept = "SELECT key FROM session WHERE user = ? ORDER BY seen DESC, created DESC LIMIT ?"
            words = (login_session.user, login_session.user, _SESSIONS)
            connection.execute(f"DELETE FROM session WHERE user = ? AND key NOT IN ({kept})", words)
        return added

    def session(self, key: bytes) -> tuple[LoginSession, User] | None:
        """Returns a session and its user, whatever its age."""
        query = f"SELECT {_OF_SESSIONS}, {_OF_USERS} FROM session JOIN user ON user.name = session.user WHERE session.key = ?"
        with self.reading() as connection:
            row = connection.execute(query, (key,)).fetchone()
        return (_session(row[:6]), _user(row[6:])) if row else None

    def sessions(self, user: str) -> list[LoginSession]:
        """Returns the sessions of one user, the last used one first."""
        with self.reading() as connection:
            rows = connection.execute(f"SELECT {_OF_SESSIONS} FROM session WHERE user = ? ORDER BY seen DESC", (user,)).fetchall()
        return [_session(row) for row in rows]

    def touch_session(self, key: bytes, now: datetime) -> None:
        """Records that the session was just used."""
        self._change("UPDATE session SET seen = ? WHERE key = ?", (_number(now), key))

    def drop_session(self, key: bytes) -> None:
        """Ends this session."""
        self._change("DELETE FROM session WHERE key = ?", (key,))

    def drop_sessions(self, user: str, but: bytes) -> None:
        """Ends all sessions of a user except one."""
        self._change("DELETE FROM session WHERE user = ? AND key != ?", (user, but))

    def drop_old_sessions(self, created: datetime, seen: datetime) -> None:
        """Deletes the sessions that started, or were last used, before these times."""
        self._change("DELETE FROM session WHERE created < ? OR seen < ?", (_number(created), _number(seen)))

    # --- saved links

    def links(self, user: str) -> list[tuple[str, str]]:
        """Returns the names and addresses of a user's saved links, by name."""
        with self.reading() as connection:
            return connection.execute("SELECT name, address FROM link WHERE user = ? ORDER BY name", (user,)).fetchall()

    def save_link(self, user: str, name: str, address: str) -> bool:
        """Saves a link, in place of one of the same name; returns False if the user has too many, or no longer exists."""
        with self.writing() as connection:
            connection.execute("DELETE FROM link WHERE user = ? AND name = ?", (user, name))
            still = "SELECT name, ?, ? FROM user WHERE name = ? AND (SELECT count(*) FROM link WHERE user = ?) < ?"
            return connection.execute(f"INSERT INTO link {still}", (name, address, user, user, MOST_LINKS)).rowcount == 1

    def remove_link(self, user: str, name: str) -> None:
        """Removes a link, if it exists."""
        self._change("DELETE FROM link WHERE user = ? AND name = ?", (user, name))

    # --- tokens

    def add_token(self, token: Token, key: bytes) -> bool:
        """Adds a token; returns False if the name exists."""
        with self.writing() as connection:
            _begin(connection)
            row = _token_row(token, key)
            return connection.execute("INSERT OR IGNORE INTO token VALUES (?, ?, ?, ?, ?, NULL)", row).rowcount == 1

    def token(self, key: bytes) -> Token | None:
        """Returns the token with that digest."""
        with self.reading() as connection:
            row = connection.execute(f"SELECT {_OF_TOKENS} FROM token WHERE key = ?", (key,)).fetchone()
        return _token(row) if row else None

    def tokens(self) -> list[Token]:
        """Returns all tokens, by name."""
        with self.reading() as connection:
            rows = connection.execute(f"SELECT {_OF_TOKENS} FROM token ORDER BY name").fetchall()
        return [_token(row) for row in rows]

    def token_keys(self) -> list[tuple[Token, bytes]]:
        """Returns all tokens with their digests."""
        with self.reading() as connection:
            rows = connection.execute(f"SELECT {_OF_TOKENS}, key FROM token ORDER BY name").fetchall()
        return [(_token(row[:5]), bytes(row[5])) for row in rows]

    def touch_token(self, name: str, now: datetime) -> None:
        """Records that the token was just used."""
        self._change("UPDATE token SET used = ? WHERE name = ?", (_number(now), name))

    def remove_token(self, name: str) -> bool:
        """Removes a token; returns False if there is none."""
        return self._change("DELETE FROM token WHERE name = ?", (name,)) == 1

    # --- attempts to log in

    def count_attempt(
        self, name: str, address: str, now: datetime, window: float, limits: tuple[int, int, int], known_for: float
    ) -> float:
        """Returns the seconds to wait; 0: one more attempt is allowed, and it is counted.

        `limits` within `window` seconds: for a name from an address, for an address, for a name from all addresses. The last is not
        checked if the name logged in from there in the last `known_for` seconds.
        """
        at = _number(now)
        with self.writing() as connection:
            # Future times too: a clock was set back.
            connection.execute("DELETE FROM attempt WHERE at <= ? OR at > ?", (at - window, at))
            both, per_address, everywhere = limits
            asked = [(both, "name = ? AND address = ?", (name, address)), (per_address, "address = ?", (address,))]
            query = "SELECT 1 FROM known WHERE name = ? AND address = ? AND at > ?"
            if not connection.execute(query, (name, address, at - known_for)).fetchone():
                asked.append((everywhere, "name = ?", (name,)))
            wait = max(_wait(connection, limit, where, values, at, window) for limit, where, values in asked)
            if not wait:
                connection.execute("INSERT INTO attempt (name, address, at) VALUES (?, ?, ?)", (name, address, at))
        return wait

    def forget_attempts(self, name: str, address: str, now: datetime, known_for: float) -> None:
        """Clears the attempts for the name at this address, and records the address as known."""
        with self.writing() as connection:
            connection.execute("DELETE FROM attempt WHERE name = ? AND address = ?", (name, address))
            connection.execute("DELETE FROM known WHERE at < ?", (_number(now) - known_for,))
            statement = "INSERT OR REPLACE INTO known SELECT name, ?, ? FROM user WHERE name = ?"  # the user may have been removed
            connection.execute(statement, (address, _number(now), name))

    # --- whether a user has ever existed

    def begin(self) -> bool:
        """Marks the database as used; returns True if it has never had a user or a token before."""
        with self.writing() as connection:
            return _begin(connection)


def _begin(connection: sqlite3.Connection) -> bool:
    return connection.execute("INSERT OR IGNORE INTO secret VALUES ('begun', x'01')").rowcount == 1


def _wait(connection: sqlite3.Connection, limit: int, where: str, values: tuple[str, ...], at: float, window: float) -> float:
    """Returns the seconds until fewer than `limit` attempts are within the window."""
    newest_first = f"SELECT at FROM attempt WHERE {where} ORDER BY at DESC LIMIT 1 OFFSET ?"
    row = connection.execute(newest_first, (*values, limit - 1)).fetchone()
    return max(1.0, row[0] + window - at) if row else 0.0


def _user(row: tuple[Any, ...]) -> User:
    name, role, hosts, text, created, changed = row
    return User(name, role, _hosts(hosts), text, _moment(created), _moment(changed))


def _session(row: tuple[Any, ...]) -> LoginSession:
    key, user, created, seen, address, browser = row
    return LoginSession(key, user, _moment(created), _moment(seen), address, browser)


def _token(row: tuple[Any, ...]) -> Token:
    name, role, hosts, created, used = row
    return Token(name, role, _hosts(hosts), _moment(created), None if used is None else _moment(used))


def _user_row(user: User) -> tuple[Any, ...]:
    return user.name, user.role, _hosts_text(user.hosts), user.hash, _number(user.created), _number(user.changed)


def _session_row(login_session: LoginSession) -> tuple[Any, ...]:
    return (
        login_session.key,
        login_session.user,
        _number(login_session.created),
        _number(login_session.seen),
        login_session.address,
        login_session.browser,
    )


def _token_row(token: Token, key: bytes) -> tuple[Any, ...]:
    return token.name, key, token.role, _hosts_text(token.hosts), _number(token.created)


def _hosts(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


def _hosts_text(hosts: tuple[str, ...] | None) -> str | None:
    return None if hosts is None else json.dumps(hosts)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _number(moment: datetime) -> float:
    return moment.timestamp()
