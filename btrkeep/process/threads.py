"""Starts threads, which limits of processes may refuse: TasksMax= of a unit, pids.max of a container, ulimit -u."""

import threading
from concurrent.futures import ThreadPoolExecutor

from btrkeep.errors import OperatorError

HINT = "raise it: TasksMax= of the unit, pids.max of the container, or ulimit -u"


class NoThread(OperatorError):
    """The limit of processes is reached."""

    def __init__(self) -> None:
        super().__init__("no further thread can be started: the limit of processes is reached", HINT)


def start(thread: threading.Thread) -> None:
    """Starts it. Raises NoThread."""
    try:
        thread.start()
    except RuntimeError:  # which is what Python says of it
        raise NoThread from None


def running_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Returns an executor whose threads run already. Raises NoThread.

    If a thread cannot be started, its work stays in the queue, and another thread does it later, after whoever asked has given up.
    """
    executor, gate = ThreadPoolExecutor(count, name), threading.Event()
    try:
        for _ in range(count):
            executor.submit(gate.wait)
    except RuntimeError:
        raise NoThread from None
    finally:
        gate.set()
    return executor
