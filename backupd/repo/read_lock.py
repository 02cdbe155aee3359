"""Protects a backup that is being restored from deletion, by a shared flock(2) on the folder of its subvolume.

Nothing is written, so it works in a pool that is mounted read-only, and the kernel releases the lock if the process dies. A
deletion first takes the same lock exclusively and keeps it until the end. It is taken after all other locks, and nothing ever waits
for it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FOLDER


@contextmanager
def lock_for_reading(backup: Path) -> Iterator[int]:
    """Protects the backup at that path from deletion by our programs; yields the descriptor with the lock.

    Raises OperatorError if it is being or has been deleted.
    """
    try:
        fd = _locked(backup, fcntl.LOCK_SH)
    except FileNotFoundError:
        raise OperatorError(f"{backup} was deleted", "choose another backup: `backupd list HOST` lists them") from None
    try:
        if fd is None or not _is_at(backup, fd):
            raise OperatorError(f"{backup} is being deleted", "restore from another backup: `backupd list HOST` lists them")
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def lock_for_deletion(backup: Path) -> Iterator[bool]:
    """Yields False if the backup is being restored; otherwise holds it exclusively and yields True. Raises OSError if it does
    not exist.
    """
    fd = _locked(backup, fcntl.LOCK_EX)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def is_read_by_others(fd: int) -> bool:
    """Returns True if another process also reads the backup; `fd` is from `lock_for_reading`. Raises OperatorError if the backup is
    being deleted.

    The lock is exclusive for a moment; a restore that starts in that moment reports that the backup is being deleted.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_read = True
    else:
        is_read = False
    try:  # a failed conversion may lose the old lock
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OperatorError("the backup is being deleted") from None
    return is_read


def _locked(backup: Path, how: int) -> int | None:
    fd = os.open(backup, FOLDER)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _is_at(backup: Path, fd: int) -> bool:
    """Returns True if the subvolume is still at its path: it may have been deleted before it was locked."""
    try:
        return os.path.samestat(os.lstat(backup), os.fstat(fd))
    except FileNotFoundError:
        return False
