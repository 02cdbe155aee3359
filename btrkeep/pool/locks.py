"""Locks of the pool: flock(2) on a file whose text names the holder.

The kernel releases a flock when the last process closes the file. The processes of a transfer inherit the descriptor, so a
host stays locked as long as any receiver lives, even if its parent was killed.

The flock is the lock. The text is for people, and for finding what a killed run left. On a full pool it cannot be written; then the
kernel is asked who holds the lock. A process that inherits an unsealed lock can write other text, so readers verify everything that
they use.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.atomic import NO_ROOM
from btrkeep.pool.mounts import read_only_view
from btrkeep.process.proc import GroupMember, flock_holders, has_locked, members, start_time
from btrkeep.units import recorded_time

log = logging.getLogger(__name__)

NIGHT_LOCK, EXPIRE_LOCK, VERIFY_LOCK = "night", "expire", "verify"
BALANCE_LOCK = "balance"
"""Held while one block group is balanced, and while backups are deleted: both change the same trees."""
POOL_LOCKS = (NIGHT_LOCK, EXPIRE_LOCK, BALANCE_LOCK)
"""The locks of the pool itself. Their files are made while there is free space: without space for metadata no file can
be made.
"""
_LENGTH = 1024
_UNKNOWN = "another process"
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # limits of this process or machine, not errors of the pool


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock."""

    pid: int
    """The process."""
    started: str
    """Its start time, which together with `pid` identifies the process for ever."""
    since: str
    """When it took the lock."""
    what: str
    """The work of the holder, in words."""
    group: int = 0
    """The process group of the transfer that it started; 0: none."""

    @property
    def is_alive(self) -> bool:
        """True if the process that took the lock still runs."""
        return start_time(self.pid) == self.started

    @property
    def unnamed(self) -> bool:
        """Returns True if the text does not name the holder's task: on a full pool, and briefly while a lock is taken
        or released.
        """
        return self.what == _UNKNOWN


class Lock:
    """A held lock. Its descriptor is inherited only by processes to which it is passed. `sealed`: that descriptor can only be read,
    even by root; the text is written through another one that is never inherited.
    """

    def __init__(self, path: Path, fd: int, text: int, holder: Holder) -> None:
        self.path = path
        self.fd = fd
        self._text = text
        self.holder = holder

    @property
    def sealed(self) -> bool:
        return self.fd != self._text

    @Checkpoint("process group noted")
    def note_group(self, group: int) -> None:
        """Records the process group that works under this lock, so that it can be found if this process is killed."""
        self.holder = Holder(self.holder.pid, self.holder.started, self.holder.since, self.holder.what, group)
        _write(self._text, self.holder)

    def leave(self) -> None:
        """Closes the lock without releasing it: the processes that inherited it still hold it, and its text names the holder."""
        for file in {self.fd, self._text} - {-1}:
            os.close(file)
        self.fd = self._text = -1

    def release(self) -> None:
        """Releases the lock."""
        with Checkpoint(f"{_kind(self.path)} lock released"):
            if self.fd >= 0:
                with contextlib.suppress(OSError):  # a failed pool: the text is optional, closing the descriptor is not
                    os.ftruncate(self._text, 0)
            self.leave()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write(fd: int, holder: Holder) -> None:
    """Overwrites the text of a killed holder: spaces, up to a length that no text reaches, are used instead of truncation.

    If there is no space for it, the text of the former holder must not remain.
    """
    try:
        os.pwrite(fd, json.dumps(asdict(holder)).encode().ljust(_LENGTH), 0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.info("could not record the holder of a lock: %s", error.strerror)
        os.ftruncate(fd, 0)


def read_holder(path: Path) -> Holder | None:
    """Reads the holder of a lock from its file, or asks the kernel if the file has no valid text. Returns None if it is free."""
    try:
        with path.open("rb") as file:
            return _parsed(file.read(_LENGTH))
    except OSError:
        return None
    except (ValueError, TypeError, RecursionError):
        return _holder_by_kernel(path)


def _parsed(text: bytes) -> Holder:
    """Raises ValueError, TypeError, RecursionError."""
    holder = Holder(**json.loads(text))
    if not all(type(each) is int and each >= 0 for each in (holder.pid, holder.group)):
        raise ValueError("a process is a number")
    if not all(type(each) is str and each.isprintable() for each in (holder.started, holder.since, holder.what)):
        raise ValueError("no words")
    return holder


def _holder_by_kernel(path: Path) -> Holder | None:
    try:
        holders = [(pid, start_time(pid)) for pid in flock_holders(path.stat())]
    except OSError:
        return None
    return next((Holder(pid, started, "", _UNKNOWN) for pid, started in holders if started), None)


def at_work(locks: Path) -> str:
    """Returns in words who makes, expires or balances backups in the pool with that folder of locks; "" if no process does."""
    for name in POOL_LOCKS:
        holder = read_holder(locks / name)
        if holder and holder.is_alive:
            return f"{holder.what} (process {holder.pid})"
    return ""


def left_behind(path: Path, holder: Holder) -> list[GroupMember]:
    """Returns the processes of an ended holder's group that still hold the lock."""
    if holder.is_alive or not holder.group:
        return []
    file = path.stat()
    return [member for member in members(holder.group) if has_locked(member.pid, file)]


def held_by(path: Path) -> LockHeld:
    """Returns the error that names the holder of the lock."""
    holder = read_holder(path)
    hint = "wait for it to end; `backupd status` shows what runs"
    if holder is None:
        who = _UNKNOWN
    elif left := left_behind(path, holder):
        who = f"process {left[0].pid} ({left[0].name}), left from the {holder.what} since {recorded_time(holder.since)}"
        hint = "wait for it to end, or end it with `kill`; the next run of the host ends it, too"
        if any(member.stuck for member in left):
            who += "; it waits in the kernel (state D), where it cannot be killed"
            hint = "check dmesg for the mount or disk that hangs; the lock is released when the process ends"
    elif holder.unnamed:
        who = f"{holder.what} ({holder.pid})"
    else:
        who = f"process {holder.pid} ({holder.what}) since {recorded_time(holder.since)}"
    return LockHeld(f"{path.name}: the lock is held by {who}", hint)


def take_lock(path: Path, purpose: str, since: str, *, sealed: bool = False) -> Lock:
    """Takes the lock without waiting, also on a full pool; `sealed` (needs CAP_SYS_ADMIN) if an untrusted process will inherit it.

    Raises LockHeld, which names the holder, PoolUnusable, and OperatorError if this process has too many open files.
    """
    with Checkpoint(f"{_kind(path)} lock taken"):
        return _taken(path, purpose, since, sealed)


def _kind(path: Path) -> str:
    """Returns the type of lock: `host`, `slot`, or the name of one of the pool's own locks."""
    return path.name.partition("-")[0]


def _taken(path: Path, purpose: str, since: str, sealed: bool) -> Lock:
    holder = Holder(os.getpid(), start_time(os.getpid()) or "", since, purpose)
    with contextlib.ExitStack() as opened:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)  # without its parents: if they are missing, the pool is no longer there
            text = fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            opened.callback(os.close, text)
            if sealed:
                fd = read_only_view(text)
                opened.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(text, holder)
        except BlockingIOError:
            raise held_by(path) from None
        except OSError as error:
            raise _unusable(path, error) from error
        opened.pop_all()
    return Lock(path, fd, text, holder)


def _unusable(path: Path, error: OSError) -> OperatorError:
    if error.errno in _LIMITS:
        return OperatorError(f"{path}: {error.strerror}", "this process, or the machine, has reached a limit (ulimit -a)")
    return PoolUnusable(
        f"{path} cannot be written: {error.strerror}", "check the pool's free space, its mount and the kernel's log"
    )
