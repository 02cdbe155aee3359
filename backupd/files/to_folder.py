"""Restores paths of a backup into a folder of this machine: previews, restores, and compares the result.

Nothing is ever deleted there, and nothing overwritten unless requested. A restore may be stopped or killed at any moment and
started again: only complete files have their final names, and equal files are skipped.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from backupd.files.allowed_folders import AllowedFolders
from backupd.files.conflict_policy import ALL, ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME, LinkPlacer
from backupd.files.destination import Destination
from backupd.files.place_comparer import FileComparer, PlaceComparer
from backupd.files.placing import Names, PlainVisits, Visit, place_path, placed, visits
from backupd.files.plain_files import Handled, compare, copy
from backupd.files.privileged_attributes import count_powers, harmless
from backupd.files.restore_types import Restored, RestorePreview, RestoreProgress, RestoreRequest, Tell, Withheld
from backupd.files.tree import Entry, Tree
from backupd.files.walking import PlainFile, Unreadable
from backupd.files.writing import Writer, leftovers, remove_unfinished
from btrkeep.errors import OperatorError
from btrkeep.process.batch_workers import BatchWorkers
from btrkeep.units import counted, printable

_MANY = 64
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _sync(to: Destination) -> None:
    """Syncs everything. Raises OperatorError if a disk lost data, which may be one that is mounted below the destination."""
    try:
        to.sync()
    except OSError as error:
        hint = "look at its filesystem and the kernel's messages (dmesg); the same command then names what is not as in the backup"
        raise OperatorError(f"{printable(str(error.filename))}: {error.strerror}", hint) from error


def _ignored(_path: bytes, _error: OSError) -> None:
    """What cannot be read is named when it is restored."""


def _is_fresh(what: str, place: Names, to: Destination) -> bool:
    """Returns True if nothing is in the folder that gets this step."""
    return what == NEW or (what == ENTERED and to.is_empty(place))


class LocalRestore:
    """A restore into a folder of this machine.

    Nothing is written to, or in, the folders `excluded`: the pools and the folders of the catalogues. `reflinks`: the destination
    is on the pool's own btrfs. With `copies` data is read and written there, too. `damaged`: paths of the backup that are known to
    be. `trusted`: as in Destination. `tell` is called repeatedly, and may raise Cancelled.
    """

    def __init__(
        self,
        tree: Tree,
        request: RestoreRequest,
        *,
        reflinks: bool,
        copies: bool = False,
        excluded: Sequence[Path] = (),
        damaged: frozenset[bytes] = frozenset(),
        trusted: bool = False,
        tell: Tell = lambda _: None,
    ) -> None:
        self.tree = tree
        self.request = request
        self.to = request.to
        self.parents = request.parents
        self.roots = placed(request.paths, request.parents)
        self.progress = RestoreProgress()
        self.result = Restored()
        self._reflinks = reflinks
        self._copies = copies
        self._excluded = excluded
        self._damaged = damaged
        self._trusted = trusted
        self._left_alone: set[int] = set()
        self._proven: set[int] = set()
        self._unread: set[bytes] = set()
        self._tell = tell
        self._folders: list[tuple[str, bool]] = []  # of each folder on the way: its step, and whether nothing was in it
        self._late: list[Visit] = []  # folders that are left, and have no time yet
        self._sources: set[int] = set()

    def preview(self, *, content: bool = True) -> RestorePreview:
        """Returns what would happen; changes nothing.

        Without `content`, as before a restore, a file that only differs in that counts as the same: the restore itself compares it
        before it passes it over; and privileges of files whose places are free are not counted: the restore counts them. Raises
        UsageError for places that collide, OperatorError when the backup cannot be read.
        """
        found, progress = RestorePreview(self.to, reflinks=self._reflinks), RestoreProgress()

        def read(size: int) -> None:
            progress.size += size
            self._tell(progress)

        with self._destination(make=False) as to:
            compares = content and self.request.overwrite == ALL
            comparer = PlaceComparer(to, self.request.overwrite, FileComparer(to, self._reflinks, read) if compares else None)
            needed = largest = 0
            fresh = list[bool]()
            for visit in self._visits(found.withheld, _ignored):
                if isinstance(visit, PlainVisits) and fresh[-1]:
                    found.count_new(visit)
                    needed += sum(file.allocated for file in visit.group.files)
                    if content and not self.request.privileged:
                        count_powers(visit, found.withheld, self.to)
                    progress.files, progress.place = progress.files + len(visit.group.files), place_path(self.to, visit.place)
                    self._tell(progress)
                    continue
                for single in self._each(visit, found.withheld, _ignored):
                    if single.left:
                        fresh.pop()
                        continue
                    progress.files, progress.place = progress.files + 1, place_path(found.to, single.place)
                    self._tell(progress)
                    step, there = comparer.step(single)
                    found.count(single.entry)
                    size = single.entry.size if single.entry.kind == "file" else 0
                    found.counts[step.what].add(progress.place, step.why, size)
                    first = comparer.links.first(single.entry)
                    if step.what in (NEW, OVERWRITTEN):
                        comparer.links.placed(single.entry, single.place, 0)
                    elif step.what == SAME and there:
                        comparer.links.placed(single.entry, single.place, there.inode)
                    if step.what in (NEW, OVERWRITTEN) and not first and size:
                        replaced = there.allocated if there and there.links == 1 else 0
                        needed, largest = needed + single.entry.allocated - replaced, max(largest, replaced)
                    if single.entry.kind == "folder":
                        fresh.append(_is_fresh(step.what, single.place, to))
            found.needed, found.free = 0 if self._reflinks else max(0, needed + largest), to.free()
        return found

    def run(self, found: RestorePreview) -> Restored:
        """Writes, and compares. Raises OperatorError when the preview forbids it, when the destination is full or gone, and what
        `tell` raises.
        """
        found.require_possible()
        begun = time.monotonic()
        with self._destination(make=True) as to:
            self._write(to, found)
            self.progress.phase = "syncing"
            self._tell(self.progress)
            _sync(to)
            self._compare(to, found)
        self.result.seconds = time.monotonic() - begun
        return self.result

    @contextmanager
    def _destination(self, *, make: bool) -> Iterator[Destination]:
        """Yields the open destination; errors within that the backup did not cause are attributed to it."""
        allowed = AllowedFolders([Path(folder) for folder in self.request.only_below]) if self.request.only_below else None
        try:
            opened = Destination(Path(self.to), make=make, excluded=self._excluded, allowed=allowed, trusted=self._trusted)
            with opened as to:
                yield to
        except OSError as error:
            hint = "look at its filesystem and the kernel's messages (dmesg); the same command goes on"
            raise OperatorError(f"{self.to}: {error.strerror or error}", hint) from error

    def _visits(self, withheld: Withheld, unreadable: Unreadable) -> Iterator[Visit | PlainVisits]:
        """Yields the entries to restore; counts in `withheld` those that need --privileged."""
        found = visits(self.tree, self.roots, unreadable)
        try:
            yield from found if self.request.privileged else harmless(found, withheld, self.to)
        except OSError as error:
            raise OperatorError(
                f"the backup cannot be read: {error.strerror}" + (f" ({printable(str(error.filename))})" if error.filename else ""),
                "has it been deleted meanwhile? `backupd list` shows it; the kernel's messages (dmesg) tell of broken disks",
            ) from error

    def _each(
        self, visit: Visit | PlainVisits, withheld: Withheld, unreadable: Unreadable, files: Sequence[PlainFile] | None = None
    ) -> Iterator[Visit]:
        """Yields a visit, or those of plain files one by one: of these `files`, or all."""
        if isinstance(visit, Visit):
            yield visit
            return
        found = visit.each(visit.group.files if files is None else files, unreadable)
        for single in found if self.request.privileged else harmless(found, withheld, self.to):
            assert isinstance(single, Visit)
            yield single

    def _write(self, to: Destination, found: RestorePreview) -> None:
        # With ALL a file is overwritten also when nothing but its content differs; else the comparison afterwards names it.
        content = FileComparer(to, self._reflinks, self._moved) if self.request.overwrite == ALL else None
        comparer, writer = PlaceComparer(to, self.request.overwrite, content), Writer(to, self._moved, clones=not self._copies)
        self._proven = comparer.proven
        self.progress.turn_to("writing", found.names, found.to_write + (found.counts[SAME].size if content else 0))
        reflinks = self._reflinks and not self._copies
        with self._workers(partial(copy, reflinks=reflinks, privileged=self.request.privileged)) as workers:

            def copied(plain: PlainVisits, files: Sequence[PlainFile], left_over: Sequence[PlainFile], size: int) -> None:
                self.progress.files += len(files)
                self.result.counts[NEW].add_plain(self.to, plain, files)
                writer.reflinked, writer.copied = writer.reflinked + reflinks * size, writer.copied + (not reflinks) * size
                self.progress.place = place_path(self.to, plain.place)
                self._moved(size)
                for single in self._each(plain, self.result.withheld, self._unreadable, left_over):
                    self._restore(single, comparer, writer, workers)

            for visit in self._visits(self.result.withheld, self._unreadable):
                if isinstance(visit, PlainVisits) and self._folders[-1][1] and self._given(visit, to, workers, copied):
                    continue
                for single in self._each(visit, self.result.withheld, self._unreadable):
                    self._restore(single, comparer, writer, workers)
                self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
            self._finish_late(writer, workers)
        self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
        self.result.compared = content.read if content else 0

    @contextmanager
    def _workers(self, work: Callable[[int, int, Sequence[PlainFile]], Handled]) -> Iterator[BatchWorkers]:
        with BatchWorkers(lambda source, to, files: tuple(work(source, to, list(map(PlainFile._make, files))))) as workers:
            try:
                yield workers
            finally:
                while self._sources:
                    os.close(self._sources.pop())

    def _given(
        self,
        plain: PlainVisits,
        to: Destination,
        workers: BatchWorkers,
        then: Callable[[PlainVisits, Sequence[PlainFile], Sequence[PlainFile], int], None],
    ) -> bool:
        """Gives files to the workers; `then` gets which of them were done, which were not, and the bytes. Returns False if their
        place cannot be opened.
        """
        workers.wait_until_free()  # what is called meanwhile opens other folders
        try:
            folder = to.folder(plain.place)
        except OSError:
            return False
        files = plain.group.files
        source = os.dup(plain.group.folder)
        self._sources.add(source)
        mine = replace(plain, group=plain.group._replace(folder=source))

        def handled(answer: tuple[Sequence[int], int]) -> None:
            numbers, size = set(answer[0]), answer[1]
            done = [file for number, file in enumerate(files) if number not in numbers]
            then(mine, done, [files[number] for number in answer[0]], size)
            self._sources.discard(source)
            os.close(source)

        workers.give(source, folder, list(map(tuple, files)), handled)
        return True

    def _restore(self, visit: Visit, comparer: PlaceComparer, writer: Writer, workers: BatchWorkers) -> None:
        self.progress.place = place_path(self.to, visit.place)
        try:
            if visit.left:
                self._leave(visit, comparer, writer, workers)
            else:
                self._visit(visit, comparer, writer)
        except OSError as error:
            if error.errno in _FATAL:
                raise self._ended_by(error) from error
            self._problem(visit, error.strerror or str(error))
            if visit.entry.kind == "folder" and not visit.left:
                self._folders.append((REFUSED, False))

    def _visit(self, visit: Visit, comparer: PlaceComparer, writer: Writer) -> None:
        self.progress.files += 1
        self._tell(self.progress)
        step, there = comparer.step(visit)
        size = visit.entry.size if visit.entry.kind == "file" else 0
        if step.what == REFUSED:  # it has come there since the preview
            raise OSError(errno.EEXIST, step.why)
        if step.what in (NEW, OVERWRITTEN):
            self._make(visit, there, comparer.links, writer)
        elif step.what == SAME and there:
            comparer.links.placed(visit.entry, visit.place, there.inode)
        elif step.what == KEPT:
            self._left_alone.add(hash(visit.place))
        if step.what == ENTERED:
            self._tidy(visit, comparer.to)
            # Now, for whoever goes on with it cannot know any more that we made it.
            if comparer.to.made and self._gives(visit) and not visit.place:
                writer.finish(visit, all_of_it=True)
        if visit.entry.kind == "folder":
            self._folders.append((step.what, _is_fresh(step.what, visit.place, comparer.to)))
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

    def _leave(self, visit: Visit, comparer: PlaceComparer, writer: Writer, workers: BatchWorkers) -> None:
        """Sets a folder's time once all is in it. A folder that existed keeps all else, unless everything is overwritten."""
        what, _ = self._folders.pop()
        if what in (REFUSED, KEPT):
            return
        if not self._gives(visit):
            self._left_alone.add(hash(visit.place))
            return
        if what == NEW:  # it has all but its time already
            self._late.append(visit)
            if len(self._late) == _MANY:
                self._finish_late(writer, workers)
            return
        workers.finish()
        self.progress.place = place_path(self.to, visit.place)
        there = comparer.to.look(visit.place)
        differs = comparer.differs(visit, there) if there else ()
        rest = [name for name in differs if name != "time"]
        if rest and self.request.overwrite != ALL and not (comparer.to.made and not visit.place):
            self._left_alone.add(hash(visit.place))
            return
        if there and not differs:
            return
        writer.finish(visit, all_of_it=bool(rest))
        self._lost(writer)

    def _finish_late(self, writer: Writer, workers: BatchWorkers) -> None:
        """Sets the times of folders that were left while files were still being copied into them."""
        workers.finish()
        for visit in self._late:
            self.progress.place = place_path(self.to, visit.place)
            try:
                writer.finish(visit, all_of_it=False)
            except OSError as error:
                self._problem(visit, error.strerror or str(error))
            self._lost(writer)
        self._late.clear()

    def _gives(self, visit: Visit) -> bool:
        """Returns True if a folder gets the attributes of the backup's. By default the destination itself does not: it was
        created for root alone, or its owner has set its mode, and the host's / would open it to everybody.
        """
        return bool(visit.place) or self.request.privileged

    def _tidy(self, visit: Visit, to: Destination) -> None:
        """Removes temporary files of a killed restore, except a file of the backup that has such a name."""
        folder = to.folder(visit.place)
        if found := leftovers(folder):
            ours = set(self.tree.names(visit.entry.path))
            for name in found:
                if name not in ours:
                    remove_unfinished(folder, name)

    def _lost(self, writer: Writer) -> None:
        if writer.lost:
            words = ", ".join(printable(name) for name in writer.lost)
            self.result.problems.add(self.progress.place, f"cannot be kept here: {words}")

    def _problem(self, visit: Visit, why: str) -> None:
        self._left_alone.add(hash(visit.place))
        self.result.problems.add(self.progress.place, why)

    def _unreadable(self, path: bytes, error: OSError) -> None:
        """A folder, or a name in one, of the backup: the rest is worth having all the same."""
        place, why = self._unread_place(path, error)
        self._unread.add(place)
        self.result.problems.add(place, why)

    def _unread_since(self, path: bytes, error: OSError) -> None:
        """A folder or name that could still be read when it was restored, and was not compared."""
        place, why = self._unread_place(path, error)
        if place not in self._unread:
            self.result.differences.add(place, why)

    def _unread_place(self, path: bytes, error: OSError) -> tuple[bytes, str]:
        root = next(root for root in self.roots if root.holds(path))
        return place_path(self.to, root.place(path)), f"it cannot be read in the backup: {error.strerror or error}"

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

    def _compare(self, to: Destination, found: RestorePreview) -> None:
        self.progress.turn_to("comparing", found.names, found.size if self.request.content else 0)
        comparer, comparison = PlaceComparer(to, None), FileComparer(to, self._reflinks, self._moved, self._damaged)
        with self._workers(
            partial(compare, reflinks=self._reflinks, privileged=self.request.privileged, content=self.request.content)
        ) as workers:

            def compared(plain: PlainVisits, files: Sequence[PlainFile], left_over: Sequence[PlainFile], size: int) -> None:
                self.progress.files, self.progress.place = self.progress.files + len(files), place_path(self.to, plain.place)
                comparison.read += size
                self._moved(sum(file.size for file in files) if self.request.content else 0)
                for single in self._each(plain, Withheld(), self._unread_since, left_over):
                    self._compare_one(single, comparer, comparison)

            for visit in self._visits(Withheld(), self._unread_since):
                if isinstance(visit, PlainVisits) and not self._is_any_special(visit) and self._given(visit, to, workers, compared):
                    continue
                for single in self._each(visit, Withheld(), self._unread_since):
                    self._compare_one(single, comparer, comparison)
            workers.finish()
        self.result.compared += comparison.read

    def _is_any_special(self, plain: PlainVisits) -> bool:
        """Returns True if any of these files is not to be compared, or not as the others are."""
        places = {hash((*plain.place, file.name)) for file in plain.group.files}
        if not places.isdisjoint(self._left_alone) or not places.isdisjoint(self._proven):
            return True
        return bool(self._damaged) and any(plain.group.above + b"/" + file.name in self._damaged for file in plain.group.files)

    def _compare_one(self, visit: Visit, comparer: PlaceComparer, comparison: FileComparer) -> None:
        if visit.left or hash(visit.place) in self._left_alone:
            return
        self.progress.files, self.progress.place = self.progress.files + 1, place_path(self.to, visit.place)
        self._tell(self.progress)
        if differs := self._differs(visit, comparer, comparison):
            self.result.differences.add_difference(self.progress.place, differs)

    def _differs(self, visit: Visit, comparer: PlaceComparer, comparison: FileComparer) -> Sequence[str]:
        try:
            there = comparer.to.look(visit.place)
            if there is None:
                return ["it is not there"]
            differs = comparer.differs(visit, there)
            first = comparer.links.first(visit.entry)
            comparer.links.placed(visit.entry, visit.place, there.inode)
            plain = visit.entry.kind == there.kind == "file" and visit.entry.size == there.size
            content = self.request.content and plain and (not first or "hard link" in differs)
            if not content or hash(visit.place) in self._proven or comparison.same(visit):
                return differs
            return [*differs, "content"]
        except OSError as error:
            return [error.strerror or str(error)]
