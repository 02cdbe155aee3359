"""Copies the groups and plain folders of a restore into empty folders, makes further names of their files (hard links), and counts
the results.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from backupd.files.batched_walk import NumberSet, PlainFolder
from backupd.files.conflict_policy import NEW, LinkPlacer
from backupd.files.destination import Destination
from backupd.files.group_workers import GroupWorkers
from backupd.files.place_comparer import PlacedFolder
from backupd.files.placing import AnyVisit, FolderVisits, Names, PlainVisits, Visit
from backupd.files.plain_files import BatchResult
from backupd.files.restore_types import RestoreProgress, RestoreResult
from backupd.files.tree import identity
from backupd.files.walking import PlainFile, Unreadable
from backupd.files.writing import Writer
from btrkeep.descriptors import ClosingFd


@dataclass(slots=True)
class GroupWriter:
    """Restores groups of files to a folder. Files that cannot be copied in a group are restored name by name."""

    to: Destination
    """The folder."""
    name: str
    """Its name."""
    links: LinkPlacer
    """Places hard links."""
    writer: Writer
    """Writes single files."""
    workers: GroupWorkers
    """Copy groups."""
    result: RestoreResult
    """The result so far."""
    progress: RestoreProgress
    """The progress."""
    each: Callable[[AnyVisit, Sequence[PlainFile]], Iterable[Visit]]
    """Yields the names of a visit, or of the given files of it."""
    restore: Callable[[Visit], None]
    """Restores one name."""
    restore_part: Callable[[Visit | PlainVisits], None]
    """Restores a group or a name."""
    give_time: Callable[[Visit], None]
    """Sets the time of a folder."""
    is_ended: Callable[[], bool]
    """Returns True if the destination is full, so that the rest is only counted."""
    unreadable: Unreadable
    """Collects files that the disk cannot read."""
    reflinks: bool
    """True if files share the backup's data."""
    bare: NumberSet
    """The numbers of groups and folders in which no name has an attribute in the backup."""
    by_itself: set[int] = field(default_factory=set)
    """Inodes with several names that were not copied in a group."""

    def copy_group(self, plain: PlainVisits, folder: PlacedFolder) -> bool:
        """Copies a group; returns False if its place, which is that folder, cannot be opened."""
        files, further = self._without_further(plain)
        is_complete = {file.inode for file in files}.issuperset(file.inode for file in further)

        def copied(plain: PlainVisits, files: Sequence[PlainFile], handled: BatchResult) -> None:
            left_over = self._count(plain, files, handled)
            if handled.is_bare and is_complete and plain.group.number >= 0:
                self.bare.add(plain.group.number)
            if not self.is_ended():
                for visit in self.each(plain, left_over):
                    self.restore(visit)
                for visit in self._linked(plain, further):
                    self.restore(visit)
            folder.waiting -= 1

        folder.waiting += 1
        if self.workers.do(plain, files, copied):
            return True
        folder.waiting -= 1
        for file in files:
            if file.links > 1:
                self.links.forget(file.inode)
        return False

    def copy_folders(self, visits: FolderVisits, above: PlacedFolder) -> bool:
        """Copies folders into the new folder `above`; returns False if that cannot be opened."""

        def copied(visits: FolderVisits, together: BatchResult, each: Sequence[BatchResult]) -> None:
            rest = list[tuple[PlainFolder, Sequence[PlainFile] | None]]()  # None: the folder itself too
            if not each:
                self.result.counts[NEW].add_folders(self.name, visits)
                self.progress.files += visits.group.totals.names
                self._add_size(together.size)
            for folder, handled in zip(visits.group.folders if each else (), each, strict=True):
                left_over: Sequence[PlainFile] | None = None
                if handled.is_folder_done:
                    self.result.counts[NEW].add_at(self.name, (*visits.place, folder.name))
                    self.progress.files += 1
                    left_over = self._count(visits.files_of(folder), folder.files, handled) if folder.files else ()
                if left_over is None or left_over:
                    rest.append((folder, left_over))
            if visits.group.number >= 0 and together.is_bare:
                self.bare.add(visits.group.number)
            self.progress.names = visits.place
            self.writer.moved(0)
            for folder, left_over in rest:
                if not self.is_ended():
                    self._restore_rest(visits, folder, left_over)
            above.waiting -= 1

        above.waiting += 1
        if self.workers.do_folders(visits, copied):
            return True
        above.waiting -= 1
        return False

    def _restore_rest(self, visits: FolderVisits, folder: PlainFolder, left_over: Sequence[PlainFile] | None) -> None:
        """Restores the left-over files of a folder one by one; for None, the folder with all its files."""
        for part in visits.parts([folder], self.unreadable):
            if left_over is None:
                self.restore_part(part)
            elif isinstance(part, PlainVisits):
                for single in self.each(part, left_over):
                    self.restore(single)
        if left_over is not None:
            self.give_time(visits.of_folder(folder, left=True))

    def _without_further(self, plain: PlainVisits) -> tuple[list[PlainFile], list[PlainFile]]:
        """Returns the files of a group to copy; and further names of these, or of earlier ones, which are all written by then."""
        files, further, waiting, ours = list[PlainFile](), list[PlainFile](), False, set[int]()
        for file in plain.group.files:
            first = self.links.first_of(file.inode) if file.links > 1 else None
            if first:
                further.append(file)
                waiting = waiting or (not first[1] and file.inode not in ours)
                continue
            files.append(file)
            if file.links > 1:
                self.links.place(file.inode, file.links, (*plain.place, file.name), 0)
                ours.add(file.inode)
        if waiting:
            self.workers.finish()
        return files, further

    def _count(self, plain: PlainVisits, files: Sequence[PlainFile], handled: BatchResult) -> Sequence[PlainFile]:
        """Counts the files of a group that were copied; returns the others."""
        self.result.add_undeleted(self.name, plain.place, handled.undeleted)
        left_over = [files[number] for number in handled.left_over]
        if left_over:
            numbers = set(handled.left_over)
            done = [file for number, file in enumerate(files) if number not in numbers]
        else:
            done = list(files)
        for file, copied in zip((file for file in files if file.links > 1), handled.identities, strict=True):
            if copied:
                self.links.set_copy(file.inode, copied)
            else:
                self.links.forget(file.inode)
                self.by_itself.add(file.inode)
        self.progress.files += len(done)
        self.progress.names = plain.place
        self.result.counts[NEW].add_plain(self.name, plain, done)
        self._add_size(handled.size)
        return left_over

    def _add_size(self, size: int) -> None:
        if self.reflinks:
            self.writer.reflinked += size
        else:
            self.writer.copied += size
        self.writer.moved(size)

    def _linked(self, plain: PlainVisits, further: Sequence[PlainFile]) -> Iterator[Visit]:
        """Makes further names of files that were copied; yields those that have to be made one by one."""
        if not further:
            return
        done, left_over = list(further), list[PlainFile]()
        if self.by_itself:
            done = [file for file in further if file.inode not in self.by_itself]
            left_over = [file for file in further if file.inode in self.by_itself]
        if not_linked := link_names(self.to, plain.place, done, self.links):
            names = {file.name for file in not_linked}
            done, left_over = [file for file in done if file.name not in names], not_linked + left_over
        self.progress.files += len(done)
        self.result.counts[NEW].add_plain(self.name, plain, done)
        self.writer.moved(sum(file.size for file in done))
        yield from self.each(plain, left_over)


_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_inode = attrgetter("inode")


def link_names(to: Destination, place: Names, files: Sequence[PlainFile], links: LinkPlacer) -> list[PlainFile]:
    """Makes further names in the folder at `place`, where these names are unused. Returns those that were not made.

    The first name is opened and examined, and that file is linked: another file may have its name by then.
    """
    left_over = list[PlainFile]()
    try:
        opened = os.dup(to.folder(place))
    except OSError:  # another user may have moved it
        return list(files)
    with ClosingFd(opened) as folder:
        for inode, group in groupby(files, key=_inode):
            names = list(group)
            first = links.first_of(inode)
            made = _linked_to(to, folder, place, first, names, left_over) if first and first[1] else None
            if made is None:
                left_over += names
            elif first and made:
                links.place(inode, names[0].links, first[0], first[1], made)
    return left_over


def _linked_to(
    to: Destination, folder: int, place: Names, first: tuple[Names, int], files: Sequence[PlainFile], left_over: list[PlainFile]
) -> int | None:
    """Makes names of the file `first` in an open folder. Returns their number, and adds the others to `left_over`; None if there is
    no such file.
    """
    made = 0
    try:
        above = folder if first[0][:-1] == place else to.folder(first[0][:-1])
        held = os.open(first[0][-1], _HELD, dir_fd=above)
    except OSError:  # the caller handles each by itself, gets the same error and reports it
        return None
    with ClosingFd(held):
        if not _is_copy(os.fstat(held), files[0], first[1]):
            return None
        path = b"/proc/self/fd/%d" % held
        for file in files:
            try:
                os.link(path, file.name, dst_dir_fd=folder, follow_symlinks=True)
                made += 1
            except OSError:  # as above
                left_over.append(file)
    return made


def _is_copy(status: os.stat_result, file: PlainFile, copied: int) -> bool:
    """Returns True if an open inode is the copy of a file with this identity. Inode numbers are used again, so owner and type
    count.
    """
    kind = stat.S_ISLNK if file.is_symlink else stat.S_ISREG
    is_alike = (identity(status), status.st_uid, status.st_gid) == (copied, file.uid, file.gid) and kind(status.st_mode)
    return is_alike and (file.is_symlink or (stat.S_IMODE(status.st_mode), status.st_size) == (file.mode, file.size))
