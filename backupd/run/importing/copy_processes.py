"""Processes that copy folders of a tree for an import, because one interpreter runs only one thread of Python at a time."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from btrkeep.errors import OperatorError
from btrkeep.process.batch_workers import BatchWorkers, Then


class SharedStop:
    """An event that a process and its forks share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._memory[0] = 1

    def clear(self) -> None:
        self._memory[0] = 0

    def is_set(self) -> bool:
        return self._memory[0] == 1


class CopyProcesses:
    """Processes for one host at a time. They copy while `goes_on()`, and end with this process, whatever the reason.

    They must be made before there are threads; without them, this process does everything. `stop` ends a copy, also in the middle
    of a file. `is_usable`: there are processes, and none of them was killed.
    """

    def __init__(self, work: Callable[..., Any], most: int) -> None:
        self.stop = SharedStop()
        parent = os.getpid()

        def done(source: int, target: int, batch: Any) -> Any:
            is_fork = os.getpid() != parent
            return work(source, target, batch, lambda: not self.stop.is_set() and not (is_fork and os.getppid() != parent))

        self._workers = BatchWorkers(done, most)
        self.is_usable = self._workers.are_processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop.set()
        self._workers.close()

    def give(self, source: int, target: int, batch: Any, then: Then) -> None:
        """Gives a batch to a process. `then` is called with the result during a later call. Raises OperatorError if a process was
        killed from outside.
        """
        with self._unusable_after_error():
            self._workers.wait_until_free()
            self._workers.give(source, target, batch, then)

    def finish(self) -> None:
        """Waits for all batches. Raises the same as `give`."""
        with self._unusable_after_error():
            self._workers.finish()

    @contextmanager
    def _unusable_after_error(self) -> Iterator[None]:
        try:
            yield
        except OperatorError:
            self.is_usable = False
            self.stop.set()
            self._workers.close()  # no copying process remains when the backup is deleted or finished
            raise
