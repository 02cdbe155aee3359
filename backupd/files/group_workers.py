"""Gives groups of plain files to workers: small ones are done at once, the others by worker processes, in order."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from backupd.files.batched_walk import unpack_folders
from backupd.files.destination import Destination
from backupd.files.placing import FolderVisits, Names, PlainVisits
from backupd.files.plain_files import BatchResult
from backupd.files.walking import PlainFile
from btrkeep.descriptors import Closing
from btrkeep.process.batch_workers import BatchWorkers

_FEW, _LITTLE = 8, 64 << 10  # files and bytes: fewer are written here, because handing them over takes longer

Work = Callable[..., BatchResult]
"""Takes the open folder of the backup, that of the destination, and files of it; with `is_bare`, the value that `do` got; and with
`synced`, that of `turn_to`.
"""
FolderWork = Callable[..., list[BatchResult]]
"""Takes the open folders that contain plain folders, and the plain folders; the rest as for Work."""
Then = Callable[[PlainVisits, Sequence[PlainFile], BatchResult], None]
"""Takes the group, the files that were given, and their result. The folder of the group is open then."""
FoldersThen = Callable[[FolderVisits, BatchResult, Sequence[BatchResult]], None]
"""Takes the folders, their result, and the results of each folder if something is left over."""


class WorkPhase(NamedTuple):
    """The work on groups and on folders, which must not raise. `at_once`: small ones may be done in this process."""

    work: Work
    folder_work: FolderWork
    at_once: bool


class GroupWorkers(Closing):
    """Groups of plain files, and folders with few of them, for one phase of work after another.

    The same processes do all phases, because each takes some milliseconds to start and end. `kept` returns the open files that the
    work uses.
    """

    def __init__(self, to: Destination, phases: Sequence[WorkPhase], *, kept: Callable[[], Sequence[int]]) -> None:
        self._to = to
        self._phases = phases
        self._number = self._synced = 0
        self._kept = kept
        self._sources: set[int] = set()
        self._workers: BatchWorkers | None = None

    def close(self) -> None:
        """Ends the processes, each after the batch that it does. May be repeated."""
        if self._workers:
            self._workers.close()
        while self._sources:
            os.close(self._sources.pop())

    def turn_to(self, number: int, synced: int) -> None:
        """Begins the phase of that number. All work of the previous one is finished. `synced` is passed to the work, if not 0."""
        self._number, self._synced = number, synced

    def do(self, plain: PlainVisits, files: Sequence[PlainFile], then: Then, *, is_bare: bool = False) -> bool:
        """Gives files of a group to a worker; `then` is called at once, or during a later wait. `is_bare` is passed to the work.

        Returns False if their place cannot be opened. Raises OperatorError, and the errors of `then`.
        """

        def at_once(to: int) -> None:
            then(plain, files, self._phase.work(plain.group.folder, to, files, **self._options(is_bare)))

        def handled(source: int, answer: Sequence[Any]) -> None:
            then(plain._replace(group=plain.group._replace(folder=source)), files, BatchResult(*answer))

        if self._is_small(len(files), sum(file.size for file in files)):
            return self._do_at_once(plain.place, at_once)
        return self._give(plain.group.folder, plain.place, lambda: list(map(tuple, files)), is_bare, handled)

    def do_folders(self, visits: FolderVisits, then: FoldersThen, *, is_bare: bool = False) -> bool:
        """Gives folders with their files to a worker, like `do`."""
        group = visits.group

        def at_once(to: int) -> None:
            then(visits, *_together(self._phase.folder_work(group.folder, to, group.folders, **self._options(is_bare))))

        def handled(source: int, answers: Sequence[Sequence[Any]]) -> None:
            together, *each = (BatchResult(*answer) for answer in answers)
            then(visits._replace(group=group._replace(folder=source)), together, each)

        if self._is_small(group.totals.names, group.totals.size):
            return self._do_at_once(visits.place, at_once)
        return self._give(group.folder, visits.place, lambda: group.packed, is_bare, handled)

    def _do_at_once(self, place: Names, work: Callable[[int], None]) -> bool:
        try:
            folder = self._to.folder(place)
        except OSError:
            return False
        work(folder)
        return True

    def _give(
        self, source: int, place: Names, batch: Callable[[], Any], is_bare: bool, handled: Callable[[int, Any], None]
    ) -> bool:
        """Gives a batch to one of the processes when one is free. Functions called during the wait open other folders."""
        self._workers = self._workers or BatchWorkers(self._answer, kept=self._kept())
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

        self._workers.give(opened, folder, (self._number, self._synced, batch(), is_bare), take)
        return True

    def _answer(self, source: int, to: int, batch: tuple[int, int, list[Any] | bytes, bool]) -> Any:
        """Does a batch in a separate process."""
        self._number, self._synced, given, is_bare = batch
        if not isinstance(given, bytes):
            return tuple(self._phase.work(source, to, list(map(PlainFile._make, given)), **self._options(is_bare)))
        together, each = _together(self._phase.folder_work(source, to, unpack_folders(given), **self._options(is_bare)))
        return [tuple(together), *map(tuple, each)]

    @property
    def _phase(self) -> WorkPhase:
        return self._phases[self._number]

    def _is_small(self, names: int, size: int) -> bool:
        return self._phase.at_once and names <= _FEW and size <= _LITTLE

    def _options(self, is_bare: bool) -> dict[str, bool | int]:
        return ({"is_bare": True} if is_bare else {}) | ({"synced": self._synced} if self._synced else {})

    def finish(self) -> None:
        """Waits for all groups and folders. Raises the same as `do`."""
        if self._workers:
            self._workers.finish()


def _together(handled: Sequence[BatchResult]) -> tuple[BatchResult, Sequence[BatchResult]]:
    """Returns the result of all folders together, and the results of each, unless nothing was left over."""
    is_complete = all(done.is_folder_done and not done.left_over and not done.undeleted for done in handled)
    together = BatchResult((), sum(done.size for done in handled), is_bare=all(done.is_bare for done in handled))
    return together, () if is_complete else handled
