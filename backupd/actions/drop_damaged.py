"""Removes damaged files of the base from the new backup before rsync runs, so that they are fetched again.

rsync compares times and sizes, which damage does not change: it would keep the unreadable extent in every later backup. The base
itself is read-only and stays unchanged.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from backupd.files.tree import Tree, components, joined, look
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import DAMAGED

_log = logging.getLogger(__name__)


@Checkpoint("damaged files removed")
def drop_damaged(subvolume: Path, base: Path, paths: Iterable[bytes]) -> int:
    """Removes the plain files at these paths from a writable snapshot of `base`; returns the number of names. Folders keep their
    times.

    Keeps a file that has another inode than in `base`, because an earlier run of this backup has fetched it since. A file that
    cannot be removed also stays, and is logged. Can be repeated, also after it was killed. Raises OSError if one of the two has no
    files, or if its metadata is damaged.
    """
    dropped = 0
    with Tree(subvolume) as new, Tree(base) as old:
        for path in paths:
            try:
                dropped += _drop(new, old, path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in DAMAGED:  # the metadata; nothing new can grow from it
                    raise
                _log.warning("%s: %r is damaged, and cannot be removed to be fetched again: %s", subvolume, path, error)
    return dropped


def _drop(new: Tree, old: Tree, path: bytes) -> bool:
    names = components(path)
    if not names:
        return False
    with new.folder(joined(names[:-1])) as folder:
        found = look(folder, names[-1], path)
        if found.kind != "file" or found.inode != old.stat(path).inode:
            return False
        before = os.fstat(folder)
        os.unlink(names[-1], dir_fd=folder)
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    return True
