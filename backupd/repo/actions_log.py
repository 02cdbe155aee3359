"""POOL/.btrkeep/actions.jsonl: what users did to backups and hosts, one line each, appended.

notes.json of a host has the actions on its backups too; here are those of all hosts, also of deleted ones, and restores. It is a
record for people: nothing is decided by it, and a command whose action cannot be recorded goes on and reports that.
"""

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.repo.json_file import NOT_UNDERSTOOD
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.units import format_time, parse_time

log = logging.getLogger(__name__)

ACTIONS = "actions.jsonl"
LARGEST = 1 << 20
"""Bytes, about 5,000 actions; then the file becomes the former one, and the former one is deleted."""
LONGEST = 300
"""Characters of a reason that are kept."""
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class UserAction:
    """What a user did. `what`: hold, release, accept, ... `host`, `backup`: None where it was about more than that."""

    at: datetime
    what: str
    by: str
    host: str | None = None
    backup: str | None = None
    why: str = ""

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
    """Appends the action. Returns why it could not be recorded, "" if it was."""
    path = pool.path / MARKER / ACTIONS
    try:
        with ClosingFd(os.open(path, _OPEN, 0o600)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_size < LARGEST:
                _append(fd, action)
                return ""
            if os.fstat(fd).st_ino == path.stat().st_ino:  # else another process has renamed it meanwhile
                path.replace(_former(path))
            return record_action(pool, action)
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def _append(fd: int, action: UserAction) -> None:
    line = json.dumps(action.as_json()).encode("ascii") + b"\n"
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":  # a line that was cut off by a full disk or a crash
        line = b"\n" + line
    if os.write(fd, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_actions(pool: Pool, host: str | None = None) -> Iterator[UserAction]:
    """Yields the recorded actions, newest first, of one host or of all. Skips lines that are damaged."""
    path = pool.path / MARKER / ACTIONS
    for one in (path, _former(path)):
        for line in reversed(_lines(one)):
            action = action_of(line)
            if action and host in (None, action.host):
                yield action


def action_of(text: bytes | str | Mapping[str, Any]) -> UserAction | None:
    """Returns the action of a line or of an object of notes.json; None if it is damaged."""
    try:
        fields = text if isinstance(text, Mapping) else json.loads(text)
        host, backup = (str(fields[key]) if fields.get(key) is not None else None for key in ("host", "backup"))
        what, by, why = str(fields["what"]), str(fields["by"]), str(fields.get("why") or "")
        return UserAction(parse_time(fields["at"]), what, by, host, backup, why)
    except NOT_UNDERSTOOD:
        return None


def _former(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _lines(path: Path) -> list[bytes]:
    try:
        with ClosingFd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            return os.pread(fd, 2 * LARGEST, 0).splitlines()
    except OSError as error:
        if error.errno != errno.ENOENT:  # of a failing disk, too: all else that is to be shown is still worth it
            log.warning("%s could not be read: %s", path, error.strerror)
        return []
