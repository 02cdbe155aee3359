"""Files whose content may not have reached the disk, marked so that rsync compares all of them again.

After a kill or a power cut a first copy has files with the host's time and size whose data were lost. Nothing in the filesystem
distinguishes them. So each file gets a time that no host has: rsync then compares the content, block by block, and sends the
differences. A file that rsync has handled has its own time again. So a large first copy completes over as many nights as it takes,
which it would not if every night had to read everything again (``--checksum``).

The host did not send a file again that still has this time when the backup is to be final: it cannot be read there any longer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from backupd.files.tree import Tree
from backupd.files.walking import WalkEntry, walk
from btrkeep.checkpoints import Checkpoint
from btrkeep.process.cancellation import Cancellation

DOUBTED = -11_676_096_000 * 10**9 + 1
"""1600-01-01, and a nanosecond: before the epoch of every filesystem but such as count in 64 bits of seconds. Nanoseconds."""


@Checkpoint("files doubted")
def mark_unsynced(subvolume: Path, cancelled: Cancellation | None) -> bool:
    """Gives every file of a writable subvolume that time; False when it was `cancelled`, so that some do not have it.

    Can be repeated, also after it was killed. Raises OSError.
    """
    for found in _files(subvolume):
        if cancelled:
            return False
        if found.entry.mtime != DOUBTED:
            os.utime(found.name, ns=(DOUBTED, DOUBTED), dir_fd=found.folder, follow_symlinks=False)
    return True


@Checkpoint("doubted files removed")
def drop_unsynced(subvolume: Path) -> int:
    """Removes the files that still have that time; how many names. Folders keep their times. Raises OSError."""
    dropped = 0
    for found in _files(subvolume):
        if found.entry.mtime == DOUBTED:
            before = os.fstat(found.folder)
            os.unlink(found.name, dir_fd=found.folder)
            os.utime(found.folder, ns=(before.st_atime_ns, before.st_mtime_ns))
            dropped += 1
    return dropped


def _files(subvolume: Path) -> Iterator[WalkEntry]:
    try:
        tree = Tree(subvolume)
    except FileNotFoundError:  # killed before there was a `data`
        return
    with tree:
        yield from (found for found in walk(tree, b"/") if found.entry.kind == "file")
