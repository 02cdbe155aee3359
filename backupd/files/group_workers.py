"""Has groups of plain files done: small ones at once, the others by worker processes, which begin with the first of these."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from backupd.files.destination import Destination
from backupd.files.placing import Names, PlainFolderVisit, PlainVisits
from backupd.files.plain_files import Handled
from backupd.files.plain_folders import FolderFields
from backupd.files.walking import PlainFile
from btrkeep.process.batch_workers import BatchWorkers

_FEW, _LITTLE = 8, 64 << 10  # files and bytes at the most that are done here: to hand them over takes longer

Work = Callable[[int, int, Sequence[PlainFile]], Handled]
"""Gets the open folder of the backup, that of the destination, and files of it."""
FolderWork = Callable[[int, int, FolderFields, Sequence[PlainFile]], Handled]
"""Gets the same of the folder that a folder is in, the folder, and its files."""
Then = Callable[[PlainVisits, Sequence[PlainFile], Handled], None]
"""Gets the group, the files that were given, and what became of them. The folder of the group is open then."""
FolderThen = Callable[[PlainFolderVisit, Handled], None]
"""The same for a folder with its files."""


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._workers:
            self._workers.__exit__(kind, error, trace)
        while self._sources:
            os.close(self._sources.pop())

    def do(self, plain: PlainVisits, files: Sequence[PlainFile], then: Then) -> bool:
        """Has files of a group done; `then` is called at once, or while others are waited for.

        Returns False if their place cannot be opened. Raises OperatorError, and what `then` raises.
        """

        def handled(source: int, result: Handled) -> None:
            then(plain._replace(group=plain.group._replace(folder=source)), files, result)

        return self._do(plain.group.folder, plain.place, None, files, handled)

    def do_folder(self, visit: PlainFolderVisit, then: FolderThen) -> bool:
        """Has a folder with its files done, as `do`."""
        entry, folder, name, files = visit.plain

        def handled(source: int, result: Handled) -> None:
            then(visit._replace(plain=visit.plain._replace(folder=source)), result)

        fields = FolderFields(name, entry.mode, entry.uid, entry.gid, entry.mtime)
        return self._do(folder, visit.place[:-1], fields, files, handled)

    def _do(
        self,
        source: int,
        place: Names,
        fields: FolderFields | None,
        files: Sequence[PlainFile],
        then: Callable[[int, Handled], None],
    ) -> bool:
        is_small = self._at_once and len(files) <= _FEW and sum(file.size for file in files) <= _LITTLE
        if not is_small:
            self._workers = self._workers or BatchWorkers(self._answer, kept=self._kept)
            self._workers.wait_until_free()  # what is called meanwhile opens other folders
        try:
            folder = self._to.folder(place)
        except OSError:
            return False
        if is_small or not self._workers:
            then(source, self._handled(source, folder, fields, files))
            return True
        opened = os.dup(source)
        self._sources.add(opened)

        def handled(answer: tuple[Sequence[int], int, Sequence[int], bool]) -> None:
            then(opened, Handled(*answer))
            self._sources.discard(opened)
            os.close(opened)

        self._workers.give(opened, folder, (fields and tuple(fields), list(map(tuple, files))), handled)
        return True

    def _handled(self, source: int, to: int, fields: FolderFields | None, files: Sequence[PlainFile]) -> Handled:
        return self._folder_work(source, to, fields, files) if fields else self._work(source, to, files)

    def _answer(self, source: int, to: int, batch: tuple[tuple[bytes, int, int, int, int] | None, list[Any]]) -> Any:
        """Does a batch in a process of its own."""
        fields, files = batch
        return tuple(self._handled(source, to, fields and FolderFields(*fields), list(map(PlainFile._make, files))))

    def finish(self) -> None:
        """Waits for all groups. Raises as `do`."""
        if self._workers:
            self._workers.finish()
