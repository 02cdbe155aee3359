"""no_more_threads.py COUNT [-m PROGRAM] [its own words]: backupd, or PROGRAM, with COUNT threads at most beside its first.

It simulates a limit of processes, which is reached by chance at one thread or another: a test tries all of them.
"""

import sys
import threading
from importlib import import_module


def refuse_beyond(count: int) -> None:
    """Raises Python's error for a thread that the kernel refuses."""
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if threading.active_count() > count:
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = limited  # type: ignore[method-assign]


if __name__ == "__main__":
    count, *words = sys.argv[1:]
    program, words = (words[1], words[2:]) if words[:1] == ["-m"] else ("backupd", words)
    main = import_module(f"{program}.cli").main
    refuse_beyond(int(count))
    sys.argv = [program, *words]
    main()
