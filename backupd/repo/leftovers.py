"""What a killed replication or drill leaves in the pool, and how it is deleted.

Everything in the scratch folder of drills may be deleted: a killed drill left it. A drill holds the lock `drill` while it works
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
    """Removes a folder with all in it, by rm: who fills it nests folders deeper than a function may call itself or a process may
    have descriptors. It follows no symlink and enters neither a subvolume nor a mount; raises OSError when there is one.
    """
    from btrkeep.process.programs import ProgramFailed, run  # with subprocess, which few commands need

    try:
        run(("rm", "--recursive", "--force", "--one-file-system", "--", os.fspath(folder)), timeout=None)
    except ProgramFailed as error:
        errors = error.finished.stderr.strip().splitlines() or [f"exit status {error.finished.returncode}"]
        raise OSError(errno.ENOTEMPTY, f"it cannot be removed: {printable(errors[0].removeprefix('rm: '))}", str(folder)) from None


RECEIVING = ".receiving"
REPLACED = ".replaced"
"""The copy that is to take the place of a damaged one, or that one, when they have changed names: the other has the name."""


def has_received(pool: Pool, host: str) -> bool:
    """Returns True if something is left that `discard_received` would delete: a power cut may restore it."""
    return any(is_there(pool.host(host) / name) for name in (RECEIVING, REPLACED))


def discard_received(pool: Pool, host: str) -> bool:
    """Deletes what a replication that was cut off has left of a backup; whether there was something. Needs the host's lock."""
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
    """Deletes the one of two copies that has not the backup's name. Needs the host's lock."""
    path = pool.host(host) / REPLACED
    if left := describe(path):
        with Checkpoint("replaced copy deleted"):
            delete(path.parent, left.id)


def drop_empty_mark(pool: Pool, host: str) -> None:
    """Takes the mark of a host back of which nothing came: it would keep its first backup from being made here. Needs its lock.

    A copy whose record cannot be read is one all the same. A host that was demoted stays one without any: another server backs it
    up. Raises UnreadableRecord.
    """
    folder = pool.host(host)
    with suppress(OSError):  # it stays marked
        notes = read_notes(folder)
        if notes.replica and not notes.replica.get(DEMOTED) and not names_of(pool, host):
            discard_received(pool, host)
            write_notes(folder, replace(notes, replica=None))


DRILL_LOCK = "drill"


def drill_folder(pool: Pool) -> Path:
    """Returns the folder. It may not exist."""
    return pool.path / MARKER / "drill"


def clear_drills(pool: Pool) -> bool:
    """Deletes everything in it; returns True if there was something. Needs the lock. Raises OSError."""
    folder = drill_folder(pool)
    try:
        paths = [Path(entry) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return False
    with Checkpoint("scratch of a drill deleted"):
        for path in paths:
            if left := describe(path):
                delete_with_nested(folder, left.id)  # a system that was booted makes some, such as /var/lib/machines
            elif path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
    return bool(paths)


def clear_left_drills(pool: Pool, since: str) -> bool:
    """Like `clear_drills`, for callers without the lock: takes it, and does nothing while a drill is in progress."""
    try:
        if not any(os.scandir(drill_folder(pool))):
            return False
        with take_lock(pool.locks / DRILL_LOCK, "reconciling", since):
            return clear_drills(pool)
    except (FileNotFoundError, LockHeld):
        return False
