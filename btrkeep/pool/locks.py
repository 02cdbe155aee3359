"""Locks of the pool: flock(2) on a file whose text says who holds it.

The kernel frees a flock when the last process that has the file open is gone. A transfer's processes inherit the descriptor, so
a host stays locked as long as any receiver lives, whatever became of the one that started it.
"""

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from btrkeep.errors import LockHeld, PoolUnusable
from btrkeep.process.proc import start_time

BALANCE_LOCK = "balance"
"""Held while one block group is balanced, and while backups are deleted: both rewrite the same trees."""
_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: pid and start time name the process for ever; `group` is the transfer it started, 0 if none."""

    pid: int
    started: str
    since: str
    what: str
    group: int = 0

    @property
    def alive(self) -> bool:
        """Whether the very process that took the lock still runs."""
        return start_time(self.pid) == self.started


class Lock:
    """A held lock. Its descriptor is inheritable by whom it is handed to, and closed for everybody else."""

    def __init__(self, path: Path, fd: int, holder: Holder) -> None:
        self.path = path
        self.fd = fd
        self.holder = holder

    def note_group(self, group: int) -> None:
        """Writes down which process group works under this lock, for whoever finds us dead."""
        self.holder = Holder(self.holder.pid, self.holder.started, self.holder.since, self.holder.what, group)
        _write(self.fd, self.holder)

    def release(self) -> None:
        """Gives the lock back."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # a pool that broke: the text is for people, the flock goes with the descriptor
                os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write(fd: int, holder: Holder) -> None:
    """Over whatever a killed holder left: blanks up to a length that no text reaches take the place of a truncation."""
    os.pwrite(fd, json.dumps(asdict(holder)).encode().ljust(_LENGTH), 0)


def read_holder(path: Path) -> Holder | None:
    """What the lock file says, or None when it says nothing that can be read."""
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def take_lock(path: Path, what: str, since: str) -> Lock:
    """Takes the lock at once. Raises LockHeld, which names the holder, and PoolUnusable when the file cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)  # without its parents: where they are missing there is no pool any more
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        holder = read_holder(path)
        who = f"process {holder.pid} ({holder.what}) since {holder.since}" if holder else "another process"
        raise LockHeld(f"{path.name}: the lock is held by {who}", "wait for it to end; `backupd status` shows what runs") from None
    holder = Holder(os.getpid(), start_time(os.getpid()) or "", since, what)
    try:
        _write(fd, holder)
    except OSError as error:
        os.close(fd)
        raise _unusable(path, error) from error
    return Lock(path, fd, holder)


def _unusable(path: Path, error: OSError) -> PoolUnusable:
    return PoolUnusable(f"{path} cannot be written: {error.strerror}", "look at the pool's room, its mount and the kernel's log")
