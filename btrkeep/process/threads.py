"""Threads and open files of this process, whose numbers are limited.

TasksMax= of a unit, pids.max of a container, or ulimit -u may refuse a thread. The default limit of open files in a shell is 1,024.
"""

import resource
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from btrkeep.errors import OperatorError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

HINT = "raise the limit: TasksMax= of the unit, pids.max of the container, or ulimit -u"


class NoThread(OperatorError):
    """The limit of processes is reached."""

    def __init__(self) -> None:
        super().__init__("no further thread can be started: the limit of processes is reached", HINT)


def start(thread: threading.Thread) -> None:
    """Starts the thread. Raises NoThread."""
    try:
        thread.start()
    except RuntimeError:  # Python's error if no thread can be started
        raise NoThread from None


def running_threads(count: int, name: str) -> "ThreadPoolExecutor":
    """Returns an executor whose threads are already running. Raises NoThread.

    If a thread could not be started later, its work would remain in the queue, and another thread would do it after the caller has
    given up.
    """
    from concurrent.futures import ThreadPoolExecutor  # most commands start no threads

    executor, gate = ThreadPoolExecutor(count, name), threading.Event()
    try:
        for _ in range(count):
            executor.submit(gate.wait)
    except RuntimeError:
        raise NoThread from None
    finally:
        gate.set()
    return executor


def raise_limit() -> None:
    """Raises the limit to the maximum that the system allows: a shell's default is 1,024. Programs that are started from now on
    inherit it.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
