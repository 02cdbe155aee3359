"""Whether rsync finds every changed file between two backups of a host by sizes and times alone.

Most nights change a file together with its time. A night after a crash, a run that compares checksums and a repair do not: they
give a file other content under the same size and time. Then rsync from pool to pool has to compare checksums, which reads all of
both copies. The pool itself knows which inodes were changed, so only these few are compared here.
"""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from backupd.repo.final_backups import FinalBackup, final_backups
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.fiemap import share_all
from btrkeep.fs.openat import FILE, open_folder
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import ROOT_FOLDER, opened
from btrkeep.treescan import ChangedInode, changed_inodes
from btrkeep.treescan.links import InodeNames

_LONGEST_LOOK = 600.0  # seconds: the other side waits half an hour for an answer
_LONGEST = 1 << 30  # bytes of a file that is read to compare it; a longer one counts as another
_PIECE = 1 << 20
_Path = Sequence[bytes]


def size_and_time_tell(pool: Pool, host: str, chosen: FinalBackup, parent: FinalBackup) -> bool:
    """Returns True if each file of `chosen` with another content than in `parent` has another size or time there.

    False also if `chosen` did not grow from `parent`, snapshot by snapshot: nothing is known of their differences then; and if it
    takes too long to tell, as when the owner of all files was changed.
    """
    if not _grew_from(pool, host, chosen, parent):
        return False
    until = time.monotonic() + _LONGEST_LOOK
    with opened(chosen.path) as new, opened(parent.path) as old:
        changed = _changed_paths(new, chosen.subvolume.id, parent.subvolume.written)
        return not any(time.monotonic() > until or _is_hidden(new, old, path, found) for path, found in changed)


def _grew_from(pool: Pool, host: str, chosen: FinalBackup, parent: FinalBackup) -> bool:
    """Returns True if `chosen` is a snapshot of `parent`, or of one that is, and nobody has written to `parent` since."""
    known = {backup.subvolume.uuid: backup.subvolume for backup in final_backups(pool, host, [])}
    at = chosen.subvolume
    for _ in range(len(known)):
        if at.parent_uuid == parent.subvolume.uuid:
            return parent.subvolume.written <= at.created
        if at.parent_uuid not in known:
            break
        at = known[at.parent_uuid]
    return False


def _changed_paths(root: int, subvolume: int, since: int) -> Iterator[tuple[_Path, ChangedInode]]:
    """Yields each path of each folder and regular file that was changed since."""
    names = InodeNames(root)
    for found in changed_inodes(root, since):
        if found.ino != ROOT_FOLDER and (stat.S_ISREG(found.mode) or stat.S_ISDIR(found.mode)):
            for path in names.of(subvolume, found.ino):
                yield path.split(b"/"), found


def _is_hidden(new: int, old: int, path: _Path, found: ChangedInode) -> bool:
    """Returns True if rsync, which looks at sizes and times, could take what lies at that path for what lay there before."""
    with suppress(FileNotFoundError, NotADirectoryError):  # there was none before: that is seen
        before, after = _status(old, path), _status(new, path)
        if stat.S_ISDIR(found.mode):  # a folder in the place of another one brings files whose inodes did not change
            return stat.S_ISDIR(before.st_mode) and before.st_ino != found.ino
        if not stat.S_ISREG(before.st_mode) or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            return False
        return not _is_same(new, old, path, after.st_size)
    return False


def _status(root: int, path: _Path) -> os.stat_result:
    with ClosingFd(open_folder(root, path[:-1])) as folder:
        return os.stat(path[-1], dir_fd=folder, follow_symlinks=False)


def _opened(root: int, path: _Path) -> ClosingFd:
    with ClosingFd(open_folder(root, path[:-1])) as folder:
        return ClosingFd(os.open(path[-1], os.O_RDONLY | FILE, dir_fd=folder))


def _is_same(new: int, old: int, path: _Path, size: int) -> bool:
    with _opened(new, path) as one, _opened(old, path) as other:
        return share_all(one, other) or (size <= _LONGEST and _has_same_content(one, other))


def _has_same_content(one: int, other: int) -> bool:
    at = 0
    while True:
        piece = os.pread(one, _PIECE, at)
        if piece != os.pread(other, _PIECE, at):
            return False
        if not piece:
            return True
        at += len(piece)
