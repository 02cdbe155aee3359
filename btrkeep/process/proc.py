"""Other processes, as /proc shows them: who they are, what they have read, which files they hold open."""

import contextlib
import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def start_time(pid: int) -> str | None:
    """The kernel's start time of a process, which with the pid names it for ever; None when there is none."""
    return _own_start_time(pid) if pid == os.getpid() else _start_time(pid)


@lru_cache(2)  # asked for with every lock; by pid, for a process that was forked is another one
def _own_start_time(pid: int) -> str | None:
    return _start_time(pid)


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def become_reaper() -> None:
    """Lets orphans of our children become ours, so that a killed rsync's receiver can be waited for (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a group: what it has read in all (bytes, pipes and sockets included) and its CPU time in ticks."""

    pid: int
    parent: int
    name: str
    read_bytes: int
    cpu_ticks: int


def members(group: int) -> list[Member]:
    """The living processes of a process group, from /proc. One that ends meanwhile is passed over."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            stat = Path(entry.path, "stat").read_bytes()
            name, fields = stat[stat.index(b"(") + 1 : stat.rindex(b")")], stat[stat.rindex(b")") + 2 :].split()
            if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
                counters = Path(entry.path, "io").read_bytes().split()
                ticks = int(fields[11]) + int(fields[12])
                found.append(Member(int(entry.name), int(fields[1]), os.fsdecode(name), int(counters[1]), ticks))
    return found


def groups_of(name: str, file: os.stat_result) -> set[int]:
    """The process groups in which a program of that name has that very file open."""
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            stat = Path(entry.path, "stat").read_bytes()
            is_it = stat[stat.index(b"(") + 1 : stat.rindex(b")")] == os.fsencode(name)
            if is_it and has_open(int(entry.name), file):
                found.add(int(stat[stat.rindex(b")") + 2 :].split()[2]))
    return found


def has_open(pid: int, file: os.stat_result) -> bool:
    """Whether the process has that very file open (device and inode)."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = Path(entry.path).stat()
                if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino):
                    return True
    return False
