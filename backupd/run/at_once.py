"""How many hosts this process can have under way: each takes open files and processes, and both have limits (ulimit -n, TasksMax=).

Reaching such a limit in the middle would fail hosts that only had to wait for their turn.
"""

import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

FILES_FOR_A_HOST = 16
"""Locks, pipes, the descriptor to sync by, and what a thread has open that walks through a tree: some 7 to 12."""
TASKS_FOR_A_HOST = 6
"""A thread; rsync's generator and receiver, the relay, the remote shell, and a program that somebody starts for a moment."""
_FILES_BESIDE = 24  # the catalogue's, and what is open for a moment


def possible_at_once(wanted: int) -> int:
    """How many hosts may be under way, `wanted` at the most; 0 when not one thread can be started.

    The limit of open files is raised as far as they need and it may be; with too low a limit it is one host and not none.
    """
    return min(_by_files(wanted), _by_tasks(wanted))


def has_files_for(hosts: int) -> bool:
    """Whether so many hosts, two at least, can be under way besides what is open now. The limit is raised for them if it may be."""
    return _by_files(hosts) >= hosts


def _by_files(wanted: int) -> int:
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = opened + _FILES_BESIDE + wanted * FILES_FOR_A_HOST
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return wanted
    with suppress(OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(hard, needed), hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(wanted, (limit - opened - _FILES_BESIDE) // FILES_FOR_A_HOST))


def _by_tasks(wanted: int) -> int:
    """Threads count as processes do, wherever the limit is set: so many are started for a moment (300 in 10 ms)."""
    gate, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(wanted * TASKS_FOR_A_HOST):
            thread = threading.Thread(target=gate.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:  # no new thread can be started
        pass
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return max(1, len(started) // TASKS_FOR_A_HOST) if started else 0


def running_threads(count: int) -> ThreadPoolExecutor:
    """An executor whose threads run already.

    Work for which no thread can be started stays in the queue, and another thread does it later, after its host was given up.
    """
    executor, gate = ThreadPoolExecutor(count, "host"), threading.Event()
    try:
        for _ in range(count):
            executor.submit(gate.wait)
    finally:
        gate.set()
    return executor
