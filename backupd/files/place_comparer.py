"""Compares a destination with the backup: each name before it is restored, or counted by a preview, and all names after the
restore. Contents are read on both sides, if possible from the disk and not from memory. Files that share their data on disk, such
as reflinks, are equal and are not read.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from backupd.files.attributes import attributes
from backupd.files.conflict_policy import ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME, LinkPlacer, RestoreStep, decide, differing
from backupd.files.destination import Destination
from backupd.files.placing import AnyVisit, FolderVisits, Names, PlainVisits, Visit
from backupd.files.plain_files import are_shared
from backupd.files.privileged_attributes import count_powers, given_attributes
from backupd.files.restore_types import RestorePreview
from backupd.files.tree import Entry, open_plain
from backupd.files.writing import Moved, comparable, unfinished_size
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED, is_damage
from btrkeep.fs.file_data import PIECE, PieceBuffer, Run, bypass_page_cache, data_runs, pieces
from btrkeep.pool.marker import filesystem_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


_NEW = RestoreStep(NEW)
_MOST_PROVEN = 1_000_000  # 70 MB of memory
_LARGE, _LARGE_PIECE = 32 << 20, 4 << 20  # bytes: both copies of a file this large are read in parallel, in pieces
_SHORT = 64 << 10  # bytes: shorter runs of data are read through the page cache
_MANY = 64  # short runs of data that are requested together


class DestinationError(OSError):
    """An entry at the destination cannot be read. Any other OSError of a comparison is about the backup."""


class FileComparer:
    """Compares files of a backup with those at the destination. `read` counts the bytes read on both sides.

    `reflinks`: the destination is on the pool's btrfs. Filesystems mounted below it may not be, and there equal addresses mean
    nothing. Files of the backup that are `damaged` are read although they share their data, to report that they cannot be read.
    """

    def __init__(self, to: Destination, reflinks: bool, moved: Moved, damaged: frozenset[bytes] = frozenset()) -> None:
        self.to = to
        self.reflinks = reflinks
        self.moved = moved
        self.damaged = damaged
        self.read = 0
        self._buffers: tuple[PieceBuffer, PieceBuffer, PieceBuffer] | None = None
        self._large_buffers: tuple[PieceBuffer, PieceBuffer] | None = None

    def same(self, visit: Visit) -> bool:
        """Returns True if both contain the same bytes; their sizes are known to be equal.

        Raises OSError; DestinationError if the destination cannot be read.
        """
        with at_destination():
            folder, name = self.to.parent(visit.place)
        with ClosingFd(open_plain(visit.name, visit.folder)) as ours, ClosingFd(_open_plain_there(name, folder)) as theirs:
            return self._same(ours, theirs, visit.entry.size, self.reflinks and visit.entry.path not in self.damaged)

    def _same(self, ours: int, theirs: int, size: int, reflinks: bool) -> bool:
        if reflinks and size and filesystem_of(ours) == filesystem_of(theirs) and are_shared(ours, theirs):
            self.moved(size)
            return True
        for fd in (ours, theirs):  # the page cache proves nothing about the disk
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            bypass_page_cache(fd, wanted=True)
        done = 0
        with ExitStack() as stack:
            # Two disks, or two parts of one, are read in parallel. The thread ends before any fork.
            if aside := _thread() if size >= _LARGE else None:
                stack.enter_context(aside)
            for runs in _together(chain(data_runs(ours, size), ((size, size),))):  # a hostile file may have millions
                is_short = len(runs) > 1
                for fd in (ours, theirs) if is_short else ():
                    for start, end in runs:
                        if end > start:
                            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)
                for start, end in runs:
                    self.moved(start - done)
                    is_equal = self._is_nothing(theirs, done, start) and (
                        self._equal_short(ours, theirs, start, end) if is_short else self._equal(ours, theirs, start, end, aside)
                    )
                    if not is_equal:
                        return False
                    done = end
        return True

    def _equal_short(self, ours: int, theirs: int, start: int, end: int) -> bool:
        """Compares a run that was already requested from the disk: waiting for each separately takes ten times as long."""
        if start == end:
            return True
        bypass_page_cache(ours, wanted=False)
        bypass_page_cache(theirs, wanted=False)
        data = b"".join(pieces(ours, start, end))
        with at_destination():
            restored = b"".join(pieces(theirs, start, end))
        self.read += end - start
        self.moved(end - start)
        return data == restored

    def _equal(self, ours: int, theirs: int, start: int, end: int, aside: "ThreadPoolExecutor | None") -> bool:
        bypass_page_cache(ours, wanted=True)
        bypass_page_cache(theirs, wanted=True)
        if aside:
            our_piece, their_piece = self._large_buffers = self._large_buffers or _large_buffers()
        else:
            our_piece, their_piece, _ = self._buffers = self._buffers or _buffers()
        for position in range(start, end, our_piece.size):
            length = min(our_piece.size, end - position)
            restored = aside.submit(their_piece.read, theirs, position, length) if aside else None
            our_piece.read(ours, position, length)
            with at_destination():
                if restored:
                    restored.result()
                else:
                    their_piece.read(theirs, position, length)
            self.read += length
            self.moved(length)
            if not our_piece.equals(their_piece, length):
                return False
        return True

    def _is_nothing(self, fd: int, start: int, end: int) -> bool:
        """Returns True if a part of a file is a hole, or zeros, which are read in the same way."""
        for begin, stop in _data_runs_there(fd, end, start):
            _, piece, zeros = self._buffers = self._buffers or _buffers()
            for position in range(begin, stop, PIECE):
                length = min(PIECE, stop - position)
                with at_destination():
                    piece.read(fd, position, length)
                self.moved(0)
                if not piece.equals(zeros, length):
                    return False
        return True


def _together(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Yields runs of data: long ones separately, short ones that follow each other together."""
    short = list[Run]()
    for run in runs:
        if run[1] - run[0] > _SHORT:
            if short:
                yield short
                short = []
            yield [run]
            continue
        short.append(run)
        if len(short) == _MANY:
            yield short
            short = []
    if short:
        yield short


def _thread() -> "ThreadPoolExecutor | None":
    """Returns a thread that reads one side; None if the limit of processes is reached: then one side is read after the other."""
    from btrkeep.process.threads import NoThread, running_threads  # slow to import

    try:
        return running_threads(1, "compare")
    except NoThread:
        return None


def _buffers() -> tuple[PieceBuffer, PieceBuffer, PieceBuffer]:
    """Returns buffers for a piece of each side, and one with zeros."""
    return PieceBuffer(), PieceBuffer(), PieceBuffer()


def _large_buffers() -> tuple[PieceBuffer, PieceBuffer]:
    return PieceBuffer(_LARGE_PIECE), PieceBuffer(_LARGE_PIECE)


@contextmanager
def at_destination() -> Iterator[None]:
    """Turns an OSError from within into a DestinationError."""
    try:
        yield
    except OSError as error:
        raise DestinationError(error.errno, error.strerror or str(error)) from error


def why_unread(error: OSError) -> str:
    """Returns the reason why a comparison could not read, with the side of the error."""
    side = "at the destination" if isinstance(error, DestinationError) else "in the backup"
    return f"it cannot be read {side}: {error.strerror or error}"


def _open_plain_there(name: bytes, folder: int) -> int:
    with at_destination():
        return open_plain(name, folder)


def _data_runs_there(fd: int, size: int, position: int) -> Iterator[Run]:
    with at_destination():
        yield from data_runs(fd, size, position)


class PlaceComparer:
    """Compares names of a backup with the destination, decides the action for each, and remembers hard links.

    With `content`, files without other differences are compared by content. `proven`: hashes of the places of the first million
    files that were read and are equal: all other files are read again after the restore.
    """

    def __init__(self, to: Destination, overwrite: str | None, content: FileComparer | None = None) -> None:
        self.to = to
        self.overwrite = overwrite
        self.content = content
        self.links = LinkPlacer()
        self.proven: set[int] = set()

    def step(self, visit: Visit) -> tuple[RestoreStep, Entry | None]:
        """Returns the action for a name, and the present entry in its place."""
        try:
            with at_destination():
                entry = self.to.read_entry(visit.place)
                if entry and self.to.excludes(entry):
                    return RestoreStep(KEPT, "it is the pool, or the catalogue's folder"), entry
                if self.to.outside(visit.place):
                    step = KEPT if entry and entry.kind == visit.entry.kind == "folder" else REFUSED
                    return RestoreStep(step, "it is outside of the folder that restores may write to"), entry
                if entry and entry.kind == visit.entry.kind == "folder":
                    self.to.enter(visit.place)  # raises if it may not be written to, such as a read-only mount
            differs = self.differs(visit, entry) if entry else ()
        except OSError as error:
            return RestoreStep(REFUSED, why_unread(error) if is_damage(error) else error.strerror or str(error)), None
        return decide(visit.entry, entry, differs, self.overwrite), entry

    def differs(self, visit: Visit, entry: Entry) -> Sequence[str]:
        """Returns the fields in which the existing name differs from the backup's, including hard links and attributes, and the
        content if nothing else differs and contents are compared. Raises OSError.
        """
        differences = list(differing(visit.entry, entry))
        first = self.links.first(visit.entry)
        if first and first[1] != entry.identity:
            differences.append("hard link")
        if differences and visit.entry.kind != "folder":
            return differences
        if not self._same_attributes(visit):
            return [*differences, "attributes"]
        if visit.entry.kind == "file" and not first and not self._same_content(visit):  # further names are the same file
            return ["content"]
        return differences

    def _same_content(self, visit: Visit) -> bool:
        if not self.content:
            return True
        before = self.content.read
        try:
            same = self.content.same(visit)
        except DestinationError as error:
            if error.errno not in DAMAGED:
                raise
            return False  # it is overwritten
        if same and self.content.read > before and len(self.proven) < _MOST_PROVEN:
            self.proven.add(hash(visit.place))
        return same

    def _same_attributes(self, visit: Visit) -> bool:
        ours = given_attributes(visit)
        with at_destination():
            theirs = attributes(*self.to.parent(visit.place))
        return {name: value for name, value in ours.items() if comparable(name)} == {
            name: value for name, value in theirs.items() if comparable(name)
        }


@dataclass(slots=True)
class PlacedFolder:
    """A folder of the destination that a walk is in."""

    place: Names
    """Its names below the destination's root."""
    step: str
    """The action for it, one of the steps of conflict_policy."""
    is_fresh: bool
    """True if it was empty."""
    waiting: int = 0
    """Number of groups that are still being copied into it."""


def placed_folder(visit: Visit, step: str, to: Destination) -> PlacedFolder:
    """Returns the folder of the visit, for which that step was chosen. Raises OSError."""
    place = visit.place
    return PlacedFolder(place, step, step == NEW or (step == ENTERED and not to.outside(place) and to.is_empty(place)))


def is_in_fresh(visit: Visit, folders: Sequence[PlacedFolder]) -> bool:
    """Returns True if a name is restored into the last of these folders, and that folder was empty. A requested path may be
    restored elsewhere.
    """
    return bool(folders) and folders[-1].is_fresh and folders[-1].place == visit.place[:-1]


class PreviewCounter:
    """Counts names in `preview`, and the bytes that are needed on disk. `unfinished`: bytes that a killed restore has left at the
    destination.

    `each`: yields the names of a group or folder one by one. `counts_powers`: attributes that are left out are counted, too.
    """

    def __init__(
        self, preview: RestorePreview, comparer: PlaceComparer, each: Callable[[AnyVisit], Iterator[Visit]], *, counts_powers: bool
    ) -> None:
        self._preview = preview
        self._comparer = comparer
        self._each = each
        self._counts_powers = counts_powers
        self._links = comparer.links
        self._folders: list[PlacedFolder] = []
        self._needed = self._largest = self.unfinished = 0

    @property
    def needed(self) -> int:
        """Returns the maximum bytes that are needed during the restore."""
        return max(0, self._needed + self._largest)

    def take(self, visit: AnyVisit) -> Iterator[int]:
        """Counts the names of a visit; yields how many, before each access to the destination. Raises OSError."""
        if isinstance(visit, Visit):
            if visit.left:
                self._folders.pop()
            else:
                yield 1
                self._add(visit)
        elif not self._folders[-1].is_fresh or (self._counts_powers and isinstance(visit, FolderVisits)):
            for single in self._each(visit):
                yield from self.take(single)
        elif isinstance(visit, FolderVisits):
            self._preview.count_new_folders(visit)
            self._needed += visit.group.totals.allocated
            yield visit.group.totals.names
        else:
            self._add_group(visit)
            yield len(visit.group.files)

    def _add_group(self, plain: PlainVisits) -> None:
        """Counts a group of files whose places are free."""
        self._preview.count_new(plain)
        for file in plain.group.files:
            if file.links > 1:
                if self._links.place(file.inode, file.links, plain.place, 0):  # it only matters whether there is a first name
                    self._needed += file.allocated
            else:
                self._needed += file.allocated
        if self._counts_powers:
            count_powers(plain, self._preview.withheld, self._preview.to)

    def _add(self, visit: Visit) -> None:
        """Counts a name; if it is a folder, the walk has entered it."""
        entry, to = visit.entry, self._comparer.to
        step, existing = (_NEW, None) if is_in_fresh(visit, self._folders) else self._comparer.step(visit)
        self._preview.count(entry)
        size = entry.size if entry.kind == "file" else 0
        self._preview.counts[step.step].add_at(self._preview.to, visit.place, step.why, size)
        self._place(visit, step, existing, size)
        if step.step == ENTERED:
            self.add_unfinished(visit.place)
        if entry.kind == "folder":
            self._folders.append(placed_folder(visit, step.step, to))

    def add_unfinished(self, place: Names) -> None:
        """Counts what the restore deletes in an existing folder."""
        with suppress(OSError):  # the restore gets the same error, and reports it
            self.unfinished += unfinished_size(self._comparer.to.folder(place))

    def _place(self, visit: Visit, step: RestoreStep, entry: Entry | None, size: int) -> None:
        first = self._links.first(visit.entry)
        if step.step in (NEW, OVERWRITTEN):
            self._links.placed(visit.entry, visit.place, 0)
            if not first and size:
                replaced = entry.allocated if entry and entry.links == 1 else 0
                self._needed, self._largest = self._needed + visit.entry.allocated - replaced, max(self._largest, replaced)
        elif step.step == SAME and entry:
            self._links.placed(visit.entry, visit.place, entry.identity)
