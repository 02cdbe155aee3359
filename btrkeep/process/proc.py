"""Inspects processes through /proc: identity, bytes read, open files; and the login name of the user who started this one."""

import contextlib
import ctypes
import os
import pwd
import re
import resource
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from btrkeep.descriptors import ClosingFd

_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_GETFD = 438  # the same on every architecture
_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> str | None:
    """Returns the kernel's start time of a process, which together with the pid identifies it for ever; None if it does
    not exist.
    """
    return _own_start_time(pid) if pid == os.getpid() else _start_time(pid)


@lru_cache(2)  # needed for every lock; cached by pid, because a fork is another process
def _own_start_time(pid: int) -> str | None:
    return _start_time(pid)


def _start_time(pid: int) -> str | None:
    try:
        _, fields = _stat(pid)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _stat(pid: int) -> tuple[bytes, list[bytes]]:
    """Returns the name of a process, and the fields of /proc/PID/stat after it: the first is its state. Raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    name_end = stat.rindex(b")")  # the name may contain brackets and blanks
    return stat[stat.index(b"(") + 1 : name_end], stat[name_end + 2 :].split()


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def become_reaper() -> None:
    """Makes orphans of our children children of this process, so that it can wait for a killed rsync's receiver (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descriptor_of(pidfd: int, number: int) -> int:
    """Returns a copy of the descriptor with that number in another process (pidfd_getfd(2)). Raises OSError."""
    descriptor: int = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def why_no_descriptors() -> str:
    """Returns why this process may not take descriptors of others (a kernel before 5.6, a filter of system calls); "" if it may."""
    process = os.pidfd_open(os.getpid())
    try:
        os.close(descriptor_of(process, process))
    except OSError as error:
        return f"pidfd_getfd: {error.strerror}"
    finally:
        os.close(process)
    return ""


def arguments_of(pid: int) -> tuple[str, ...]:
    """Returns the words with which a process was started. Raises OSError."""
    return tuple(os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1])


def parent_of(pid: int) -> int:
    """Returns the parent of a process. Raises OSError."""
    return int(_stat(pid)[1][1])


def ancestors_of(pid: int) -> frozenset[int]:
    """Returns the living processes above a process, without the first of the system."""
    above = set[int]()
    with contextlib.suppress(OSError, ValueError):
        while (pid := parent_of(pid)) > 1:
            above.add(pid)
    return frozenset(above)


def terminate(pid: int, started: str) -> bool:
    """Sends SIGTERM to the process with that start time. Returns False if it no longer exists."""
    try:
        with ClosingFd(os.pidfd_open(pid)) as process:  # before the start time is read: then it is that of this process
            if start_time(pid) != started:
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True


def parent_names() -> frozenset[str]:
    """Returns the names of the processes above this one, without that with the pid 1; those that cannot be read are left out."""
    names, pid = set(), os.getppid()
    with contextlib.suppress(OSError):
        while pid > 1:
            name, fields = _stat(pid)
            names.add(os.fsdecode(name))
            pid = int(fields[1])
    return frozenset(names)


def physical_memory() -> int:
    """The machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bound(pid: int, *, memory: int, badness: int) -> None:
    """Limits the address space of a process and its future children (bytes), and sets its oom_score_adj (proc(5)). Raises
    OSError.
    """
    resource.prlimit(pid, resource.RLIMIT_AS, (memory, memory))
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(badness))


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A process of a group."""

    pid: int
    """The process."""
    parent: int
    """Its parent."""
    name: str
    """Its name."""
    read_bytes: int
    """Bytes that it has read in all, including pipes and sockets."""
    cpu_ticks: int
    """CPU time in ticks."""
    group: int = 0
    """Its process group."""
    written: int = 0
    """Bytes that it has written to disks, including dirty ones in memory."""
    stuck: bool = False
    """True if it waits in the kernel, where no signal has an effect (state D), at this moment."""
    memory: int = 0
    """Resident bytes, including shared ones."""


def are_dead(*groups: int) -> bool:
    """Returns True if no process of these groups lives, though their parents may not yet have read the status of some."""
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            if _is_living_member(_stat(pid)[1], groups):
                return False
    return True


def _is_living_member(fields: list[bytes], groups: tuple[int, ...]) -> bool:
    return int(fields[2]) in groups and fields[0] not in (b"Z", b"X")


def members(*groups: int) -> list[GroupMember]:
    """Returns the living processes of process groups, from /proc. Skips any that have just ended."""
    group_members = []
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            name, fields = _stat(pid)
            if _is_living_member(fields, groups):
                counters = _counters(pid)
                group_members.append(
                    GroupMember(
                        pid=pid,
                        parent=int(fields[1]),
                        name=os.fsdecode(name),
                        read_bytes=counters["rchar"],
                        cpu_ticks=int(fields[11]) + int(fields[12]),
                        group=int(fields[2]),
                        written=counters["write_bytes"],
                        stuck=fields[0] == b"D",
                        memory=int(fields[21]) * _PAGE,
                    )
                )
    return group_members


def _counters(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}


def bytes_read_below(pid: int) -> int | None:
    """Returns the bytes that a process and its children have read so far, also from sockets; None if that cannot be read."""
    total = None
    for number in _pids():
        with contextlib.suppress(OSError, ValueError):
            if number == pid or parent_of(number) == pid:
                total = (total or 0) + _counters(number)["rchar"]
    return total


def flock_holders(file: os.stat_result) -> list[int]:
    """Returns the processes that took a flock(2) on that file and still have it open. Found by its inode in /proc/locks."""
    pids = set()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and int(fields[5].rpartition(":")[2]) == file.st_ino:
            pids.add(int(fields[4]))
    return sorted(pid for pid in pids if has_locked(pid, file))


def groups_of(name: str, file: os.stat_result) -> set[int]:
    """Returns the process groups in which a program of that name has that file locked."""
    groups = set()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            program, fields = _stat(pid)
            if program == os.fsencode(name) and has_locked(pid, file):
                groups.add(int(fields[2]))
    return groups


def has_locked(pid: int, file: os.stat_result) -> bool:
    """Returns True if the process has exactly this file open (device and inode) with a flock(2), its own or an inherited one.

    Only files in the kernel's list of locks are examined: examining any other open file, on a mount that does not answer, could
    block for ever.
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
    """Returns True if one of the lines is such as "lock:\t1: FLOCK  ADVISORY  WRITE 22198 00:1b:118152 0 EOF"."""
    locks = (line.split() for line in fdinfo.splitlines() if line.startswith(b"lock:"))
    return any(fields[2] == b"FLOCK" and fields[6].rpartition(b":")[2] == b"%d" % inode for fields in locks)


@dataclass(frozen=True, slots=True)
class FolderUser:
    """A process that has a file open in a folder, or its working directory there."""

    pid: int
    """The process."""
    name: str
    """Its name."""


def folder_users(folders: Collection[str]) -> dict[str, FolderUser]:
    """Finds a process with an open file, its working directory, root or program in each of these folders, if there is one.

    Takes absolute paths as this process sees them, even if they no longer exist. Does not find files that are only mapped, nor
    processes that see the folder at another place. (Files of a deleted subvolume have the device number 0, so device and inode
    cannot identify them.)
    """
    left, users = set(folders), dict[str, FolderUser]()
    for pid in _pids():
        if not left:
            break
        for folder in _folders_of(pid) & left:
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
                users[folder] = FolderUser(pid, name)
        left -= users.keys()
    return users


def _folders_of(pid: int) -> set[str]:
    """Returns all folders that some process uses, at any depth."""
    process = f"/proc/{pid}"
    links = [f"{process}/{name}" for name in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):
        links += [entry.path for entry in os.scandir(f"{process}/fd")]
    folders: set[str] = set()
    for link in links:
        with contextlib.suppress(OSError):
            path = Path(str(Path(link).readlink()).removesuffix(" (deleted)"))
            folders.update(map(str, (path, *path.parents)))
    return folders


_LOGIN_ID = Path("/proc/self/loginuid")
_NO_LOGIN = 0xFFFFFFFF
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,62}\$?", re.ASCII)


def login_name() -> str:
    """Returns the name of the login of this process.

    The kernel's login id counts first. No user can change it once it is set; but if no login has set it (in a container, a
    service), any process can set its own to any user. So if SUDO_USER, which sudo sets, is different, it is added. Without both it
    is the name of the process's user, which is root for a command that writes.
    """
    return choose_login(_login_id(), os.environ.get("SUDO_USER"), os.getuid())


def is_automatic() -> bool:
    """True for a process that was started by systemd, not by a user."""
    return _login_id() is None and "SUDO_USER" not in os.environ and "INVOCATION_ID" in os.environ


def choose_login(login_id: int | None, sudo_user: str | None, user_id: int) -> str:
    """Returns the name. A SUDO_USER that cannot be a user's name is ignored."""
    by_sudo = sudo_user if sudo_user and _NAME.fullmatch(sudo_user) else ""
    if login_id is None:
        return by_sudo or _name_of(user_id)
    name = _name_of(login_id)
    return name if by_sudo in ("", "root", name) else f"{name} (sudo: {by_sudo})"


def _login_id() -> int | None:
    with suppress(OSError, ValueError):
        if (number := int(_LOGIN_ID.read_text())) != _NO_LOGIN:
            return number
    return None


def _name_of(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


CRON, LOGIN, OTHER = "cron", "a login", "another program"
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_OURS = re.compile(r"btrkeep-\w+@.*\.service|user@\d+\.service")
_CRONS = frozenset({"cron", "crond", "anacron", "fcron", "CRON"})
_SHELLS = frozenset({"sshd", "sshd-session", "login", "su", "sudo", "tmux: server", "screen", "agetty"})


def caller() -> str:
    """Returns a name for the program, unit or login that started this process."""
    parents = parent_names()
    if _CRONS & parents:
        return CRON
    units = _units()
    if units and units[-1] not in ("ssh.service", "sshd.service"):
        return str(units[-1])
    return LOGIN if not parents or _SHELLS & parents or sys.stdin.isatty() else OTHER


def is_own_service() -> bool:
    """Returns True in a service of btrkeep, whose sandbox intentionally lacks rights of other root processes."""
    return any(unit.startswith("btrkeep-") for unit in _units())


def _units() -> list[str]:
    try:
        return _UNIT.findall(Path("/proc/self/cgroup").read_text())
    except OSError:
        return []


def has_known_starts(name: str) -> bool:
    """Returns True for callers whose next starts are read from timers and crontabs, and for people."""
    return name in (CRON, LOGIN, "cron.service", "crond.service", "anacron.service") or bool(_OURS.fullmatch(name))
