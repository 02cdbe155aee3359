"""Has groups of plain files done: small ones at once, the others by worker processes, which begin with the first of these."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from backupd.files.destination import Destination
from backupd.files.placing import PlainVisits
from backupd.files.plain_files import Handled
from backupd.files.walking import PlainFile
from btrkeep.process.batch_workers import BatchWorkers

_FEW, _LITTLE = 8, 64 << 10  # files and bytes at the most that are done here: to hand them over takes longer

Work = Callable[[int, int, Sequence[PlainFile]], Handled]
"""Gets the open folder of the backup, that of the destination, and files of it."""
Then = Callable[[PlainVisits, Sequence[PlainFile], Handled], None]
"""Gets the group, the files that were given, and what became of them. The folder of the group is open then."""


class GroupWorkers:
    """Groups of plain files for one kind of work, which must not raise. `at_once` permits to do small ones in this process."""

    def __init__(self, work: Work, to: Destination, *, at_once: bool) -> None:
        self._work = work
        self._to = to
        self._at_once = at_once
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
        is_small = self._at_once and len(files) <= _FEW and sum(file.size for file in files) <= _LITTLE
        if is_small:
            try:
                folder = self._to.folder(plain.place)
            except OSError:
                return False
            then(plain, files, self._work(plain.group.folder, folder, files))
            return True
        if not self._workers:
            work = self._work
            self._workers = BatchWorkers(lambda source, to, files: tuple(work(source, to, list(map(PlainFile._make, files)))))
        self._workers.wait_until_free()  # what is called meanwhile opens other folders
        try:
            folder = self._to.folder(plain.place)
        except OSError:
            return False
        source = os.dup(plain.group.folder)
        self._sources.add(source)
        mine = plain._replace(group=plain.group._replace(folder=source))

        def handled(answer: tuple[Sequence[int], int, Sequence[int]]) -> None:
            then(mine, files, Handled(*answer))
            self._sources.discard(source)
            os.close(source)

        self._workers.give(source, folder, list(map(tuple, files)), handled)
        return True

    def finish(self) -> None:
        """Waits for all groups. Raises as `do`."""
        if self._workers:
            self._workers.finish()
