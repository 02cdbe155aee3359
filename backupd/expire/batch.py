"""Writes notes.json of many hosts at once: two syncs of the filesystem for all of them, instead of two waits for the disk for each.

A file whose name is replaced before its data is on disk may be empty after a power cut; then it is unknown what is held. So all
are written beside the old ones, synced by a call that reports lost data, renamed, and synced again.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from backupd.repo.notes_json import NOTES, Notes, text_of
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import PoolUnusable
from btrkeep.pool.reserve import with_reserve
from btrkeep.pool.syncfs import Syncfs, syncing


def write_many(pool: Path, notes: Mapping[Path, Notes], *, renamed_for_good: bool = True) -> None:
    """Replaces the notes in each folder; the hosts are locked. When this returns, all are on disk.

    Without `renamed_for_good` the old ones may come back after a power cut, but never anything else. On a full pool they take the
    reserve. Raises OSError; PoolUnusable when the disk did not take what was written, and then no notes were replaced by such.
    """
    if not notes:
        return

    def stage() -> None:
        for folder, one in notes.items():
            _stage(folder, one)

    with syncing(pool) as disk:
        with_reserve(pool, stage)
        _sync(disk, pool)
        for folder in notes:
            with Checkpoint("notes.json replaced"):
                _staged(folder).replace(folder / NOTES)
        if renamed_for_good:
            _sync(disk, pool)


def _sync(disk: Syncfs, pool: Path) -> None:
    try:
        disk.sync()
    except OSError as error:
        raise PoolUnusable(
            f"{pool}: the disk did not take what was written ({error.strerror})",
            "look at the kernel's messages (dmesg) and `btrfs device stats`",
        ) from error


def _staged(folder: Path) -> Path:
    return folder / (NOTES + ".new")


@Checkpoint("notes.json staged")
def _stage(folder: Path, notes: Notes) -> None:
    fd = os.open(_staged(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text_of(notes))
