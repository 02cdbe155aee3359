"""Restores paths of a backup into a folder of this machine: what would happen, then just that, then a look whether it did.

Nothing is ever deleted there, and nothing overwritten unless the request says so. It may be stopped or killed at any moment and be
started again: what is whole has its name, and what has its name and is the same is passed over.
"""

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from backupd.files.attributes import attributes
from backupd.files.conflict_policy import (
    ALL,
    ENTERED,
    KEPT,
    NEW,
    OVERWRITTEN,
    REFUSED,
    SAME,
    LinkPlacer,
    RestoreStep,
    decide,
    differing,
)
from backupd.files.destination import Destination
from backupd.files.placing import Visit, place_path, placed, visits
from backupd.files.rereading import FileComparer
from backupd.files.restoration import Restored, RestorePreview, RestoreProgress, RestoreRequest, Tell, Withheld
from backupd.files.tree import Entry, Tree
from backupd.files.walking import Unreadable
from backupd.files.walls import Walls
from backupd.files.withholding import given_attributes, harmless
from backupd.files.writing import Writer, comparable, leftovers, take_away
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, printable

_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Looker:
    """Decides name after name, with what it has seen of hard links.

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
        """What to do with a name, and what is in its place now."""
        try:
            there = self.to.look(visit.place)
            if there and self.to.spares(there):
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


def preview(
    tree: Tree, request: RestoreRequest, reflinks: bool, tell: Tell = lambda _: None, *, content: bool = True
) -> RestorePreview:
    """What the request would do; nothing is changed. `reflinks`: the destination is on the pool's own btrfs.

    Without `content` a file that only differs in that counts as the same. The restore itself compares it before it passes it over.
    Raises UsageError for places that collide, OperatorError when the backup cannot be read.
    """
    found, progress = RestorePreview(str(request.to), reflinks=reflinks), RestoreProgress()

    def read(size: int) -> None:
        progress.size += size
        tell(progress)

    with _reaching(request.to), _destination(request, make=False) as to:
        compares = content and request.overwrite == ALL
        looker = Looker(to, request.overwrite, FileComparer(to, reflinks, read) if compares else None)
        needed = largest = 0
        for visit in _read(tree, request, found.withheld):
            if visit.left:
                continue
            progress.files, progress.place = progress.files + 1, place_path(found.to, visit.place)
            tell(progress)
            step, there = looker.step(visit)
            found.see(visit.entry)
            size = visit.entry.size if visit.entry.kind == "file" else 0
            found.counts[step.what].add(progress.place, step.why, size)
            first = looker.links.first(visit.entry)
            if step.what in (NEW, OVERWRITTEN):
                looker.links.placed(visit.entry, visit.place, 0)
            elif step.what == SAME and there:
                looker.links.placed(visit.entry, visit.place, there.inode)
            if step.what in (NEW, OVERWRITTEN) and not first and size:
                goes = there.allocated if there and there.links == 1 else 0
                needed, largest = needed + visit.entry.allocated - goes, max(largest, goes)
        found.needed, found.free = 0 if reflinks else max(0, needed + largest), to.free()
    return found


def _read(
    tree: Tree, request: RestoreRequest, withheld: Withheld, unreadable: Unreadable = lambda _path, _error: None
) -> Iterator[Visit]:
    """What is to be restored; what is not, because nobody asked for it, is counted in `withheld`."""
    found = visits(tree, placed(request.paths, request.parents), unreadable)
    try:
        yield from found if request.privileged else harmless(found, withheld, str(request.to))
    except OSError as error:
        raise OperatorError(
            f"the backup cannot be read: {error.strerror}" + (f" ({printable(str(error.filename))})" if error.filename else ""),
            "has it been deleted meanwhile? `backupd list` shows it; the kernel's messages (dmesg) tell of broken disks",
        ) from error


def _destination(request: RestoreRequest, *, make: bool) -> Destination:
    walls = Walls(request.only_below) if request.only_below else None
    return Destination(request.to, make=make, spared=request.spared, walls=walls)


@contextmanager
def _reaching(to: Path) -> Iterator[None]:
    """What goes wrong within and is not the backup's fault is the destination's."""
    try:
        yield
    except OSError as error:
        hint = "look at its filesystem and the kernel's messages (dmesg); the same command goes on"
        raise OperatorError(f"{to}: {error.strerror or error}", hint) from error


def _sync(to: Destination) -> None:
    """Raises OperatorError when a disk did not take what was written; it may be one that is mounted below the destination."""
    try:
        to.sync()
    except OSError as error:
        hint = "look at its filesystem and the kernel's messages (dmesg); the same command then names what is not as in the backup"
        raise OperatorError(f"{printable(str(error.filename))}: {error.strerror}", hint) from error


def require_possible(found: RestorePreview) -> None:
    """Raises OperatorError when the request would overwrite without leave, or when there is not enough room."""
    refused = found.counts[REFUSED]
    if refused.number:
        some = "\n".join(f"{printable(place)}: {why}" for place, why in refused.samples[:5])
        more = f"\nand {refused.number - 5:,} more" if refused.number > 5 else ""
        raise OperatorError(
            f"{counted(refused.number, 'name')} would be in the way, so nothing was written\n{some}{more}",
            "--overwrite=never restores the rest, =older and =all overwrite; what is of another kind has to be moved away by hand",
        )
    if found.needed is not None and found.free is not None and found.needed > found.free:
        raise OperatorError(
            f"{format_size(found.needed)} are needed, and {found.to} has {format_size(found.free)}, so nothing was written",
            "restore fewer paths, or to a larger filesystem",
        )


class Restore:
    """One restore, as it goes on."""

    def __init__(self, tree: Tree, request: RestoreRequest, found: RestorePreview, tell: Tell = lambda _: None) -> None:
        self.tree = tree
        self.request = request
        self.found = found
        self.roots = placed(request.paths, request.parents)
        self.progress = RestoreProgress()
        self.result = Restored()
        self.left_alone: set[int] = set()
        self._proven: set[int] = set()
        self._tell = tell
        self._folders: list[str] = []

    def run(self) -> Restored:
        """Writes, and compares. Raises OperatorError when the destination is full or gone, and what `tell` raises."""
        begun = time.monotonic()
        with _reaching(self.request.to), _destination(self.request, make=True) as to:
            self._write(to)
            self.progress.phase = "syncing"
            self._tell(self.progress)
            _sync(to)
            self._compare(to)
        self.result.seconds = time.monotonic() - begun
        return self.result

    def _write(self, to: Destination) -> None:
        looker, writer = Looker(to, self.request.overwrite, self._content(to)), Writer(to, self._moved)
        self._proven = looker.proven
        read = self.found.counts[SAME].size if looker.content else 0
        self.progress.turn_to("writing", self.found.names, self.found.to_write + read)
        for visit in _read(self.tree, self.request, self.result.withheld, self._unreadable):
            self.progress.place = place_path(self.found.to, visit.place)
            try:
                if visit.left:
                    self._leave(visit, looker, writer)
                else:
                    self._visit(visit, looker, writer)
            except OSError as error:
                if error.errno in _FATAL:
                    raise self._ended_by(error) from error
                self._problem(visit, error.strerror or str(error))
                if visit.entry.kind == "folder" and not visit.left:
                    self._folders.append(REFUSED)
            self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
        self.result.compared = looker.content.read if looker.content else 0

    def _content(self, to: Destination) -> FileComparer | None:
        """With ALL a file is overwritten also when nothing but its content differs; else the comparison afterwards names it."""
        return FileComparer(to, self.found.reflinks, self._moved) if self.request.overwrite == ALL else None

    def _visit(self, visit: Visit, looker: Looker, writer: Writer) -> None:
        self.progress.files += 1
        self._tell(self.progress)
        step, there = looker.step(visit)
        size = visit.entry.size if visit.entry.kind == "file" else 0
        if step.what == REFUSED:  # it has come there since the preview
            raise OSError(errno.EEXIST, step.why)
        if step.what in (NEW, OVERWRITTEN):
            self._make(visit, there, looker.links, writer)
        elif step.what == SAME and there:
            looker.links.placed(visit.entry, visit.place, there.inode)
        elif step.what == KEPT:
            self.left_alone.add(hash(visit.place))
        if step.what == ENTERED:
            self._tidy(visit, looker.to)
            # Now, for whoever goes on with it cannot know any more that we made it.
            if looker.to.made and self._gives(visit) and not visit.place:
                writer.finish(visit, all_of_it=True)
        if visit.entry.kind == "folder":
            self._folders.append(step.what)
        self.result.counts[step.what].add(self.progress.place, step.why, size)

    def _make(self, visit: Visit, there: Entry | None, links: LinkPlacer, writer: Writer) -> None:
        if first := links.first(visit.entry):
            writer.link(first[0], first[1], visit.place, there)
            links.placed(visit.entry, visit.place, first[1])
            self._moved(visit.entry.size)
            return
        inode = writer.make(visit, there)
        links.placed(visit.entry, visit.place, inode)
        self._lost(writer)

    def _leave(self, visit: Visit, looker: Looker, writer: Writer) -> None:
        """A folder's time, once all is in it. One that was there before keeps all else, unless everything is overwritten."""
        what = self._folders.pop()
        if what in (REFUSED, KEPT):
            return
        if not self._gives(visit):
            self.left_alone.add(hash(visit.place))
            return
        there = looker.to.look(visit.place) if what == ENTERED else None  # a new one has all but its time already
        differs = looker.differs(visit, there) if there else ()
        rest = [name for name in differs if name != "time"]
        if what == ENTERED and rest and self.request.overwrite != ALL and not (looker.to.made and not visit.place):
            self.left_alone.add(hash(visit.place))
            return
        if there and not differs:
            return
        writer.finish(visit, all_of_it=bool(rest))
        self._lost(writer)

    def _gives(self, visit: Visit) -> bool:
        """Whether a folder gets what the backup's has. The destination itself does not by default: it was made for root alone, or
        somebody has said whom it is for, and the host's / would open it to everybody.
        """
        return bool(visit.place) or self.request.privileged

    def _tidy(self, visit: Visit, to: Destination) -> None:
        """Takes away what a killed restore has left here; a file of the backup that is called so is none of that."""
        folder = to.folder(visit.place)
        if found := leftovers(folder):
            ours = set(self.tree.names(visit.entry.path))
            for name in found:
                if name not in ours:
                    take_away(folder, name)

    def _lost(self, writer: Writer) -> None:
        if writer.lost:
            words = ", ".join(printable(name) for name in writer.lost)
            self.result.problems.add(self.progress.place, f"cannot be kept here: {words}")

    def _problem(self, visit: Visit, why: str) -> None:
        self.left_alone.add(hash(visit.place))
        self.result.problems.add(self.progress.place, why)

    def _unreadable(self, path: bytes, error: OSError) -> None:
        """A folder, or a name in one, of the backup: the rest is worth having all the same."""
        root = next(root for root in self.roots if root.holds(path))
        why = f"it cannot be read in the backup: {error.strerror or error}"
        self.result.problems.add(place_path(self.found.to, root.place(path)), why)

    def _moved(self, size: int) -> None:
        self.progress.size += size
        self._tell(self.progress)

    def _ended_by(self, error: OSError) -> OperatorError:
        done = self.result.counts[NEW].number + self.result.counts[OVERWRITTEN].number
        hint = "make it writable" if error.errno == errno.EROFS else "make room"
        return OperatorError(
            f"{printable(self.progress.place)}: {error.strerror}; {counted(done, 'name')} had been restored",
            f"{hint} and run the same command again: what is there already is passed over",
        )

    def _compare(self, to: Destination) -> None:
        self.progress.turn_to("comparing", self.found.names, self.found.size if self.request.content else 0)
        looker = Looker(to, None)
        comparison = FileComparer(to, self.found.reflinks, self._moved)
        for visit in _read(self.tree, self.request, Withheld()):
            if visit.left or hash(visit.place) in self.left_alone:
                continue
            self.progress.files, self.progress.place = self.progress.files + 1, place_path(self.found.to, visit.place)
            self._tell(self.progress)
            if differs := self._differs(visit, looker, comparison):
                self.result.differences.add(self.progress.place, "differs: " + ", ".join(differs))
        self.result.compared += comparison.read

    def _differs(self, visit: Visit, looker: Looker, comparison: FileComparer) -> Sequence[str]:
        try:
            there = looker.to.look(visit.place)
            if there is None:
                return ["it is not there"]
            differs = looker.differs(visit, there)
            first = looker.links.first(visit.entry)
            looker.links.placed(visit.entry, visit.place, there.inode)
            plain = visit.entry.kind == there.kind == "file" and visit.entry.size == there.size
            content = self.request.content and plain and (not first or "hard link" in differs)
            if not content or hash(visit.place) in self._proven or comparison.same(visit):
                return differs
            return [*differs, "content"]
        except OSError as error:
            return [error.strerror or str(error)]
