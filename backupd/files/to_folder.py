"""Restores paths of a backup into a folder of this machine: previews, restores, and compares the result.

Nothing is ever deleted there, and nothing overwritten unless requested. A restore may be stopped or killed at any moment and
started again: only complete files have their final names, and equal files are skipped.
"""

import errno
import os
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from backupd.files.batched_walk import NumberSet, RepeatedWalk
from backupd.files.conflict_policy import ALL, ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME, LinkPlacer
from backupd.files.destination import AllowedFolders, Destination
from backupd.files.group_workers import GroupWorkers, WorkPhase
from backupd.files.group_writer import GroupWriter
from backupd.files.new_folders import STAGING, FolderCopier, Staging, compare_folders, make_folder
from backupd.files.place_comparer import FileComparer, PlaceComparer, PlacedFolder, PreviewCounter, is_in_fresh, placed_folder
from backupd.files.placing import AnyVisit, FolderVisits, Names, PlainVisits, Visit, place_path, placed, visits
from backupd.files.plain_files import compare, copy
from backupd.files.privileged_attributes import harmless
from backupd.files.restore_types import RestorePreview, RestoreProgress, RestoreRequest, RestoreResult, Tell, Withheld
from backupd.files.result_comparer import Exempt, ResultComparer
from backupd.files.tree import Entry, Tree
from backupd.files.walking import PlainFile, Unreadable
from backupd.files.writing import Undeleted, Writer, leftovers, mode_to_fill, remove_leftovers, why_unmade
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.file_data import SourceUnreadable, at_source
from btrkeep.units import counted, printable

_COARSE = 5  # CLOCK_REALTIME_COARSE, which gives files their times
_LATE = 32  # at most so many open folders wait for their times
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _sync(to: Destination) -> None:
    """Syncs everything. Raises OperatorError if a disk lost data, also a disk that is mounted below the destination."""
    try:
        to.sync()
    except OSError as error:
        hint = "check its filesystem and the kernel's messages (dmesg); the same command then lists the differences from the backup"
        raise OperatorError(f"{printable(str(error.filename))}: {error.strerror}", hint) from error


def _next_tick() -> int:
    """Waits up to 10 ms until the clock of the filesystems advances, and returns its time, in nanoseconds: later than the last
    change of each file that is complete now, and not later than that of any future change.
    """
    before = now = time.clock_gettime_ns(_COARSE)
    while now == before:
        time.sleep(0.001)
        now = time.clock_gettime_ns(_COARSE)
    return now


def _ignored(_path: bytes, _error: OSError) -> None:
    """Does nothing: an unreadable name is reported when it is restored."""


class LocalRestore:
    """A restore into a folder of this machine.

    Nothing is written to, or in, the folders `excluded`: the pools and the folders of the catalogues. `reflinks`: the destination
    is on the pool's own btrfs. With `copies` data is read and written there, too. `damaged`: paths of the backup that are recorded
    as damaged. `trusted`: as in Destination. `tell` is called repeatedly, and may raise Cancelled.
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
        self.roots = placed(request.paths, request.parents)
        self.progress = RestoreProgress(to=request.to)
        self.result = RestoreResult()
        self._reflinks = reflinks
        self._copies = copies
        self._excluded = excluded
        self._damaged = damaged
        self._trusted = trusted
        self._left_alone: set[int] = set()
        self._proven: set[int] = set()
        self._unread: set[bytes] = set()
        self._tell = tell
        self._folders: list[PlacedFolder] = []  # from the top to the current position of the walk
        self._staging: Staging | None = None
        self._late: list[tuple[Visit, int, PlacedFolder]] = []  # finished folders that are still open and have no time yet
        self._is_ended = False  # the destination is full: the finished work of the processes is only counted
        self._walks = RepeatedWalk()
        self._bare = NumberSet()

    def preview(self, *, content: bool = True) -> RestorePreview:
        """Returns what would happen; changes nothing.

        Without `content`, as before a restore, a file that differs only in its content counts as the same: the restore compares it
        before skipping it. Then also attributes that grant privileges are not counted for files whose places are free: the restore
        counts them. Raises UsageError for places that collide, OperatorError if the backup cannot be read.
        """
        preview, progress = RestorePreview(self.to, reflinks=self._reflinks), RestoreProgress(to=self.to)

        def read(size: int) -> None:
            progress.size += size
            self._tell(progress)

        with self._destination(make=False) as to:
            compares = content and self.request.overwrite == ALL
            comparer = PlaceComparer(to, self.request.overwrite, FileComparer(to, self._reflinks, read) if compares else None)
            each = partial(self._each, withheld=preview.withheld, unreadable=_ignored)
            counter = PreviewCounter(preview, comparer, each, counts_powers=content and not self.request.privileged)
            for visit in self._visits(preview.withheld, _ignored):
                for names in counter.take(visit):
                    progress.files, progress.names = progress.files + names, visit.place
                    self._tell(progress)
            if self._has_untidy_top(to):
                counter.add_unfinished(())
            free = to.free()
            preview.needed = 0 if self._reflinks else counter.needed
            preview.free = None if free is None else free + counter.unfinished
        return preview

    def run(self, preview: RestorePreview) -> RestoreResult:
        """Writes, and compares. Raises OperatorError if the preview forbids it, or if the destination is full or has disappeared,
        and the errors of `tell`.
        """
        preview.require_possible()
        begun = time.monotonic()
        with self._destination(make=True) as to:
            self._tidy_top(to)
            self._staging = Staging(to, self._taken())
            with self._workers(to, self._staging) as workers:
                with self._staging:
                    self._write(to, preview, workers)
                if self._staging.left:
                    place = place_path(self.to, (STAGING,))
                    self.result.problems.add(place, f"could not delete this temporary folder of the restore: {self._staging.left}")
                self.progress.phase = "syncing"
                self._tell(self.progress)
                synced = _next_tick()
                _sync(to)
                self._compare(to, preview, workers, synced)
        self.result.seconds = time.monotonic() - begun
        return self.result

    @contextmanager
    def _destination(self, *, make: bool) -> Iterator[Destination]:
        """Yields the open destination; errors in the context that the backup did not cause are reported as errors of the
        destination.
        """
        allowed = AllowedFolders([Path(folder) for folder in self.request.only_below]) if self.request.only_below else None
        try:
            opened = Destination(Path(self.to), make=make, excluded=self._excluded, allowed=allowed, trusted=self._trusted)
            with opened as to:
                yield to
        except OSError as error:
            hint = "check its filesystem and the kernel's messages (dmesg); the same command continues"
            raise OperatorError(f"{self.to}: {error.strerror or error}", hint) from error

    def _visits(self, withheld: Withheld, unreadable: Unreadable) -> Iterator[AnyVisit]:
        """Yields the entries to restore; counts in `withheld` those that need --privileged."""
        single_visits = visits(self.tree, self.roots, self._walks.walk, unreadable, privileged=self.request.privileged)
        try:
            yield from single_visits if self.request.privileged else harmless(single_visits, withheld, self.to)
        except OSError as error:
            raise OperatorError(
                f"the backup cannot be read: {error.strerror}" + (f" ({printable(str(error.filename))})" if error.filename else ""),
                "check with `backupd list` whether it was deleted; the kernel's messages (dmesg) show disk errors",
            ) from error

    def _each(
        self, visit: AnyVisit, withheld: Withheld, unreadable: Unreadable, *, files: Sequence[PlainFile] | None = None
    ) -> Iterator[Visit]:
        """Yields a visit; of a folder or a group, the visits of its names one by one: of `files`, or of all files."""
        if isinstance(visit, Visit):
            yield visit
            return
        if isinstance(visit, FolderVisits):
            for part in visit.parts(visit.group.folders, unreadable):
                yield from self._each(part, withheld, unreadable)
            return
        single_visits = visit.each(visit.group.files if files is None else files, unreadable)
        for single in single_visits if self.request.privileged else harmless(single_visits, withheld, self.to):
            assert isinstance(single, Visit)
            yield single

    def _workers(self, to: Destination, staging: Staging) -> GroupWorkers:
        reflinks, privileged, content = self._reflinks and not self._copies, self.request.privileged, self.request.content
        copy_whole = FolderCopier(-1 if staging.fd is None else staging.fd, reflinks=reflinks, privileged=privileged).copy
        compare_files = partial(compare, reflinks=self._reflinks, privileged=privileged, content=content)
        compare_whole = partial(compare_folders, reflinks=self._reflinks, privileged=privileged, content=content)
        phases = (
            WorkPhase(partial(copy, reflinks=reflinks, privileged=privileged), copy_whole, at_once=True),
            WorkPhase(compare_files, compare_whole, at_once=not content),
        )
        return GroupWorkers(to, phases, kept=lambda: [] if staging.fd is None else [staging.fd])

    def _write(self, to: Destination, preview: RestorePreview, workers: GroupWorkers) -> None:
        # With ALL, a file is overwritten even if only its content differs; otherwise the later comparison reports it.
        content = FileComparer(to, self._reflinks, self._moved) if self.request.overwrite == ALL else None
        comparer, writer = PlaceComparer(to, self.request.overwrite, content), Writer(to, self._moved, clones=not self._copies)
        self._proven = comparer.proven
        self.progress.turn_to("writing", preview.names, preview.to_write + (preview.counts[SAME].size if content else 0))
        try:
            self._write_all(comparer, writer, workers)
        except BaseException:
            workers.close()  # before the staging folder is deleted
            raise
        finally:
            while self._late:
                os.close(self._late.pop()[1])
        self.result.compared = content.read if content else 0

    def _write_all(self, comparer: PlaceComparer, writer: Writer, workers: GroupWorkers) -> None:
        def each(visit: AnyVisit, files: Sequence[PlainFile] | None = None) -> Iterator[Visit]:
            return self._each(visit, self.result.withheld, self._unreadable, files=files)

        def restore(visit: Visit) -> None:
            self._restore(visit, comparer, writer, workers)

        def restore_part(visit: Visit | PlainVisits) -> None:
            if isinstance(visit, Visit):
                restore(visit)
            elif not self._folders[-1].is_fresh or not groups.copy_group(visit, self._folders[-1]):
                for single in each(visit):
                    restore(single)

        def give_time(visit: Visit) -> None:
            self._give_late_time(visit, None, writer)

        groups = GroupWriter(
            comparer.to, self.to, comparer.links, writer, workers, self.result, self.progress,
            each, restore, restore_part, give_time, lambda: self._is_ended, self._unreadable,
            self._reflinks and not self._copies, self._bare,
        )  # fmt: skip
        is_staged = self._staging is not None and self._staging.fd is not None
        for visit in self._visits(self.result.withheld, self._unreadable):
            if not isinstance(visit, FolderVisits):
                restore_part(visit)
            elif not is_staged or not self._folders[-1].is_fresh or not groups.copy_folders(visit, self._folders[-1]):
                for part in visit.parts(visit.group.folders, self._unreadable):
                    restore_part(part)
            self.result.reflinked, self.result.copied = writer.reflinked, writer.copied
        self._finish_late(writer, workers)
        self.result.reflinked, self.result.copied = writer.reflinked, writer.copied

    def _taken(self) -> set[bytes]:
        """Returns names at the top of the destination that the backup itself may need."""
        taken = {root.names[0] for root in self.roots if root.names}
        if len(taken) < len(self.roots):
            with suppress(OSError):
                taken.add(self.tree.stat(b"/" + STAGING).name)
        return taken

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
            self._problem(visit, why_unmade(error))
            self._note_undeleted(visit.place[:-1], writer.undeleted)
            if visit.entry.kind == "folder" and not visit.left:
                self._folders.append(PlacedFolder(visit.place, REFUSED, is_fresh=False))

    def _visit(self, visit: Visit, comparer: PlaceComparer, writer: Writer) -> None:
        self.progress.files += 1
        self._tell(self.progress)
        if visit.entry.kind == "folder" and is_in_fresh(visit, self._folders) and self._makes_folder(visit, comparer.to):
            self._folders.append(PlacedFolder(visit.place, NEW, is_fresh=True))
            self.result.counts[NEW].add_at(self.to, visit.place)
            return
        step, entry = comparer.step(visit)
        size = visit.entry.size if visit.entry.kind == "file" else 0
        if step.step == REFUSED:  # it was created after the preview
            raise OSError(errno.EEXIST, step.why)
        if step.step in (NEW, OVERWRITTEN):
            self._make(visit, entry, comparer.links, writer)
        elif step.step == SAME and entry:
            comparer.links.placed(visit.entry, visit.place, entry.identity)
        elif step.step == KEPT:
            self._left_alone.add(hash(visit.place))
        if step.step == ENTERED:
            self._tidy(visit, comparer.to)
            # Now, because a later restore cannot know that this one made it.
            if comparer.to.made and self._gives(visit) and not visit.place:
                writer.finish(visit, all_of_it=True)
        if visit.entry.kind == "folder":
            self._folders.append(placed_folder(visit, step.step, comparer.to))
        self.result.counts[step.step].add_at(self.to, visit.place, step.why, size)

    def _makes_folder(self, visit: Visit, to: Destination) -> bool:
        """Makes a folder in a new one; returns False if it has to be made separately."""
        above = to.folder(visit.place[:-1])
        undeleted = Undeleted()
        made = make_folder(visit.folder, visit.name, visit.entry, above, undeleted, privileged=visit.privileged)
        self._note_undeleted(visit.place[:-1], undeleted)
        if made is None:
            return False
        to.enter_new(visit.place, made)
        return True

    def _make(self, visit: Visit, entry: Entry | None, links: LinkPlacer, writer: Writer) -> None:
        if first := links.first(visit.entry):
            writer.link(first[0], first[1], visit.place, entry)
            links.placed(visit.entry, visit.place, first[1])
            self._moved(visit.entry.size)
            return
        made = writer.make(visit, entry)
        links.placed(visit.entry, visit.place, made)
        self._lost(writer)

    def _leave(self, visit: Visit, comparer: PlaceComparer, writer: Writer, workers: GroupWorkers) -> None:
        """Sets a folder's time when everything in it is written. An existing folder keeps its other attributes, unless everything
        is overwritten.
        """
        folder = self._folders.pop()
        step = folder.step
        if step in (REFUSED, KEPT):
            return
        if not self._gives(visit):
            self._left_alone.add(hash(visit.place))
            return
        if step == NEW:  # it has everything but its time
            fd = comparer.to.folder(visit.place)
            if not folder.waiting:
                self._give_time(visit, fd, writer)
                return
            self._late.append((visit, os.dup(fd), folder))
            if len(self._late) >= _LATE:
                self._finish_late(writer, workers)
            return
        workers.finish()
        if self._staging and not visit.place:
            self._staging.close()  # closing it changes the time of the destination
        self.progress.names = visit.place
        entry = comparer.to.read_entry(visit.place)
        differs = comparer.differs(visit, entry) if entry else ()
        rest = [name for name in differs if name != "time"]
        if rest and self.request.overwrite != ALL and not (comparer.to.made and not visit.place):
            self._left_alone.add(hash(visit.place))
            return
        if entry and not differs:
            return
        writer.finish(visit, all_of_it=bool(rest))
        self._lost(writer)

    def _finish_late(self, writer: Writer, workers: GroupWorkers) -> None:
        """Sets the times of folders that were left while files were still being copied into them.

        While the results of a batch are processed, other files of it may still have to be restored one by one: their folders
        continue to wait.
        """
        workers.finish()
        for late in [late for late in self._late if not late[2].waiting]:
            self._late.remove(late)
            visit, fd, _ = late
            with ClosingFd(fd):
                self._give_late_time(visit, fd, writer)

    def _give_late_time(self, visit: Visit, fd: int | None, writer: Writer) -> None:
        self.progress.names = visit.place
        try:
            self._give_time(visit, writer.to.folder(visit.place) if fd is None else fd, writer)
        except OSError as error:
            self._problem(visit, why_unmade(error))

    def _give_time(self, visit: Visit, fd: int, writer: Writer) -> None:
        """Gives an open new folder its time, and the mode that would have kept files out of it. Raises OSError."""
        has_other_mode = mode_to_fill(visit.entry) != visit.entry.mode
        try:
            if has_other_mode:
                os.fchmod(fd, visit.entry.mode)
            os.utime(fd, ns=(visit.entry.mtime, visit.entry.mtime))
        except OSError:
            writer.finish(visit, all_of_it=has_other_mode)
            self._lost(writer)

    def _gives(self, visit: Visit) -> bool:
        """Returns True if a folder gets the attributes that it has in the backup. By default the destination itself does not get
        them: it was made only for root, or its owner has set its mode, and the host's / would open it to all users.
        """
        return bool(visit.place) or self.request.privileged

    def _has_untidy_top(self, to: Destination) -> bool:
        """Returns True if paths are restored below the destination, so that it is not visited itself."""
        return all(root.names for root in self.roots) and not to.outside(())

    def _tidy_top(self, to: Destination) -> None:
        """Removes temporary files of a killed restore from the destination, if it is not visited."""
        if self._has_untidy_top(to):
            with suppress(OSError):
                self._remove_leftovers(to.folder(()), (), {STAGING, *(root.names[0] for root in self.roots)})

    def _tidy(self, visit: Visit, to: Destination) -> None:
        """Removes temporary files of a killed restore, except a file of the backup that has such a name."""
        folder = to.folder(visit.place)
        if names := leftovers(folder):
            # leftovers of a killed restore in the staging folder were deleted
            ours = {name for name in names if self._is_in_backup(visit.entry.path.rstrip(b"/") + b"/" + name)}
            self._remove_leftovers(folder, visit.place, {STAGING} | ours)

    def _is_in_backup(self, path: bytes) -> bool:
        try:
            with at_source():
                self.tree.stat(path)
        except SourceUnreadable as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def _remove_leftovers(self, folder: int, place: Names, kept: Container[bytes]) -> None:
        undeleted = Undeleted()
        remove_leftovers(folder, kept, undeleted)
        self._note_undeleted(place, undeleted)

    def _note_undeleted(self, place: Names, undeleted: Undeleted) -> None:
        self.result.add_undeleted(self.to, place, undeleted.items())
        undeleted.clear()

    def _lost(self, writer: Writer) -> None:
        if writer.lost:
            words = ", ".join(printable(name) for name in writer.lost)
            self.result.problems.add(self.progress.place, f"cannot be stored here: {words}")

    def _problem(self, visit: Visit, why: str) -> None:
        self._left_alone.add(hash(visit.place))
        self.result.problems.add(self.progress.place, why)

    def _unreadable(self, path: bytes, error: OSError) -> None:
        """Records a folder of the backup, or a name in one, that cannot be read; the rest is restored."""
        place, why = self._unread_place(path, error)
        self._unread.add(place)
        self.result.problems.add(place, why)

    def _unread_since(self, path: bytes, error: OSError) -> None:
        """Records a folder or name that could be read when it was restored, but not when it was compared."""
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
        with suppress(OperatorError):  # a killed process
            workers.finish()
        done = self.result.counts[NEW].number + self.result.counts[OVERWRITTEN].number
        hint = "make the folder writable" if error.errno == errno.EROFS else "free some space"
        return OperatorError(
            f"{printable(place)}: {error.strerror}; {counted(done, 'name')} had been restored",
            f"{hint} and run the same command again: it skips the files that are already there",
        )

    def _compare(self, to: Destination, preview: RestorePreview, workers: GroupWorkers, synced: int) -> None:
        content = self.request.content
        self.progress.turn_to("comparing", preview.names, preview.size if content else 0)
        contents = FileComparer(to, self._reflinks, self._moved, self._damaged)
        exempt = Exempt(self._left_alone, self._proven, self._damaged)
        each = partial(self._each, withheld=Withheld(), unreadable=self._unread_since)
        comparer = ResultComparer(
            contents, exempt, each, self._unread_since, self.progress, self.result.differences, self._bare, content=content
        )
        workers.turn_to(1, synced)
        for visit in self._visits(Withheld(), self._unread_since):
            if isinstance(visit, PlainVisits):
                comparer.compare_group(visit, workers)
            elif isinstance(visit, FolderVisits):
                comparer.compare_folders(visit, workers)
            else:
                comparer.compare(visit)
        workers.finish()
        self.result.compared += contents.read
