"""POOL/.btrkeep/actions.jsonl: what users did to backups and hosts, one line each, appended. notes.json of a host also has the
actions on its backups; this file has those of all hosts, also of deleted ones, and restores.

It is a record for people: no program decides by it, and a command whose action cannot be recorded continues and reports that.
"""

import errno
import fcntl
import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.pool_files import NOT_UNDERSTOOD
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.locks import held_by
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.units import format_time, parse_time

log = logging.getLogger(__name__)

ACTIONS = "actions.jsonl"
LARGEST = 1 << 20
"""Maximum bytes of the file, about 5,000 actions. A full file is moved to the former file, which has the same maximum."""
PATIENCE = 5.0
"""Seconds to wait for another process that records an action."""
LONGEST = 300
"""Characters of a reason that are kept."""
_PAUSE = 0.01
_HELD_FOR = 60.0
_held: dict[Path, float] = {}  # since when a lock could not be taken
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class UserAction:
    """An action of a user."""

    at: datetime
    """When."""
    what: str
    """hold, release, accept, ..."""
    by: str
    """The user's name."""
    host: str | None = None
    """None: it is about several hosts."""
    backup: str | None = None
    """The backup's name; None: the action is about several backups."""
    why: str = ""
    """The reason that the user gave."""

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, as in the file and in notes.json."""
        return {
            "at": format_time(self.at),
            "what": self.what,
            "by": self.by,
            "host": self.host,
            "backup": self.backup,
            "why": self.why[:LONGEST],
        }


def record_action(pool: Pool, action: UserAction) -> str:
    """Appends the action. Returns the reason if it could not be recorded, else "". Waits for a lock at most PATIENCE seconds."""
    path = pool.path / MARKER / ACTIONS
    try:
        with ClosingFd(os.open(path, _OPEN, 0o600)) as fd:
            if not _try_lock(fd, path):
                return f"{path}: {held_by(path).message}"
            if os.fstat(fd).st_size >= LARGEST:
                _shorten(fd, path)
            _append(fd, action)
            return ""
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def _try_lock(fd: int, path: Path) -> bool:
    """Locks the file. False if another process holds the lock for too long; then no caller waits for it for a minute, because a
    command may record many actions.
    """
    now = time.monotonic()
    deadline = now if now - _held.get(path, -_HELD_FOR) < _HELD_FOR else now + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                _held.setdefault(path, time.monotonic())
                return False
            time.sleep(_PAUSE)
        else:
            _held.pop(path, None)
            return True


def _shorten(fd: int, path: Path) -> None:
    """Moves the lines of the full file to the former one, together with those already there, and empties the file. Drops the oldest
    lines if not all fit.
    """
    present = os.pread(fd, 2 * LARGEST, 0).splitlines()
    former = _former(path)
    again = set(present)  # a crash between replacing the older file and emptying this one
    kept = fair_share([*(line for line in _lines(former) if line not in again), *present])
    write_atomically(former, b"".join(line + b"\n" for line in kept))
    os.ftruncate(fd, 0)


def fair_share(lines: Sequence[bytes]) -> list[bytes]:
    """Returns the lines, oldest first, that are kept in a file of LARGEST bytes. As long as they do not fit, the user with the
    most bytes loses the oldest line, so no user can remove the actions of others by adding many.
    """
    users = [action.by if (action := action_of(line)) else "" for line in lines]
    theirs: dict[str, deque[int]] = {user: deque() for user in users}
    sizes = dict.fromkeys(users, 0)
    for number, (user, line) in enumerate(zip(users, lines, strict=True)):
        theirs[user].append(number)
        sizes[user] += len(line) + 1
    dropped = set[int]()
    left = sum(sizes.values())
    while left > LARGEST:
        user = max(sizes, key=sizes.__getitem__)
        number = theirs[user].popleft()
        dropped.add(number)
        sizes[user] -= len(lines[number]) + 1
        left -= len(lines[number]) + 1
    return [line for number, line in enumerate(lines) if number not in dropped]


def _append(fd: int, action: UserAction) -> None:
    line = json.dumps(action.as_json()).encode("ascii") + b"\n"
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":  # a line truncated by a full disk or a crash
        line = b"\n" + line
    if os.write(fd, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_actions(pool: Pool, host: str | None = None) -> Iterator[UserAction]:
    """Yields the recorded actions, newest first, of one host or of all. Skips lines that are damaged."""
    path = pool.path / MARKER / ACTIONS
    for log_file in (path, _former(path)):
        for line in reversed(_lines(log_file)):
            action = action_of(line)
            if action and host in (None, action.host):
                yield action


def action_of(text: bytes | str | Mapping[str, Any]) -> UserAction | None:
    """Returns the action of a line or of an object of notes.json; None if it is damaged."""
    try:
        fields = text if isinstance(text, Mapping) else json.loads(text)
        host, backup = (str(fields[key]) if fields.get(key) is not None else None for key in ("host", "backup"))
        action, by, why = str(fields["what"]), str(fields["by"]), str(fields.get("why") or "")
        return UserAction(parse_time(fields["at"]), action, by, host, backup, why)
    except NOT_UNDERSTOOD:
        return None


def _former(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _lines(path: Path) -> list[bytes]:
    try:
        with ClosingFd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            return os.pread(fd, 2 * LARGEST, 0).splitlines()
    except OSError as error:
        if error.errno != errno.ENOENT:  # even on a failing disk: everything else can still be shown
            log.warning("%s could not be read: %s", path, error.strerror)
        return []
