"""Other processes that do batches of work in open folders, so that more than one processor is used.

Each is a fork, and gets open folders with every batch; it opens nothing by a path. It ends with this process, whatever the reason.
"""

import gc
import marshal
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from btrkeep.descriptors import Closing
from btrkeep.errors import OperatorError

_MOST_WORKERS = 4
_AHEAD = 2
"""Number of batches of one process at the same time: the present one, and the next."""
_LONGEST = 128 << 10  # bytes of a message; a batch of names is shorter

Work = Callable[..., Any]
"""Takes two open folders and the rest of a batch; arguments and results are values that marshal can store."""
Then = Callable[[Any], None]
"""Takes the result of the work."""


class ProcessKilled(OperatorError):
    """One of the processes was killed from outside: its batches may be done in part. It proves nothing about the files."""

    def __init__(self) -> None:
        super().__init__(
            "a process of this command was killed",
            "check the kernel's messages (dmesg) for `Out of memory`, then run the command again",
        )


class BatchWorkers(Closing):
    """Does batches in other processes if there are processors for them, else in this one. `work` must not raise.

    `most`: maximum number of processes. `kept`: open files that `work` uses.
    """

    def __init__(self, work: Work, most: int = _MOST_WORKERS, *, kept: Sequence[int] = ()) -> None:
        self._work = work
        self._workers: list[_Worker] = []
        # A process with other threads must not fork: a thread may hold a lock that is never released in the child.
        processors = len(os.sched_getaffinity(0))
        if processors > 1 and threading.active_count() == 1:
            for _ in range(min(processors, most)):
                try:
                    self._workers.append(_Worker(work, kept))
                except OSError:  # the limit of processes or open files: the running workers suffice, or this process does the work
                    break

    def close(self) -> None:
        """Ends the processes, each after its present batch. May be repeated."""
        ended, self._workers = self._workers, []
        for worker in ended:
            worker.close()

    @property
    def are_processes(self) -> bool:
        """Returns False if this process does all work."""
        return bool(self._workers)

    def wait_until_free(self) -> None:
        """Waits until a batch can be given. Calls the functions that wait for results; raises their errors, OperatorError."""
        while self._workers and all(len(worker.waiting) >= _AHEAD for worker in self._workers):
            self._take()

    def give(self, source: int, to: int, batch: Any, then: Then) -> None:
        """Gives a batch to a process; `then` is called with the result, at once or during a later wait. Raises OperatorError."""
        if self._workers:
            min(self._workers, key=lambda worker: len(worker.waiting)).give(source, to, batch, then)
        else:
            then(self._work(source, to, batch))

    def finish(self) -> None:
        """Waits for all batches. Raises the same as `wait_until_free`."""
        while any(worker.waiting for worker in self._workers):
            self._take()

    def _take(self) -> None:
        busy = [worker for worker in self._workers if worker.waiting]
        ready, _, _ = select.select(busy, [], [])
        for worker in ready:
            if worker.waiting:  # a callback for another worker may have waited for all of them
                worker.take()


class _Worker:
    """One process. `waiting`: the functions for the results of its batches."""

    is_this_process = False

    def __init__(self, work: Work, kept: Sequence[int]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.waiting: list[Then] = []
        parent = os.getpid()
        try:
            self._process = os.fork()
        except OSError:
            self._socket.close()
            theirs.close()
            raise
        if self._process:
            theirs.close()
            return
        _Worker.is_this_process = True
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # it ends when the pipe is closed
            _keep_only([theirs.fileno(), *kept])
            with suppress(ConnectionError):  # the other process has ended
                _serve(theirs, work, parent)
        except Exception:
            traceback.print_exc()
            raise
        finally:
            os._exit(0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def give(self, source: int, to: int, batch: Any, then: Then) -> None:
        try:
            socket.send_fds(self._socket, [marshal.dumps(batch)], [source, to])
        except ConnectionError:
            raise ProcessKilled from None
        self.waiting.append(then)

    def take(self) -> None:
        try:
            answer = self._socket.recv(_LONGEST)
        except ConnectionError:
            answer = b""
        if not answer:
            raise ProcessKilled
        self.waiting.pop(0)(marshal.loads(answer))  # noqa: S302  from our own fork

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._process, 0)


def is_worker() -> bool:
    """Returns True in a process that does only batches, which may change its current folder."""
    return _Worker.is_this_process


def _keep_only(kept: Sequence[int]) -> None:
    """Closes all other files: locks would be held longer than the process that was killed, and block the next one."""
    gc.freeze()  # inherited objects must not close descriptors that are reused here
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _serve(end: socket.socket, work: Work, parent: int) -> None:
    while True:
        message, fds, _, _ = socket.recv_fds(end, _LONGEST, 2)
        try:
            if not message or os.getppid() != parent:
                return
            answer = work(*fds, marshal.loads(message))  # noqa: S302  from the process that this is a fork of
        finally:
            for fd in fds:
                os.close(fd)
        end.send(marshal.dumps(answer))
