"""Other processes, as /proc shows them: who they are, what they have read, which files they hold open."""

import contextlib
import ctypes
import os
from collections.abc import Collection
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
class GroupMember:
    """A process of a group: what it has read in all (bytes, pipes and sockets included) and its CPU time in ticks.

    `written`: bytes that it made the kernel write to disks, also those that wait in memory. `stuck`: it waits in the kernel where
    no signal reaches it (state D), at this moment.
    """

    pid: int
    parent: int
    name: str
    read_bytes: int
    cpu_ticks: int
    group: int = 0
    written: int = 0
    stuck: bool = False


def members(*groups: int) -> list[GroupMember]:
    """The living processes of process groups, from /proc. One that ends meanwhile is passed over."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            stat = Path(entry.path, "stat").read_bytes()
            name, fields = stat[stat.index(b"(") + 1 : stat.rindex(b")")], stat[stat.rindex(b")") + 2 :].split()
            if int(fields[2]) in groups and fields[0] not in (b"Z", b"X"):
                counters = _counters(Path(entry.path))
                found.append(
                    GroupMember(
                        pid=int(entry.name),
                        parent=int(fields[1]),
                        name=os.fsdecode(name),
                        read_bytes=counters["rchar"],
                        cpu_ticks=int(fields[11]) + int(fields[12]),
                        group=int(fields[2]),
                        written=counters["write_bytes"],
                        stuck=fields[0] == b"D",
                    )
                )
    return found


def _counters(process: Path) -> dict[str, int]:
    lines = (process / "io").read_text().splitlines()
    return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}


def flock_holders(file: os.stat_result) -> list[int]:
    """The processes that took a flock(2) on that very file and have it open still. Found by its inode in /proc/locks."""
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and int(fields[5].rpartition(":")[2]) == file.st_ino:
            found.add(int(fields[4]))
    return sorted(pid for pid in found if has_locked(pid, file))


def groups_of(name: str, file: os.stat_result) -> set[int]:
    """The process groups in which a program of that name has that very file locked."""
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            stat = Path(entry.path, "stat").read_bytes()
            is_it = stat[stat.index(b"(") + 1 : stat.rindex(b")")] == os.fsencode(name)
            if is_it and has_locked(int(entry.name), file):
                found.add(int(stat[stat.rindex(b")") + 2 :].split()[2]))
    return found


def has_locked(pid: int, file: os.stat_result) -> bool:
    """Whether the process has that very file open (device and inode) with a flock(2) on it, its own or an inherited one.

    Only what the kernel's list says is such a file is asked for its device: to ask any other that a process has open, of a mount
    that does not answer any more, would be to wait with it, for ever.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(OSError):
                if _is_locked(Path(entry.path).read_bytes(), file.st_ino):
                    status = Path(f"/proc/{pid}/fd/{entry.name}").stat()
                    if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino):
                        return True
    return False


def _is_locked(fdinfo: bytes, inode: int) -> bool:
    """Whether one of the lines is such as "lock:\t1: FLOCK  ADVISORY  WRITE 22198 00:1b:118152 0 EOF"."""
    locks = (line.split() for line in fdinfo.splitlines() if line.startswith(b"lock:"))
    return any(fields[2] == b"FLOCK" and fields[6].rpartition(b":")[2] == b"%d" % inode for fields in locks)


@dataclass(frozen=True, slots=True)
class Standing:
    """A process that has a file open in a folder, or stands in it."""

    pid: int
    name: str


def standing_in(folders: Collection[str]) -> dict[str, Standing]:
    """Who has a file, its working directory, its root or its program in each of these folders: one process, where there is any.

    Absolute paths as this process sees them; that nothing is there any more does not matter. What is only mapped is not seen, nor
    who sees the folder at another place. (A deleted subvolume's files have the device number 0, so that could not tell them apart.)
    """
    left, found = set(folders), dict[str, Standing]()
    for entry in os.scandir("/proc"):
        if not left:
            break
        if not entry.name.isdigit():
            continue
        for folder in _folders_of(entry.path) & left:
            with contextlib.suppress(OSError):
                name = Path(entry.path, "comm").read_text(errors="replace").strip()
                found[folder] = Standing(int(entry.name), name)
        left -= found.keys()
    return found


def _folders_of(process: str) -> set[str]:
    """All folders that something of a process is in, however deep."""
    links = [f"{process}/{name}" for name in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):
        links += [entry.path for entry in os.scandir(f"{process}/fd")]
    found: set[str] = set()
    for link in links:
        with contextlib.suppress(OSError):
            path = Path(str(Path(link).readlink()).removesuffix(" (deleted)"))
            found.update(map(str, (path, *path.parents)))
    return found
