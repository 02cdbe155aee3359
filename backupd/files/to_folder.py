"""Restores paths of a backup into a folder of this machine: previews, restores, and compares the result.

Nothing is ever deleted there, and nothing overwritten unless requested. A restore may be stopped or killed at any moment and
started again: only complete files have their final names, and equal files are skipped.
"""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from backupd.files.allowed_folders import AllowedFolders
from backupd.files.conflict_policy import ALL, ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME, LinkPlacer, RestoreStep
from backupd.files.destination import Destination
from backupd.files.further_names import link_names
from backupd.files.group_workers import GroupWorkers, Work
from backupd.files.new_folders import make_folder
from backupd.files.place_comparer import FileComparer, PlaceComparer
from backupd.files.placed_folders import PlacedFolder, is_in_fresh, placed_folder
from backupd.files.placing import PlainVisits, Visit, place_path, placed, visits
from backupd.files.plain_files import Handled, compare, copy
from backupd.files.privileged_attributes import count_powers, harmless
from backupd.files.restore_types import Restored, RestorePreview, RestoreProgress, RestoreRequest, Tell, Withheld
from backupd.files.result_comparer import Exempt, ResultComparer
from backupd.files.tree import Entry, Tree
from backupd.files.walking import PlainFile, Unreadable
from backupd.files.writing import Writer, leftovers, remove_unfinished
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.units import counted, printable

_LATE = 32  # folders that wait for their time at the most; each is open
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
        self.progress = RestoreProgress(to=request.to)
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
        self._folders: list[PlacedFolder] = []  # on the way to where the walk is
        self._late: list[tuple[Visit, int]] = []  # open folders that are left, and have no time yet
        self._is_ended = False  # the destination is full: what the processes have done by then is only counted
        self._by_itself: set[int] = set()  # inodes of several names that were not copied in a group

    def preview(self, *, content: bool = True) -> RestorePreview:
        """Returns what would happen; changes nothing.

        Without `content`, as before a restore, a file that only differs in that counts as the same: the restore itself compares it
        before it passes it over; and privileges of files whose places are free are not counted: the restore counts them. Raises
        UsageError for places that collide, OperatorError when the backup cannot be read.
        """
        found, progress = RestorePreview(self.to, reflinks=self._reflinks), RestoreProgress(to=self.to)

        def read(size: int) -> None:
            progress.size += size
            self._tell(progress)

        with self._destination(make=False) as to:
            compares = content and self.request.overwrite == ALL
            comparer = PlaceComparer(to, self.request.overwrite, FileComparer(to, self._reflinks, read) if compares else None)
            needed = largest = 0
            folders, new = list[PlacedFolder](), RestoreStep(NEW)
            for visit in self._visits(found.withheld, _ignored):
                if isinstance(visit, PlainVisits) and folders[-1].is_fresh:
                    found.count_new(visit)
                    needed += self._allocated(visit, comparer.links)
                    if content and not self.request.privileged:
                        count_powers(visit, found.withheld, self.to)
                    progress.files, progress.names = progress.files + len(visit.group.files), visit.place
                    self._tell(progress)
                    continue
                for single in self._each(visit, found.withheld, _ignored):
                    if single.left:
                        folders.pop()
                        continue
                    progress.files, progress.names = progress.files + 1, single.place
                    self._tell(progress)
                    step, there = (new, None) if is_in_fresh(single, folders) else comparer.step(single)
                    found.count(single.entry)
                    size = single.entry.size if single.entry.kind == "file" else 0
                    found.counts[step.what].add_at(self.to, single.place, step.why, size)
                    first = comparer.links.first(single.entry)
                    if step.what in (NEW, OVERWRITTEN):
                        comparer.links.placed(single.entry, single.place, 0)
                    elif step.what == SAME and there:
                        comparer.links.placed(single.entry, single.place, there.identity)
                    if step.what in (NEW, OVERWRITTEN) and not first and size:
                        replaced = there.allocated if there and there.links == 1 else 0
                        needed, largest = needed + single.entry.allocated - replaced, max(largest, replaced)
                    if single.entry.kind == "folder":
                        folders.append(placed_folder(single, step.what, to))
            found.needed, found.free = 0 if self._reflinks else max(0, needed + largest), to.free()
        return found

    @staticmethod
    def _allocated(plain: PlainVisits, links: LinkPlacer) -> int:
        """Bytes on disk of files in whose places nothing is, without further names of a file."""
        size = 0
        for file in plain.group.files:
            if file.links > 1:
                if links.first_of(file.inode) is None:
                    size += file.allocated
                links.place(file.inode, file.links, (*plain.place, file.name), 0)
            else:
                size += file.allocated
        return size

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
        found = visits(self.tree, self.roots, unreadable, privileged=self.request.privileged)
        try:
            yield from found if self.request.privileged else harmless(found, withheld, self.to)
        except OSError as error:
            raise OperatorError(
                f"the backup cannot be read: {error.strerror}" + (f" ({printable(str(error.filename))})" if error.filename else ""),
                "has it been deleted meanwhile? `backupd list` shows it; the kernel's messages (dmesg) tell of broken disks",
            ) from error

    def _each(
        self, visit: Visit | PlainVisits, withheld: Withheld, unreadable: Unreadable, *, files: Sequence[PlainFile] | None = None
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
        with self._workers(to, partial(copy, reflinks=reflinks, privileged=self.request.privileged)) as workers:

            def copy_group(plain: PlainVisits, folder: PlacedFolder) -> bool:
                """Returns False if the place cannot be opened."""
                files, further = self._without_further(plain, comparer.links, workers)

                def copied(plain: PlainVisits, files: Sequence[PlainFile], handled: Handled) -> None:
                    folder.waiting -= 1
                    left_over = self._count_copied(plain, files, handled, comparer.links)
                    size = handled.size
                    writer.reflinked, writer.copied = writer.reflinked + reflinks * size, writer.copied + (not reflinks) * size
                    self._moved(size)
                    if self._is_ended:
                        return
                    for single in self._each(plain, self.result.withheld, self._unreadable, files=left_over):
                        self._restore(single, comparer, writer, workers)
                    for single in self._linked(plain, further, comparer):
                        self._restore(single, comparer, writer, workers)

                folder.waiting += 1
                if workers.do(plain, files, copied):
                    return True
                folder.waiting -= 1
                for file in files:
                    if file.links > 1:
                        comparer.links.forget(file.inode)
                return False

            for visit in self._visits(self.result.withheld, self._unreadable):
                if isinstance(visit, PlainVisits) and self._folders[-1].is_fresh and copy_group(visit, self._folders[-1]):
                    continue
                for single in self._each(visit, self.result.withheld, self._unreadable):
                    self._restore(single, comparer, writer, workers)
                self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
            self._finish_late(writer, workers)
        self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
        self.result.compared = content.read if content else 0

    @contextmanager
    def _workers(self, to: Destination, work: Work, *, at_once: bool = True) -> Iterator[GroupWorkers]:
        with GroupWorkers(work, to, at_once=at_once) as workers:
            try:
                yield workers
            finally:
                while self._late:
                    os.close(self._late.pop()[1])

    def _without_further(
        self, plain: PlainVisits, links: LinkPlacer, workers: GroupWorkers
    ) -> tuple[list[PlainFile], list[PlainFile]]:
        """Returns the files of a group to copy; and further names of these, or of earlier ones, which are all written then."""
        files, further, waiting, ours = list[PlainFile](), list[PlainFile](), False, set[int]()
        for file in plain.group.files:
            first = links.first_of(file.inode) if file.links > 1 else None
            if first:
                further.append(file)
                waiting = waiting or (not first[1] and file.inode not in ours)
                continue
            files.append(file)
            if file.links > 1:
                links.place(file.inode, file.links, (*plain.place, file.name), 0)
                ours.add(file.inode)
        if waiting:
            workers.finish()
        return files, further

    def _count_copied(
        self, plain: PlainVisits, files: Sequence[PlainFile], handled: Handled, links: LinkPlacer
    ) -> Sequence[PlainFile]:
        """Counts the files of a group that were copied; returns the others."""
        left_over = [files[number] for number in handled.left_over]
        if left_over:
            numbers = set(handled.left_over)
            done = [file for number, file in enumerate(files) if number not in numbers]
        else:
            done = list(files)
        for file, copied in zip((file for file in files if file.links > 1), handled.identities, strict=True):
            if copied:
                links.set_copy(file.inode, copied)
            else:
                links.forget(file.inode)
                self._by_itself.add(file.inode)
        self.progress.files += len(done)
        self.progress.names = plain.place
        self.result.counts[NEW].add_plain(self.to, plain, done)
        return left_over

    def _linked(self, plain: PlainVisits, further: Sequence[PlainFile], comparer: PlaceComparer) -> Iterator[Visit]:
        """Makes further names of files that were copied; yields those that have to be made by themselves."""
        if not further:
            return
        left_over = link_names(
            comparer.to, plain.place, [file for file in further if file.inode not in self._by_itself], comparer.links
        )
        left_over += [file for file in further if file.inode in self._by_itself]
        names = {file.name for file in left_over}
        done = [file for file in further if file.name not in names]
        self.progress.files += len(done)
        self.result.counts[NEW].add_plain(self.to, plain, done)
        self._moved(sum(file.size for file in done))
        yield from self._each(plain, self.result.withheld, self._unreadable, files=left_over)

    def _restore(self, visit: Visit, comparer: PlaceComparer, writer: Writer, workers: GroupWorkers) -> None:
        self.progress.names = visit.place
        first = comparer.links.first(visit.entry)
        if first and not first[1]:  # its first name is still being copied
            workers.finish()
            self.progress.names = visit.place
        try:
            if visit.left:
                self._leave(visit, comparer, writer, workers)
            else:
                self._visit(visit, comparer, writer)
        except OSError as error:
            if error.errno in _FATAL:
                raise self._ended_by(error, workers) from error
            self._problem(visit, error.strerror or str(error))
            if visit.entry.kind == "folder" and not visit.left:
                self._folders.append(PlacedFolder(visit.place, REFUSED, is_fresh=False))

    def _visit(self, visit: Visit, comparer: PlaceComparer, writer: Writer) -> None:
        self.progress.files += 1
        self._tell(self.progress)
        if visit.entry.kind == "folder" and is_in_fresh(visit, self._folders) and self._makes_folder(visit, comparer.to):
            self._folders.append(PlacedFolder(visit.place, NEW, is_fresh=True))
            self.result.counts[NEW].add_at(self.to, visit.place)
            return
        step, there = comparer.step(visit)
        size = visit.entry.size if visit.entry.kind == "file" else 0
        if step.what == REFUSED:  # it has come there since the preview
            raise OSError(errno.EEXIST, step.why)
        if step.what in (NEW, OVERWRITTEN):
            self._make(visit, there, comparer.links, writer)
        elif step.what == SAME and there:
            comparer.links.placed(visit.entry, visit.place, there.identity)
        elif step.what == KEPT:
            self._left_alone.add(hash(visit.place))
        if step.what == ENTERED:
            self._tidy(visit, comparer.to)
            # Now, for whoever goes on with it cannot know any more that we made it.
            if comparer.to.made and self._gives(visit) and not visit.place:
                writer.finish(visit, all_of_it=True)
        if visit.entry.kind == "folder":
            self._folders.append(placed_folder(visit, step.what, comparer.to))
        self.result.counts[step.what].add_at(self.to, visit.place, step.why, size)

    def _makes_folder(self, visit: Visit, to: Destination) -> bool:
        """Makes a folder in one where nothing was; returns False if it has to be done by itself."""
        above = to.folder(visit.place[:-1])
        made = make_folder(visit.folder, visit.name, visit.entry, above, privileged=visit.privileged)
        if made is None:
            return False
        to.enter_new(visit.place, made)
        return True

    def _make(self, visit: Visit, there: Entry | None, links: LinkPlacer, writer: Writer) -> None:
        if first := links.first(visit.entry):
            writer.link(first[0], first[1], visit.place, there)
            links.placed(visit.entry, visit.place, first[1])
            self._moved(visit.entry.size)
            return
        made = writer.make(visit, there)
        links.placed(visit.entry, visit.place, made)
        self._lost(writer)

    def _leave(self, visit: Visit, comparer: PlaceComparer, writer: Writer, workers: GroupWorkers) -> None:
        """Sets a folder's time once all is in it. A folder that existed keeps all else, unless everything is overwritten."""
        folder = self._folders.pop()
        what = folder.step
        if what in (REFUSED, KEPT):
            return
        if not self._gives(visit):
            self._left_alone.add(hash(visit.place))
            return
        if what == NEW:  # it has all but its time already
            fd = comparer.to.folder(visit.place)
            if not folder.waiting:
                self._give_time(visit, fd, writer)
                return
            self._late.append((visit, os.dup(fd)))
            if len(self._late) == _LATE:
                self._finish_late(writer, workers)
            return
        workers.finish()
        self.progress.names = visit.place
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

    def _finish_late(self, writer: Writer, workers: GroupWorkers) -> None:
        """Sets the times of folders that were left while files were still being copied into them."""
        workers.finish()
        while self._late:
            visit, fd = self._late.pop()
            with ClosingFd(fd):
                self.progress.names = visit.place
                try:
                    self._give_time(visit, fd, writer)
                except OSError as error:
                    self._problem(visit, error.strerror or str(error))

    def _give_time(self, visit: Visit, fd: int, writer: Writer) -> None:
        """Gives an open folder its time. Raises OSError."""
        try:
            os.utime(fd, ns=(visit.entry.mtime, visit.entry.mtime))
        except OSError:
            writer.finish(visit, all_of_it=False)
            self._lost(writer)

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

    def _ended_by(self, error: OSError, workers: GroupWorkers) -> OperatorError:
        place, self._is_ended = self.progress.place, True
        with suppress(OperatorError):  # a process that was ended from outside
            workers.finish()
        done = self.result.counts[NEW].number + self.result.counts[OVERWRITTEN].number
        hint = "make it writable" if error.errno == errno.EROFS else "make room"
        return OperatorError(
            f"{printable(place)}: {error.strerror}; {counted(done, 'name')} had been restored",
            f"{hint} and run the same command again: what is there already is passed over",
        )

    def _compare(self, to: Destination, found: RestorePreview) -> None:
        content = self.request.content
        self.progress.turn_to("comparing", found.names, found.size if content else 0)
        contents = FileComparer(to, self._reflinks, self._moved, self._damaged)
        exempt = Exempt(self._left_alone, self._proven, self._damaged)
        each = partial(self._each, withheld=Withheld(), unreadable=self._unread_since)
        comparer = ResultComparer(contents, exempt, each, self.progress, self.result.differences, content=content)
        work = partial(compare, reflinks=self._reflinks, privileged=self.request.privileged, content=content)
        with self._workers(to, work, at_once=not content) as workers:
            for visit in self._visits(Withheld(), self._unread_since):
                if isinstance(visit, PlainVisits):
                    comparer.compare_group(visit, workers)
                else:
                    comparer.compare(visit)
            workers.finish()
        self.result.compared += contents.read
