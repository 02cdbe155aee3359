"""Gives groups of plain files to workers: small ones are done at once, the others by worker processes, in order."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from backupd.files.batched_walk import packed, unpacked
from backupd.files.destination import Destination
from backupd.files.placing import FolderVisits, Names, PlainVisits
from backupd.files.plain_files import BatchResult
from backupd.files.walking import PlainFile
from btrkeep.process.batch_workers import BatchWorkers

_FEW, _LITTLE = 8, 64 << 10  # files and bytes at the most that are done here: to hand them over takes longer

Work = Callable[..., BatchResult]
"""Takes the open folder of the backup, that of the destination, and files of it; with `is_bare`, the value that `do` got."""
FolderWork = Callable[..., list[BatchResult]]
"""Takes the same for the folder that contains plain folders, and these."""
Then = Callable[[PlainVisits, Sequence[PlainFile], BatchResult], None]
"""Takes the group, the files that were given, and their result. The folder of the group is open then."""
FoldersThen = Callable[[FolderVisits, Sequence[BatchResult]], None]
"""The same for folders with their files: the result of each."""


class GroupWorkers:
    """Groups of plain files, and folders with few of them, for one kind of work, which must not raise.

    `at_once`: small ones may be done in this process. `kept`: open files that the work uses.
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

    def do(self, plain: PlainVisits, files: Sequence[PlainFile], then: Then, *, is_bare: bool = False) -> bool:
        """Gives files of a group to a worker; `then` is called at once, or during a later wait. `is_bare` is passed to the work.

        Returns False if their place cannot be opened. Raises OperatorError, and the errors of `then`.
        """

        def at_once(to: int) -> None:
            then(plain, files, self._work(plain.group.folder, to, files, **_bare(is_bare)))

        def handled(source: int, answer: Sequence[Any]) -> None:
            then(plain._replace(group=plain.group._replace(folder=source)), files, BatchResult(*answer))

        if self._is_small(len(files), sum(file.size for file in files)):
            return self._do_at_once(plain.place, at_once)
        return self._give(plain.group.folder, plain.place, lambda: (list(map(tuple, files)), is_bare, False), handled)

    def do_folders(self, visits: FolderVisits, then: FoldersThen, *, is_bare: bool = False) -> bool:
        """Does the same for folders with their files."""
        group = visits.group

        def at_once(to: int) -> None:
            then(visits, self._folder_work(group.folder, to, group.folders, **_bare(is_bare)))

        def handled(source: int, answers: Sequence[Sequence[Any]]) -> None:
            then(visits._replace(group=group._replace(folder=source)), [BatchResult(*answer) for answer in answers])

        names = len(group.folders) + sum(len(folder.files) for folder in group.folders)
        if self._is_small(names, sum(file.size for folder in group.folders for file in folder.files)):
            return self._do_at_once(visits.place, at_once)
        return self._give(group.folder, visits.place, lambda: (list(map(packed, group.folders)), is_bare, True), handled)

    def _do_at_once(self, place: Names, work: Callable[[int], None]) -> bool:
        try:
            folder = self._to.folder(place)
        except OSError:
            return False
        work(folder)
        return True

    def _give(self, source: int, place: Names, batch: Callable[[], Any], handled: Callable[[int, Any], None]) -> bool:
        """Gives a batch to one of the processes when one is free. Functions called during the wait open other folders."""
        self._workers = self._workers or BatchWorkers(self._answer, kept=self._kept)
        self._workers.wait_until_free()
        try:
            folder = self._to.folder(place)
        except OSError:
            return False
        opened = os.dup(source)
        self._sources.add(opened)

        def take(answer: Any) -> None:
            handled(opened, answer)
            self._sources.discard(opened)
            os.close(opened)

        self._workers.give(opened, folder, batch(), take)
        return True

    def _answer(self, source: int, to: int, batch: tuple[list[Any], bool, bool]) -> Any:
        """Does a batch in a separate process."""
        given, is_bare, is_of_folders = batch
        if not is_of_folders:
            return tuple(self._work(source, to, list(map(PlainFile._make, given)), **_bare(is_bare)))
        return list(map(tuple, self._folder_work(source, to, list(map(unpacked, given)), **_bare(is_bare))))

    def _is_small(self, names: int, size: int) -> bool:
        return self._at_once and names <= _FEW and size <= _LITTLE

    def finish(self) -> None:
        """Waits for all groups and folders. Raises the same as `do`."""
        if self._workers:
            self._workers.finish()


def _bare(is_bare: bool) -> dict[str, bool]:
    return {"is_bare": True} if is_bare else {}
