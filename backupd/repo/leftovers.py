"""Deletes the leftovers of killed replications and drills in the pool.

Everything in the scratch folder of drills is from a killed drill and may be deleted. A drill holds the lock `drill` while it works
there; the next holder of that lock may delete the contents.
"""

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backupd.repo.notes_json import DEMOTED, read_notes, write_notes
from backupd.repo.pool_files import names_of
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import LockHeld
from btrkeep.fs.openat import is_there
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.subvolume import delete, delete_with_nested, describe
from btrkeep.units import printable


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Deletes a folder and everything in it with rm: folders may be nested deeper than a function can call itself or a process can
    open. Follows no symlink and enters neither a subvolume nor a mount; raises OSError if there is one.
    """
    from btrkeep.process.programs import ProgramFailed, run  # imports subprocess, which few commands need

    try:
        run(("rm", "--recursive", "--force", "--one-file-system", "--", os.fspath(folder)), timeout=None)
    except ProgramFailed as error:
        errors = error.finished.stderr.strip().splitlines() or [f"exit status {error.finished.returncode}"]
        raise OSError(errno.ENOTEMPTY, f"it cannot be removed: {printable(errors[0].removeprefix('rm: '))}", str(folder)) from None


RECEIVING = ".receiving"
REPLACED = ".replaced"
"""The path of the copy that will replace a damaged backup, or, after the exchange of their names, of the damaged one."""


def has_received(pool: Pool, host: str) -> bool:
    """Returns True if `discard_received` would delete something: after a power cut deleted parts may be back."""
    return any(is_there(pool.host(host) / name) for name in (RECEIVING, REPLACED))


def discard_received(pool: Pool, host: str) -> bool:
    """Deletes the parts of a backup that an interrupted replication left. Returns True if there were any. The caller holds the
    host's lock.
    """
    discard_replaced(pool, host)
    folder = pool.host(host) / RECEIVING
    if not is_there(folder):
        return False
    with Checkpoint("received part deleted"):
        for path in folder.iterdir():
            if left := describe(path):
                delete(folder, left.id)
        remove_tree(folder)
    return True


def discard_replaced(pool: Pool, host: str) -> None:
    """Deletes the copy with the name REPLACED. The caller holds the host's lock."""
    path = pool.host(host) / REPLACED
    if left := describe(path):
        with Checkpoint("replaced copy deleted"):
            delete(path.parent, left.id)


def drop_empty_mark(pool: Pool, host: str) -> None:
    """Removes the mark as a copy from a host of which nothing has arrived: the mark would prevent the first backup here. The caller
    holds its lock.

    A copy whose record cannot be read is still a copy. A host that was demoted remains one even without copies, because another
    server backs it up. Raises UnreadableRecord.
    """
    folder = pool.host(host)
    with suppress(OSError):  # it stays marked
        notes = read_notes(folder)
        if notes.replica and not notes.replica.get(DEMOTED) and not names_of(pool, host):
            discard_received(pool, host)
            write_notes(folder, replace(notes, replica=None))


DRILL_LOCK = "drill"


def drill_folder(pool: Pool) -> Path:
    """Returns the scratch folder of drills, which may not exist."""
    return pool.path / MARKER / "drill"


def clear_drills(pool: Pool) -> bool:
    """Empties the scratch folder of drills; returns False if it was empty. The caller holds the lock. Raises OSError."""
    folder = drill_folder(pool)
    try:
        paths = [Path(entry) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return False
    with Checkpoint("scratch of a drill deleted"):
        for path in paths:
            if left := describe(path):
                delete_with_nested(folder, left.id)  # a booted system creates subvolumes, such as /var/lib/machines
            elif path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
    return bool(paths)


def clear_left_drills(pool: Pool, since: str) -> bool:
    """Like `clear_drills`, for callers without the lock: takes the lock, and does nothing while a drill is in progress."""
    try:
        if not any(os.scandir(drill_folder(pool))):
            return False
        with take_lock(pool.locks / DRILL_LOCK, "reconciling", since):
            return clear_drills(pool)
    except (FileNotFoundError, LockHeld):
        return False
