"""Compares a destination with the backup: each name before it is restored, and all of them afterwards.

Contents are read on both sides, if possible from the disk and not from memory. Files that share their data on disk, such as
reflinks, are equal and are not read.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from backupd.files.attributes import attributes
from backupd.files.conflict_policy import KEPT, REFUSED, LinkPlacer, RestoreStep, decide, differing
from backupd.files.destination import Destination
from backupd.files.placing import Visit
from backupd.files.privileged_attributes import given_attributes
from backupd.files.tree import Entry, open_plain
from backupd.files.writing import Moved, comparable
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.direct_comparison import PieceBuffer, past_memory
from btrkeep.fs.fiemap import share_all
from btrkeep.fs.sparse import PIECE, data_runs
from btrkeep.pool.marker import filesystem_of

_MOST_PROVEN = 1_000_000  # 70 MB of memory


class DestinationDamaged(OSError):
    """The disk does not give back the content of a file at the destination."""


class FileComparer:
    """Compares files of a backup with those at the destination. `read` counts the bytes read on both sides.

    `reflinks`: the destination is on the pool's btrfs. Filesystems mounted below it may not be; equal addresses mean nothing there.
    Files of the backup that are `damaged` are read although they share their data, to say that they cannot be.
    """

    def __init__(self, to: Destination, reflinks: bool, moved: Moved, damaged: frozenset[bytes] = frozenset()) -> None:
        self.to = to
        self.reflinks = reflinks
        self.moved = moved
        self.damaged = damaged
        self.read = 0
        self._buffers: tuple[PieceBuffer, PieceBuffer, PieceBuffer] | None = None

    def same(self, visit: Visit) -> bool:
        """Returns True if the two hold the same bytes; their sizes are known to be equal.

        Raises OSError; DestinationDamaged if it is not the backup that cannot be read.
        """
        folder, name = self.to.parent(visit.place)
        with ClosingFd(open_plain(visit.name, visit.folder)) as ours, ClosingFd(open_plain(name, folder)) as theirs:
            return self._same(ours, theirs, visit.entry.size, self.reflinks and visit.entry.path not in self.damaged)

    def _same(self, ours: int, theirs: int, size: int, reflinks: bool) -> bool:
        if reflinks and size and filesystem_of(ours) == filesystem_of(theirs) and share_all(ours, theirs):
            self.moved(size)
            return True
        for fd in (ours, theirs):  # what is in memory says nothing of the disk
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            past_memory(fd, wanted=True)
        done = 0
        for start, end in chain(data_runs(ours, size), ((size, size),)):  # a host may have made millions
            self.moved(start - done)
            if not self._is_nothing(theirs, done, start) or not self._equal(ours, theirs, start, end):
                return False
            done = end
        return True

    def _equal(self, ours: int, theirs: int, start: int, end: int) -> bool:
        our_piece, their_piece, _ = self._buffers = self._buffers or _buffers()
        for position in range(start, end, PIECE):
            length = min(PIECE, end - position)
            our_piece.read(ours, position, length)
            with _destination_damage():
                their_piece.read(theirs, position, length)
            self.read += length
            self.moved(length)
            if not our_piece.equals(their_piece, length):
                return False
        return True

    def _is_nothing(self, fd: int, start: int, end: int) -> bool:
        """Returns True if a part of a file is a hole, or zeros, which read alike."""
        for begin, stop in data_runs(fd, end, start):
            _, piece, zeros = self._buffers = self._buffers or _buffers()
            for position in range(begin, stop, PIECE):
                length = min(PIECE, stop - position)
                with _destination_damage():
                    piece.read(fd, position, length)
                self.moved(0)
                if not piece.equals(zeros, length):
                    return False
        return True


def _buffers() -> tuple[PieceBuffer, PieceBuffer, PieceBuffer]:
    """For a piece of each side, and zeros."""
    return PieceBuffer(), PieceBuffer(), PieceBuffer()


@contextmanager
def _destination_damage() -> Iterator[None]:
    """Raises DestinationDamaged for an error of the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in DAMAGED:
            raise DestinationDamaged(error.errno, error.strerror) from error
        raise


class PlaceComparer:
    """Compares names of a backup with the destination, decides the action for each, and remembers hard links.

    With `content`, files that differ in nothing else are compared by content. `proven` are hashes of the places of files that were
    read and are equal, of the first million of them: the others are read again.
    """

    def __init__(self, to: Destination, overwrite: str | None, content: FileComparer | None = None) -> None:
        self.to = to
        self.overwrite = overwrite
        self.content = content
        self.links = LinkPlacer()
        self.proven: set[int] = set()

    def step(self, visit: Visit) -> tuple[RestoreStep, Entry | None]:
        """Returns the action for a name, and the entry that is in its place now."""
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
        """Returns the fields in which the existing name differs from the backup's, including hard links and attributes, and the
        content if nothing else differs and contents are compared. Raises OSError.
        """
        found = list(differing(visit.entry, there))
        first = self.links.first(visit.entry)
        if first and first[1] != there.identity:
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
        try:
            same = self.content.same(visit)
        except DestinationDamaged:  # to be overwritten
            return False
        if same and self.content.read > before and len(self.proven) < _MOST_PROVEN:
            self.proven.add(hash(visit.place))
        return same

    def _same_attributes(self, visit: Visit) -> bool:
        folder, name = self.to.parent(visit.place)
        ours, theirs = given_attributes(visit), attributes(folder, name)
        return {name: value for name, value in ours.items() if comparable(name)} == {
            name: value for name, value in theirs.items() if comparable(name)
        }
