"""How many hosts this process can have under way: each takes open files and processes, and both have limits (ulimit -n, TasksMax=).

Reaching such a limit in the middle would fail hosts that only had to wait for their turn.
"""

import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from btrkeep.process.threads import NoThread, start


@dataclass(frozen=True, slots=True)
class Needs:
    """How many open files and processes or threads a running host needs."""

    files: int
    tasks: int


OPEN = Needs(files=16, tasks=6)
"""Locks, pipes, the descriptor to sync by, and what a thread has open that walks through a tree: some 7 to 12. A thread; rsync's
generator and receiver, the relay, the remote shell, and a program that somebody starts for a moment.
"""
CONFINED = Needs(files=24, tasks=9)
"""Besides: a second one of the lock, the cell's filter and socket, what watches its remote shell and passes its output on. The two
processes of the cell itself, and what rsync has in place of its remote shell.
"""
_FILES_BESIDE = 24  # the catalogue's, and what is open for a moment


def possible_at_once(wanted: int, each: Needs) -> int:
    """Returns how many hosts may run at once, at most `wanted`; 0 if not a single thread can be started.

    Raises the limit of open files as needed and allowed; if the limit is too low, the result is one host, not none.
    """
    return min(_by_files(wanted, each.files), _by_tasks(wanted, each.tasks))


def has_files_for(hosts: int, each: Needs) -> bool:
    """Returns True if so many hosts, at least two, can run with the files already open. Raises the limit for them if allowed."""
    return _by_files(hosts, each.files) >= hosts


def _by_files(wanted: int, each: int) -> int:
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = opened + _FILES_BESIDE + wanted * each
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return wanted
    with suppress(OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(hard, needed), hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(wanted, (limit - opened - _FILES_BESIDE) // each))


def _by_tasks(wanted: int, each: int) -> int:
    """Threads count as processes do, wherever the limit is set: so many are started for a moment (300 in 10 ms)."""
    gate, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(wanted * each):
            thread = threading.Thread(target=gate.wait)
            start(thread)
            started.append(thread)
    except NoThread:
        pass
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return max(1, len(started) // each) if started else 0
