"""Whether a restored file holds what the backup's does: both are read, and from the disk, not from memory, where that can be had.

Files that share their data on disk, as reflinks do, hold the same and are not read.
"""

import os

from backupd.files.content import PIECE, data_runs, pieces
from backupd.files.destination import Destination
from backupd.files.placing import Visit
from backupd.files.tree import open_plain
from backupd.files.writing import Moved
from btrkeep.fs.fiemap import share_all
from btrkeep.pool.marker import filesystem_of

_NOTHING = bytes(PIECE)


class FileComparer:
    """Compares files of a backup with those at their places. `read` counts the bytes that were read on both sides.

    `reflinks`: the destination is on the pool's btrfs. What is mounted below may not be: there equal places on disk mean nothing.
    """

    def __init__(self, to: Destination, reflinks: bool, moved: Moved) -> None:
        self.to = to
        self.reflinks = reflinks
        self.moved = moved
        self.read = 0

    def same(self, visit: Visit) -> bool:
        """Whether the two hold the same bytes; their sizes are known to be equal. Raises OSError."""
        folder, name = self.to.parent(visit.place)
        ours = open_plain(visit.name, visit.folder)
        try:
            theirs = open_plain(name, folder)
            try:
                return self._same(ours, theirs, visit.entry.size)
            finally:
                os.close(theirs)
        finally:
            os.close(ours)

    def _same(self, ours: int, theirs: int, size: int) -> bool:
        if self.reflinks and size and filesystem_of(ours) == filesystem_of(theirs) and share_all(ours, theirs):
            self.moved(size)
            return True
        for fd in (ours, theirs):  # what is in memory says nothing of the disk
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        done = 0
        for start, end in [*data_runs(ours, size), (size, size)]:
            self.moved(start - done)
            if not self._is_nothing(theirs, done, start) or not self._equal(ours, theirs, start, end):
                return False
            done = end
        return True

    def _equal(self, ours: int, theirs: int, start: int, end: int) -> bool:
        for one, other in zip(pieces(ours, start, end), pieces(theirs, start, end), strict=True):
            self.read += len(one)
            self.moved(len(one))
            if one != other:
                return False
        return True

    def _is_nothing(self, fd: int, start: int, end: int) -> bool:
        """Whether a part of a file is a hole, or zeros, which read alike."""
        for begin, stop in data_runs(fd, end, start):
            for piece in pieces(fd, begin, stop):
                self.moved(0)
                if piece != _NOTHING[: len(piece)]:
                    return False
        return True
