"""Compares restored names with the backup: those of groups many at a time, and one by one those that differ or are unusual."""

import os
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple, Protocol

from backupd.files.batched_walk import NumberSet, PlainFolder
from backupd.files.group_workers import GroupWorkers
from backupd.files.new_folders import same_folder
from backupd.files.place_comparer import DestinationError, FileComparer, PlaceComparer, at_destination
from backupd.files.placing import AnyVisit, FolderVisits, Names, PlainVisits, Visit, place_path
from backupd.files.plain_files import BatchResult
from backupd.files.restore_types import RestoreCount, RestoreProgress
from backupd.files.tree import identity
from backupd.files.walking import PlainFile, Unreadable


class Exempt(NamedTuple):
    """Names that are compared differently. `left_alone`, not at all, and `proven`, without content: hashes of places.

    `damaged`: paths of the backup, which are read although the copy shares their data.
    """

    left_alone: AbstractSet[int]
    proven: AbstractSet[int]
    damaged: AbstractSet[bytes]


class Each(Protocol):
    """Yields the names of a group or folder, or of a group only `files`, one by one."""

    def __call__(self, visit: AnyVisit, *, files: Sequence[PlainFile] | None = None) -> Iterator[Visit]: ...


class ResultComparer:
    """Compares what was restored; adds to `differences`. With `content` also compares contents, by `contents`.

    `bare`: numbers of groups and folders in which nothing has an attribute in the backup.
    """

    def __init__(
        self,
        contents: FileComparer,
        exempt: Exempt,
        each: Each,
        unreadable: Unreadable,
        progress: RestoreProgress,
        differences: RestoreCount,
        bare: NumberSet,
        *,
        content: bool,
    ) -> None:
        self._to = contents.to
        self._places = PlaceComparer(contents.to, None)
        self._links = self._places.links
        self._contents = contents
        self._exempt = exempt
        self._has_exempt = bool(exempt.left_alone - {hash(())} or exempt.proven or exempt.damaged)
        self._each = each
        self._unreadable = unreadable
        self._progress = progress
        self._differences = differences
        self._bare = bare
        self._content = content
        self._waiting: dict[int, list[Names]] = {}  # by inode: further names of files that are being compared

    def compare_group(self, plain: PlainVisits, workers: GroupWorkers) -> None:
        """Compares a group, which may take until `workers.finish()`."""
        if not self._is_any_exempt(plain):
            files, others = self._without_further(plain)
            if workers.do(plain, files, self._take, is_bare=plain.group.number in self._bare):
                self._compare_each(plain, others)
                return
            self._forget_waiting(files)
        for visit in self._each(plain):
            self.compare(visit)

    def compare_folders(self, visits: FolderVisits, workers: GroupWorkers) -> None:
        """Compares folders with their files, like `compare_group`."""
        is_exempt = self._has_exempt and any(self._is_exempt(visits, folder) for folder in visits.group.folders)
        if is_exempt or not workers.do_folders(visits, self._take_folders, is_bare=visits.group.number in self._bare):
            for single in self._each(visits):
                self.compare(single)

    def _is_exempt(self, visits: FolderVisits, folder: PlainFolder) -> bool:
        is_left = hash((*visits.place, folder.name)) in self._exempt.left_alone
        return is_left or self._is_any_exempt(visits.files_of(folder))

    def _take_folders(self, visits: FolderVisits, together: BatchResult, each: Sequence[BatchResult]) -> None:
        if not each:
            self._progress.files += visits.group.totals.names
            self._contents.read += together.size
            self._contents.moved(visits.group.totals.size if self._content else 0)
        for folder, handled in zip(visits.group.folders if each else (), each, strict=True):
            left_over = self._count(visits.place, folder.files, handled) if folder.files else ()
            if handled.is_folder_done:
                self._progress.files += 1
            else:
                self.compare(visits.of_folder(folder, left=False))
            if left_over:
                for part in visits.parts([folder], self._unreadable):
                    if isinstance(part, PlainVisits):
                        self._compare_each(part, left_over)
        self._progress.names = visits.place
        self._contents.moved(0)

    def compare(self, visit: Visit) -> None:
        """Compares one name."""
        if visit.left or hash(visit.place) in self._exempt.left_alone:
            return
        self._progress.files, self._progress.names = self._progress.files + 1, visit.place
        self._contents.moved(0)
        if visit.entry.kind == "folder" and self._is_same_folder(visit):
            return
        is_first = self._links.first(visit.entry) is None
        try:
            differs = self._differs(visit)
            add = partial(self._differences.add_difference, fields=differs) if differs else None
        except OSError as error:
            side = "at the destination" if isinstance(error, DestinationError) else "in the backup"
            add = partial(self._differences.add, why=f"it cannot be read {side}: {error.strerror or error}")
        if add:
            add(self._progress.place)
            if is_first and visit.entry.links > 1:
                self._links.forget(visit.entry.inode)  # so each further name is compared and reported by itself
                for place in self._waiting.pop(visit.entry.inode, ()):
                    add(place_path(self._progress.to, place))

    def _take(self, plain: PlainVisits, files: Sequence[PlainFile], handled: BatchResult) -> None:
        self._compare_each(plain, self._count(plain.place, files, handled))
        self._forget_waiting(files)

    def _count(self, place: Names, files: Sequence[PlainFile], handled: BatchResult) -> list[PlainFile]:
        """Counts the files that are the same; returns the others."""
        left_over = [files[number] for number in handled.left_over]
        self._progress.files, self._progress.names = self._progress.files + len(files) - len(left_over), place
        self._contents.read += handled.size
        same = sum(file.size for file in files) - sum(file.size for file in left_over)
        self._contents.moved(same if self._content else 0)
        return left_over

    def _forget_waiting(self, files: Sequence[PlainFile]) -> None:
        for file in files:
            if file.links > 1:
                self._waiting.pop(file.inode, None)

    def _compare_each(self, plain: PlainVisits, files: Sequence[PlainFile]) -> None:
        for file in files:
            first = self._links.first_of(file.inode) if file.links > 1 else None
            if first and first[0] == (*plain.place, file.name):
                self._links.forget(file.inode)  # it is not a copy of that file
        for visit in self._each(plain, files=files):
            self.compare(visit)

    def _without_further(self, plain: PlainVisits) -> tuple[list[PlainFile], list[PlainFile]]:
        """Returns the files of a group that are not further names of an earlier file; and further names that are another file at
        the destination.
        """
        files, others = list[PlainFile](), list[PlainFile]()
        for file in plain.group.files:
            if file.links < 2:
                files.append(file)
                continue
            place, first = (*plain.place, file.name), self._links.first_of(file.inode)
            try:
                copied = identity(os.stat(file.name, dir_fd=self._to.folder(plain.place), follow_symlinks=False))
            except OSError:
                copied = 0
            if first and copied != first[1]:
                others.append(file)
                continue
            if copied:
                self._links.place(file.inode, file.links, place, copied)
            if first:
                self._progress.files += 1
                if file.inode in self._waiting:
                    self._waiting[file.inode].append(place)
            else:
                files.append(file)
                self._waiting[file.inode] = []
        return files, others

    def _is_any_exempt(self, plain: PlainVisits) -> bool:
        left_alone, proven, damaged = self._exempt
        if left_alone or proven:
            places = {hash((*plain.place, file.name)) for file in plain.group.files}
            if not places.isdisjoint(left_alone) or not places.isdisjoint(proven):
                return True
        return bool(damaged) and any(plain.group.above + b"/" + file.name in damaged for file in plain.group.files)

    def _is_same_folder(self, visit: Visit) -> bool:
        """Returns False for a folder that must also be compared in detail."""
        try:
            return same_folder(visit.folder, visit.name, visit.entry, *self._to.parent(visit.place))
        except OSError:
            return False

    def _differs(self, visit: Visit) -> Sequence[str]:
        """Returns the fields in which the restored name differs. Raises OSError, DestinationError."""
        with at_destination():
            restored = self._to.read_entry(visit.place)
        if restored is None:
            return ["it is missing"]
        differs = self._places.differs(visit, restored)
        first = self._links.first(visit.entry)
        self._links.placed(visit.entry, visit.place, restored.identity)
        plain = visit.entry.kind == restored.kind == "file" and visit.entry.size == restored.size
        content = self._content and plain and (not first or "hard link" in differs)
        if not content or hash(visit.place) in self._exempt.proven or self._contents.same(visit):
            return differs
        return [*differs, "content"]
