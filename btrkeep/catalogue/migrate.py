"""Makes the catalogue and migrates an older one to the newest schema. See docs/decisions/0079.

The folder schema/ has a numbered SQL file for each version. `PRAGMA user_version` is the number of the last file that was run, and
`PRAGMA application_id` marks the file as a catalogue. The files are run under a lock, so that of several programs that start at the
same time one copies the old file and migrates it while the others wait. They run in one transaction, together with the change of
the number, so that a kill or a power cut leaves the old schema or the new one. The copy remains beside the new file.
"""

import errno
import fcntl
import grp
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from btrkeep.catalogue import dashboard_copy, tables
from btrkeep.catalogue.sqlite import BUSY_TIMEOUT, CatalogueUnusable, Session, meaning_of, no_room, opened
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import HINT, PATIENCE, answers
from btrkeep.trusted_path import MOVE_STATE, WEB_USER, remedy, untrusted_state

FILE = "catalogue.sqlite"
SCHEMA = Path(__file__).parent / "schema"
_LOCK = "catalogue.lock"
_BESIDE = "rebuilding"


def prepared(state: Path) -> Path:
    """Returns the path of the catalogue in `state`, which is made or migrated if necessary.

    Raises OperatorError if the file is not a catalogue, damaged, newer than this code, or cannot be written, and if users other
    than root could replace it.
    """
    path = state / FILE
    if not (answers(state) and answers(path)):
        raise CatalogueUnusable(unanswered(path), HINT)
    try:
        _require_trusted(state)
        _make_file(path)
        _set_modes(path)
        with closing(opened(path)) as session:
            current = _is_current(session)
        if not current:
            with _alone(state):
                _bring_up(path)
        return path
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room(path) from error
        raise CatalogueUnusable(
            f"the catalogue {path} cannot be opened: {error.strerror}",
            f"check `state` in [pool]{', run as root' if os.geteuid() else ''}",
        ) from error


def unanswered(path: Path) -> str:
    """Returns the message for a catalogue that does not answer."""
    return f"the catalogue {path} does not answer: nothing could be read within {PATIENCE:.0f} s"


@contextmanager
def made_beside(state: Path) -> Iterator[Path]:
    """Yields a folder for a new catalogue on the same filesystem, and removes it at the end. First removes what a killed `rebuild`
    left there.
    """
    folder = state / _BESIDE
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(made: Path, state: Path) -> Path | None:
    """Replaces the catalogue in `state` with the closed one in `made`. Returns the new path of the old one, or None if there was
    none.

    Used by `rebuild`. A program that has the old catalogue open would continue to write to the renamed file, so no other program
    may be running.
    """
    with _alone(state):
        aside = _set_aside(state / FILE)
        (made / FILE).rename(state / FILE)
    return aside


def _set_aside(path: Path) -> Path | None:
    """Renames the catalogue and its journal, damaged or not."""
    if not path.exists():
        return None
    aside = next(free for n in range(1, 10**6) if not (free := path.with_name(f"{FILE}.aside-{n}")).exists())
    for suffix in ("-wal", "-shm", ""):  # the file last: after an interruption the rest is found and refused or recovered
        part = path.with_name(FILE + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _require_trusted(state: Path) -> None:
    """Raises CatalogueUnusable if users other than root could replace the files in `state`."""
    if step := untrusted_state(state):
        path = state / FILE
        raise CatalogueUnusable(f"the catalogue {path} is not used: {step.place} {step.reason}", remedy(step, MOVE_STATE))


def _make_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():  # do not open an existing file: closing it would drop the locks of other connections of this process
        return
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _set_modes(path: Path) -> None:
    """Makes the live files accessible only to root, and lets the dashboard's group enter the folder, where its copy is.

    A user who can open the live file for reading can hold its locks. The folder gets the group if that exists and no other was
    chosen, and the setgid bit, so that a copy belongs to the group whatever job makes it, even without the right to change owners.
    SQLite gives -wal and -shm the mode of the database. Attributes that this job may not change were set by another program, or
    will be.
    """
    if os.geteuid() != 0:
        return
    with suppress(PermissionError):
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                part = path.with_name(path.name + suffix)
                if stat.S_IMODE(part.stat().st_mode) & 0o077:
                    part.chmod(0o600)
        folder = path.parent.stat()
        group = folder.st_gid or _readers()
        is_ours = not folder.st_gid or folder.st_gid == _readers()
        mode = stat.S_IMODE(folder.st_mode) | (stat.S_IRGRP | stat.S_IXGRP if is_ours else 0)
        if not group or not mode & stat.S_IXGRP:
            return  # no other user may read this folder
        _set_attributes(path.parent, folder, group, mode | stat.S_ISGID)
        copy = path.with_name(dashboard_copy.FILE)
        if dashboard_copy.is_plain(copy):  # a copy made while the group had no access to the folder belongs to root alone
            with ClosingFd(os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
                status = os.fstat(fd)
                if status.st_nlink == 1 and not status.st_uid:  # otherwise it may be a hard link to another file of root's
                    os.fchown(fd, -1, group)
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) | stat.S_IRGRP)


def _readers() -> int | None:
    try:
        return grp.getgrnam(WEB_USER).gr_gid
    except KeyError:
        return None


def _set_attributes(path: Path, status: os.stat_result, group: int, mode: int) -> None:
    if status.st_gid != group:
        os.chown(path, -1, group)
    if stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    with ClosingFd(os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _is_current(session: Session) -> bool:
    in_wal_mode = session.value("PRAGMA journal_mode") == "wal"
    return version_of(session) == tables.SCHEMA_VERSION and in_wal_mode


def version_of(session: Session) -> int:
    """Returns the version of the schema, 0 for an empty file. Raises OperatorError for a file that this program must not change."""
    row = session.first(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version, pragma_application_id"
    )
    version, application, entries = row or (0, 0, 0)
    if not (version or application or entries):
        return 0
    path = session.path
    if application != tables.APPLICATION_ID or version < 1:
        raise OperatorError(
            f"{path} is a database, but not a catalogue",
            "check `state` in [pool], or move the file away and run: `backupd rebuild`",
        )
    if version > tables.SCHEMA_VERSION:
        raise OperatorError(
            f"the catalogue {path} has schema {version}, this btrkeep has {tables.SCHEMA_VERSION}: a newer version migrated it",
            "use that version, or move the catalogue away and run: `backupd rebuild`",
        )
    return int(version)


def _bring_up(path: Path) -> None:
    """Migrates, unless another program has done so while this one waited for the lock."""
    with closing(opened(path)) as session:
        session.run("PRAGMA journal_mode = WAL")
        version = version_of(session)
    if version == tables.SCHEMA_VERSION:
        return
    if version:
        _copy(path, path.with_name(f"{FILE}.before-{tables.SCHEMA_VERSION:04}"))
    try:
        _upgrade(path, version)
    except sqlite3.Error as error:
        raise (meaning_of(error, path) or error) from error


def _upgrade(path: Path, version: int) -> None:
    """Runs the SQL files above `version` in one transaction.

    Raises sqlite3.Error, and RuntimeError if rows would refer to rows that do not exist.
    """
    newest = tables.SCHEMA_VERSION
    steps = [(SCHEMA / f"{number:04}.sql").read_text(encoding="utf-8") for number in range(version + 1, newest + 1)]
    marks = f"PRAGMA application_id = {tables.APPLICATION_ID}; PRAGMA user_version = {newest};"
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None)) as connection:
        # A step may recreate a table; with foreign keys on, dropping the old table would delete the rows that refer to it.
        # This has no effect inside a transaction, so it comes first.
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.executescript("\n".join(("BEGIN IMMEDIATE;", *steps, marks)))
        if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
            raise RuntimeError(f"the migration left a row of {broken[0]} that refers to no row")
        connection.execute("COMMIT")


def _copy(path: Path, copy: Path) -> None:
    """Makes a consistent copy, including the journal; it gets its name when it is complete and on disk."""
    unfinished = copy.with_name(copy.name + ".tmp")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(unfinished)) as target:
            source.backup(target)
        os.fsync(descriptor)
    except sqlite3.Error as error:
        raise (meaning_of(error, path) or error) from error
    finally:
        os.close(descriptor)
    unfinished.rename(copy)
