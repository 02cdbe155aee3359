"""Compares what is at a destination with the backup: each name before it is restored, and all of them afterwards.

Contents are read on both sides, from the disk and not from memory where that can be had. Files that share their data on disk, as
reflinks do, hold the same and are not read.
"""

import os
from collections.abc import Sequence

from backupd.files.attributes import attributes
from backupd.files.conflict_policy import KEPT, REFUSED, LinkPlacer, RestoreStep, decide, differing
from backupd.files.destination import Destination
from backupd.files.placing import Visit
from backupd.files.tree import Entry, open_plain
from backupd.files.withholding import given_attributes
from backupd.files.writing import Moved, comparable
from btrkeep.fs.fiemap import share_all
from btrkeep.fs.sparse import PIECE, data_runs, pieces
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


class PlaceComparer:
    """Compares names of a backup with what is in their places, and decides what becomes of each; remembers hard links.

    With `content`, files of which nothing else differs are compared with it. `proven` are hashes of the places of those that were
    read then, and hold the same.
    """

    def __init__(self, to: Destination, overwrite: str | None, content: FileComparer | None = None) -> None:
        self.to = to
        self.overwrite = overwrite
        self.content = content
        self.links = LinkPlacer()
        self.proven: set[int] = set()

    def step(self, visit: Visit) -> tuple[RestoreStep, Entry | None]:
        """Returns what to do with a name, and what is in its place now."""
        try:
            there = self.to.look(visit.place)
            if there and self.to.excludes(there):
                return RestoreStep(KEPT, "it is the pool, or the catalogue's folder"), there
            if self.to.outside(visit.place):
                on_the_way = there and there.kind == visit.entry.kind == "folder"
                return RestoreStep(KEPT if on_the_way else REFUSED, "it is outside of what may be restored into"), there
            if there and there.kind == visit.entry.kind == "folder":
                self.to.enter(visit.place)  # for what is mounted there may not be written to
            differs = self.differs(visit, there) if there else ()
        except OSError as error:
            return RestoreStep(REFUSED, error.strerror or str(error)), None
        return decide(visit.entry, there, differs, self.overwrite), there

    def differs(self, visit: Visit, there: Entry) -> Sequence[str]:
        """In what the name that is there differs from the backup's, hard links and attributes included, and content where it is
        compared: when nothing else differs. Raises OSError.
        """
        found = list(differing(visit.entry, there))
        first = self.links.first(visit.entry)
        if first and first[1] != there.inode:
            found.append("hard link")
        if found and visit.entry.kind != "folder":
            return found
        if not self._same_attributes(visit):
            return [*found, "attributes"]
        if visit.entry.kind == "file" and not first and not self._same_content(visit):  # a further name was found to be that file
            return ["content"]
        return found

    def _same_content(self, visit: Visit) -> bool:
        if not self.content:
            return True
        before = self.content.read
        same = self.content.same(visit)
        if same and self.content.read > before:
            self.proven.add(hash(visit.place))
        return same

    def _same_attributes(self, visit: Visit) -> bool:
        folder, name = self.to.parent(visit.place)
        ours, theirs = given_attributes(visit), attributes(folder, name)
        return {name: value for name, value in ours.items() if comparable(name)} == {
            name: value for name, value in theirs.items() if comparable(name)
        }
