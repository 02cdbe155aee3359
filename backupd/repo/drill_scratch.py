"""The scratch folder of drills in the pool. Everything in it may be deleted: a killed drill left it.

A drill holds the lock `drill` while it works there; whoever takes that lock later may delete the contents.
"""

import os
from pathlib import Path

from backupd.repo.remove_tree import remove_tree
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import LockHeld
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.subvolume import delete_with_nested, describe

DRILL_LOCK = "drill"


def drill_folder(pool: Pool) -> Path:
    """Returns the folder. It may not exist."""
    return pool.path / MARKER / "drill"


def clear_drills(pool: Pool) -> bool:
    """Deletes everything in it; returns True if there was something. Needs the lock. Raises OSError."""
    folder = drill_folder(pool)
    try:
        found = [Path(entry) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return False
    with Checkpoint("scratch of a drill deleted"):
        for path in found:
            if left := describe(path):
                delete_with_nested(folder, left.id)  # a system that was booted makes some, such as /var/lib/machines
            elif path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
    return bool(found)


def clear_left_drills(pool: Pool, since: str) -> bool:
    """Like `clear_drills`, for callers without the lock: takes it, and does nothing while a drill is in progress."""
    try:
        if not any(os.scandir(drill_folder(pool))):
            return False
        with take_lock(pool.locks / DRILL_LOCK, "reconciling", since):
            return clear_drills(pool)
    except (FileNotFoundError, LockHeld):
        return False
