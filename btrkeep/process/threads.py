"""Threads count as processes do, so the limits of these may refuse one: TasksMax= of a unit, pids.max of a container, ulimit -u."""

import threading

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
