"""The mark of a `.working` whose files are all on the disk, so that the next run may rely on their times and sizes. It is set after
the last rsync and all its processes have ended and a sync, which reports lost data, has returned; it is removed durably before the
next rsync writes. So it does not depend on boots and mounts: a `.working` without it was left by a kill, a power cut, a disk that
lost data, or a version without this mark.

It is an extended attribute of the subvolume: setting one takes no space for data, so it works on a full pool, and it is either
complete or missing. It identifies the run that set it by fields of backup.json, because a version without this mark writes other
values there.
"""

import os
from pathlib import Path

from backupd.repo.backup_json import Record
from btrkeep.checkpoints import Checkpoint
from btrkeep.units import format_time

MARK = "user.btrkeep.synced"


@Checkpoint("synced mark set")
def mark_synced(subvolume: Path, record: Record) -> None:
    """Sets the mark for the run of that record. Raises OSError."""
    os.setxattr(subvolume, MARK, _content_of(record), follow_symlinks=False)


def is_synced(subvolume: Path, record: Record) -> bool:
    """Returns True if the subvolume has the mark, set by the run of that record."""
    try:
        return os.getxattr(subvolume, MARK, follow_symlinks=False) == _content_of(record)
    except OSError:  # the file does not exist
        return False


@Checkpoint("synced mark removed")
def remove_mark(subvolume: Path) -> None:
    """Removes the mark; the sync that follows makes that durable. Raises OSError."""
    if MARK in os.listxattr(subvolume, follow_symlinks=False):
        os.removexattr(subvolume, MARK, follow_symlinks=False)


def _content_of(record: Record) -> bytes:
    return format_time(record.started).encode()
