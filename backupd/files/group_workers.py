"""Has groups of plain files done: small ones at once, the others by worker processes, which begin with the first of these."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from backupd.files.destination import Destination
from backupd.files.new_folders import FolderFields
from backupd.files.placing import Names, PlainFolderVisit, PlainVisits
from backupd.files.plain_files import Handled
from backupd.files.walking import MUCH, WHOLE, PlainFile
from btrkeep.process.batch_workers import BatchWorkers

_FEW, _LITTLE = 8, 64 << 10  # files and bytes at the most that are done here: to hand them over takes longer

_FOLDERS = 64  # in one batch, with WHOLE names and MUCH bytes at the most

Work = Callable[..., Handled]
"""Gets the open folder of the backup, that of the destination, and files of it; with `is_bare`, what `do` got."""
FolderWork = Callable[..., Handled]
"""Gets the same of the folder that a folder is in, the folder (FolderFields), and its files."""
Then = Callable[[PlainVisits, Sequence[PlainFile], Handled], None]
"""Gets the group, the files that were given, and what became of them. The folder of the group is open then."""
FolderThen = Callable[[PlainFolderVisit, Handled], Callable[[], None] | None]
"""The same for a folder with its files. What it returns is called after it was called for all folders that were done together."""


class _Given(NamedTuple):
    """A folder with its files, and what is called with the result."""

    visit: PlainFolderVisit
    is_bare: bool
    then: FolderThen


@dataclass(slots=True)
class _Folders:
    """Folders in one folder, which is at `place`, that are to be done together. `source`: that folder of the backup, open."""

    source: int
    place: Names
    given: list[_Given] = field(default_factory=list)
    names: int = 0
    size: int = 0


class GroupWorkers:
    """Groups of plain files, and folders with few of them, for one kind of work, which must not raise.

    `at_once` permits to do small ones in this process. `kept`: open files that the work uses.
    """

    def __init__(self, work: Work, folder_work: FolderWork, to: Destination, *, at_once: bool, kept: Sequence[int] = ()) -> None:
        self._work = work
        self._folder_work = folder_work
        self._to = to
        self._at_once = at_once
        self._kept = kept
        self._sources: set[int] = set()
        self._workers: BatchWorkers | None = None
        self._folders: _Folders | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._workers:
            self._workers.__exit__(kind, error, trace)
        while self._sources:
            os.close(self._sources.pop())

    def do(self, plain: PlainVisits, files: Sequence[PlainFile], then: Then, *, is_bare: bool = False) -> bool:
        """Has files of a group done; `then` is called at once, or while others are waited for. `is_bare` is given to the work.

        Returns False if their place cannot be opened. Raises OperatorError, and what `then` raises.
        """
        source = plain.group.folder
        if self._is_small(len(files), sum(file.size for file in files)):
            try:
                folder = self._to.folder(plain.place)
            except OSError:
                return False
            then(plain, files, self._work(source, folder, files, **_bare(is_bare)))
            return True
        workers = self._free_workers()
        try:
            folder = self._to.folder(plain.place)
        except OSError:
            return False
        opened = os.dup(source)
        self._sources.add(opened)

        def handled(answer: Sequence[Any]) -> None:
            then(plain._replace(group=plain.group._replace(folder=opened)), files, Handled(*answer))
            self._close(opened)

        workers.give(opened, folder, (False, [list(map(tuple, files)), is_bare]), handled)
        return True

    def do_folder(self, visit: PlainFolderVisit, then: FolderThen, *, is_bare: bool = False) -> None:
        """Has a folder with its files done, together with others that are in the same one; as `do`.

        What cannot be done, also because the place cannot be opened, is given back.
        """
        place, files = visit.place[:-1], visit.plain.files
        names, size = 1 + len(files), sum(file.size for file in files)
        ahead = self._folders
        if ahead and (
            ahead.place != place
            or len(ahead.given) == _FOLDERS
            or ahead.names + names > WHOLE + _FOLDERS
            or ahead.size + size > MUCH
        ):
            self._do_folders()
            ahead = None
        if ahead is None:
            opened = os.dup(visit.plain.folder)
            self._sources.add(opened)
            ahead = self._folders = _Folders(opened, place)
        ahead.given.append(_Given(visit, is_bare, then))
        ahead.names += names
        ahead.size += size

    def _do_folders(self) -> None:
        """Has those done that wait for others."""
        folders, self._folders = self._folders, None
        if folders is None:
            return
        source, given = folders.source, folders.given

        def handled(answers: Sequence[Sequence[Any]]) -> None:
            rest = []
            for (visit, _, then), answer in zip(given, answers, strict=True):
                result = Handled(*answer)
                if result.left_over or not result.is_folder_done:
                    visit = visit._replace(plain=visit.plain._replace(folder=source))
                rest.append(then(visit, result))
            for act in rest:
                if act:
                    act()
            self._close(source)

        workers = None if self._is_small(folders.names, folders.size) else self._free_workers()
        try:
            folder = self._to.folder(folders.place)
        except OSError:
            handled([Handled(list(range(len(visit.plain.files))), 0, is_folder_done=False) for visit, _, _ in given])
            return
        batch = [(_fields(visit), visit.plain.files, is_bare) for visit, is_bare, _ in given]
        if workers is None:
            handled([self._folder_work(source, folder, fields, files, **_bare(bare)) for fields, files, bare in batch])
        else:
            packed = [(tuple(fields), list(map(tuple, files)), bare) for fields, files, bare in batch]
            workers.give(source, folder, (True, packed), handled)

    def _is_small(self, names: int, size: int) -> bool:
        return self._at_once and names <= _FEW and size <= _LITTLE

    def _free_workers(self) -> BatchWorkers:
        """Returns the processes when one of them can take a batch. What is called meanwhile opens other folders."""
        self._workers = self._workers or BatchWorkers(self._answer, kept=self._kept)
        self._workers.wait_until_free()
        return self._workers

    def _close(self, source: int) -> None:
        self._sources.discard(source)
        os.close(source)

    def _answer(self, source: int, to: int, batch: tuple[bool, list[Any]]) -> Any:
        """Does a batch in a process of its own."""
        is_of_folders, given = batch
        if not is_of_folders:
            files, is_bare = given
            return tuple(self._work(source, to, list(map(PlainFile._make, files)), **_bare(is_bare)))
        return [
            tuple(self._folder_work(source, to, FolderFields(*fields), list(map(PlainFile._make, files)), **_bare(is_bare)))
            for fields, files, is_bare in given
        ]

    def finish(self) -> None:
        """Waits for all groups and folders. Raises as `do`."""
        self._do_folders()
        if self._workers:
            self._workers.finish()


def _bare(is_bare: bool) -> dict[str, bool]:
    return {"is_bare": True} if is_bare else {}


def _fields(visit: PlainFolderVisit) -> FolderFields:
    entry = visit.plain.entry
    return FolderFields(visit.plain.name, entry.mode, entry.uid, entry.gid, entry.mtime)
