"""The copy of the catalogue for programs without root's rights: the dashboard. See docs/decisions/0075.

A user who may open the live file for reading can hold SQLite's locks by fcntl read locks, and so stop all writers. So only root can
open the live file, its -wal and its -shm (0600), and the dashboard reads `dashboard.sqlite` beside it: a complete database without
a journal, which never changes. A newer copy replaces it by a rename, so a reader that keeps the old one open blocks no writer.

The programs that write also renew the copy: when a catalogue is closed after writing, and while it is open after a commit, at
intervals that increase with its size. A failure to renew it affects nothing else. The copy contains the time at which it was made.
"""

import errno
import fcntl
import json
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from btrkeep.catalogue import tables
from btrkeep.descriptors import ClosingFd
from btrkeep.hung_storage import answers
from btrkeep.units import format_time

log = logging.getLogger(__name__)

FILE = "dashboard.sqlite"
COPIED = "dashboard_copied"
"""The name of the fact, which only the copy has, with the time at which it was made."""
PROBLEM = "catalogue_trouble"
"""The name of the fact, which only the copy has, with the time since when the catalogue cannot be used, and the reason. The next
copy does not have it.
"""
_MARK = "dashboard_copied_of"
_LOCK = "dashboard.lock"
_RATE = 84 << 10  # bytes a second: 7.4 GB a day; 96,000 backups are 133 MB, so a copy each 27 minutes
_SHORTEST = 2.0  # seconds
_SELDOM_RATE = 56 << 10  # bytes a second: 5 GB a day
_SMALL = 4 << 20  # bytes: 288 samples a day and as many checks for alarms are 2.4 GB
_HOUR, _LATE = 3600.0, 900.0  # seconds: after the first, the pages warn of an old copy; the second is the delay of a late copy
_PATIENCE = 10.0  # seconds to wait for another program's copy, which takes about one
_PAUSE = 0.02
_OLD = 1800.0  # seconds: an older copy is made again even without changes, half an hour before the pages warn
_SPARE = 16 << 20  # bytes that a copy leaves free for the live file
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Mark = list[int]
"""Distinguishes two states of the live files: inode, size and time of the file, size and time of its -wal."""


def interval(size: int) -> float:
    """Returns the seconds between two copies of a catalogue of `size` bytes that is written all the time."""
    return max(size / _RATE, _SHORTEST)


def seldom_interval(size: int) -> float:
    """Returns the same for programs that a timer starts throughout the day."""
    return interval(size) if size <= _SMALL else size / _SELDOM_RATE


def old_after(size: int) -> float:
    """Returns the age in seconds above which a copy of `size` bytes is too old: an hour, or more if it is rarely made."""
    return max(_HOUR, seldom_interval(size) + _LATE)


def is_small(path: Path) -> bool:
    """Returns True if the catalogue `path` is so small that a copy after each sample takes little time."""
    return size_of(path) <= _SMALL


def size_of(path: Path) -> int:
    """Returns the bytes of a copy of the catalogue `path`; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def renew(path: Path, *, is_urgent: bool, every: Callable[[int], float] = interval) -> bool:
    """Makes a new copy of the catalogue `path`, if there is none of the present state; returns True if it did.

    Unless `is_urgent`, a copy that is younger than its interval, which `every` returns, is kept. Logs errors, and raises none.
    """
    try:
        if not _is_due(path, every, is_urgent=is_urgent):
            return False
        with _alone(path.parent):
            if not _is_due(path, every, is_urgent=is_urgent):  # another program has just made one
                return False
            _require_space(path)
            facts = {COPIED: format_time(datetime.now(UTC)), _MARK: json.dumps(_mark_of(path))}
            _copy(f"file:{quote(str(path))}", path.with_name(FILE), facts)
    except (OSError, sqlite3.Error) as error:
        log.info("the dashboard's copy of %s could not be updated: %s", path, error)
        return False
    return True


def report_problem(state: Path, reason: str, now: datetime) -> None:
    """Writes into the copy why the catalogue in `state` cannot be used, because the dashboard cannot see that. Logs errors, raises
    none.

    To be called repeatedly as long as this is so. The next copy, which does not have this fact, is made when the catalogue can be
    read again.
    """
    copy = state / FILE
    if not answers(state):
        return
    try:
        with _alone(state):
            if not is_plain(copy) or (before := _facts(copy, PROBLEM).get(PROBLEM, "")).partition(" ")[2] == reason:
                return
            _require_space(copy)
            since = before.partition(" ")[0] or format_time(now)
            _copy(uri_of(copy), copy, {PROBLEM: f"{since} {reason}", _MARK: ""})
    except (OSError, sqlite3.Error) as error:
        log.info("could not record for the dashboard why the catalogue cannot be used: %s", error)


def _facts(copy: Path, *names: str) -> dict[str, str]:
    """Returns facts in the copy. Raises sqlite3.Error."""
    marks = ", ".join("?" * len(names))
    with closing(sqlite3.connect(uri_of(copy), uri=True)) as connection:
        return dict(connection.execute(f"SELECT name, value FROM about WHERE name IN ({marks})", names))


def _is_due(path: Path, every: Callable[[int], float], *, is_urgent: bool) -> bool:
    copy = path.with_name(FILE)
    present = _mark_of(path)
    recorded = _recorded_mark(copy)
    if recorded is None:
        return True
    age = abs(time.time() - copy.stat().st_mtime)
    if recorded == present:
        return age >= max(_OLD, seldom_interval(copy.stat().st_size))
    return is_urgent or age >= every(copy.stat().st_size)


def _mark_of(path: Path) -> Mark:
    mark = [(live := path.stat()).st_ino, live.st_size, live.st_mtime_ns]
    with suppress(FileNotFoundError):
        wal = path.with_name(f"{path.name}-wal").stat()
        if wal.st_size:  # an empty WAL only means that a program has the catalogue open
            mark += [wal.st_size, wal.st_mtime_ns]
    return mark


def _recorded_mark(copy: Path) -> Mark | None:
    """Returns the mark of the live files of which the copy was made; None if a copy must be made in any case."""
    if not is_plain(copy):
        return None
    try:
        with closing(sqlite3.connect(uri_of(copy), uri=True)) as connection:
            header = connection.execute(
                "SELECT user_version, application_id FROM pragma_user_version, pragma_application_id"
            ).fetchone()
            (text,) = connection.execute("SELECT value FROM about WHERE name = ?", (_MARK,)).fetchone()
        mark: Mark = json.loads(text)
    except (sqlite3.Error, TypeError, ValueError):  # a torn or damaged one
        return None
    return mark if header == (tables.SCHEMA_VERSION, tables.APPLICATION_ID) else None


def is_plain(copy: Path) -> bool:
    """Returns True if that is a regular file, and not a symlink or a FIFO, which a user who can write to the folder could make."""
    try:
        return stat.S_ISREG(copy.lstat().st_mode)
    except FileNotFoundError:
        return False


def uri_of(copy: Path) -> str:
    """Returns the address with which SQLite opens a copy: as a file that never changes, without searching for a journal."""
    return f"file:{quote(str(copy))}?mode=ro&immutable=1"


def _copy(address: str, copy: Path, facts: Mapping[str, str]) -> None:
    """The copy gets its name when it is complete, readable for the folder's group and on the disk."""
    unfinished = copy.with_name(f"{copy.name}.tmp")
    unfinished.unlink(missing_ok=True)
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with ClosingFd(descriptor) as fd:
            with (
                closing(sqlite3.connect(address, uri=True)) as source,
                closing(sqlite3.connect(unfinished, isolation_level=None)) as target,
            ):
                target.execute("PRAGMA synchronous = OFF")
                source.backup(target, progress=_deadline())
                target.execute("PRAGMA journal_mode = DELETE")
                target.executemany("INSERT OR REPLACE INTO about (name, value) VALUES (?, ?)", facts.items())
            _let_read(fd, copy.parent)
            os.fsync(fd)
        unfinished.rename(copy)
    except BaseException:
        for suffix in ("", "-journal", "-wal", "-shm"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
        raise


def _deadline() -> Callable[[int, int, int], None]:
    """Returns a function that `backup` calls after each step, and that raises BlockingIOError after a time limit: without it,
    `backup` would wait for ever for a program that locks the catalogue.
    """
    deadline = time.monotonic() + _PATIENCE

    def check(status: int, _remaining: int, _total: int) -> None:
        if status & 0xFF in _PASSING and time.monotonic() > deadline:
            raise BlockingIOError(errno.EAGAIN, "another program is using the catalogue")

    return check


def _require_space(path: Path) -> None:
    """Raises OSError if a copy would not leave enough free space for the live file."""
    size = sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}-wal")) if part.exists())
    room = os.statvfs(path.parent)
    if room.f_bavail * room.f_frsize < size + _SPARE:
        raise OSError(errno.ENOSPC, f"less than {size + _SPARE} bytes are free", str(path.parent))


def _let_read(fd: int, folder: Path) -> None:
    """Makes the file readable for the folder's group, if the group may enter the folder. In a setgid folder the file already has
    its group.
    """
    status = folder.stat()
    if status.st_gid and status.st_mode & stat.S_IXGRP:
        if os.fstat(fd).st_gid != status.st_gid:
            os.fchown(fd, -1, status.st_gid)
        os.fchmod(fd, 0o640)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Holds the lock for making a copy. Raises BlockingIOError when another program has it for too long."""
    deadline = time.monotonic() + _PATIENCE
    with ClosingFd(os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as fd:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
        yield
