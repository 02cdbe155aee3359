"""The only starter of processes: whole ones that are waited for, and groups that run beside others.

A group is a session of its own (rsync forks a receiver and starts ssh), so that all of it can be stopped and, what matters
more, be known to be gone: a receiver that outlives its parent goes on writing into the backup.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from btrkeep.errors import OperatorError

log = logging.getLogger(__name__)

_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR")
_PR_SET_CHILD_SUBREAPER = 36
_PIPE = 1 << 16
_LOOK_AWAY = 0.02


class ProgramFailed(OperatorError):
    """A program that had to succeed did not; `finished` has its output."""

    def __init__(self, finished: "Finished", hint: str = "") -> None:
        last = finished.stderr.strip().splitlines()[-1:] or [f"exit status {finished.returncode}"]
        super().__init__(f"{finished.command[0]}: {last[0]}", hint)
        self.finished = finished


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended: its exit status (negative: the signal) and what it printed."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def paste_line(command: Iterable[str]) -> str:
    """The command as one line that can be pasted into a shell."""
    return shlex.join(command)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A built environment: few variables, messages in English, and none of those that change what rsync or ssh do."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **kept, "LC_ALL": "C", **(extra or {})}


def run(command: Sequence[str], *, timeout: float | None = 60, check: bool = True) -> Finished:
    """Runs a program to its end. Raises ProgramFailed when it is missing, takes too long or (with `check`) fails."""
    log.debug("running %s", paste_line(command))
    try:
        done = subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
        finished = Finished(tuple(command), done.returncode, _text(done.stdout), _text(done.stderr))
    except FileNotFoundError:
        finished = Finished(tuple(command), 127, "", f"{command[0]} is not installed")
        check = True
    except OSError as error:
        finished = Finished(tuple(command), 126, "", f"{command[0]} cannot be run: {error.strerror}")
        check = True
    except subprocess.TimeoutExpired:
        finished = Finished(tuple(command), 124, "", f"no end after {timeout} s")
        check = True
    if check and finished.returncode:
        raise ProgramFailed(finished)
    return finished


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


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


@lru_cache(64)
def _found(program: str, path: str | None) -> str:
    """Where a program is: looked for once, not by each child in every folder of PATH."""
    return shutil.which(program, path=path) or program


class Group:
    """A program running in a session of its own, its output handed to two callbacks as it comes.

    Belongs to one asyncio loop. `keep_open` are descriptors that every member inherits (a lock, so that it is held as long as any
    member lives).
    """

    def __init__(self, process: subprocess.Popen[bytes], command: tuple[str, ...]) -> None:
        self.process = process
        self.command = command
        self.pid = process.pid
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._paused: dict[int, tuple[asyncio.TimerHandle, Callable[[bytes], None]]] = {}
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._quiet: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        on_stdout: Callable[[bytes], None],
        on_stderr: Callable[[bytes], None],
        keep_open: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> "Group":
        """Starts the program. Raises ProgramFailed when it cannot be started."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("starting %s", paste_line(command))
        variables = environment() if env is None else dict(env)
        try:
            process = subprocess.Popen(
                command,
                executable=_found(command[0], variables.get("PATH")),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=variables,
                pass_fds=tuple(keep_open),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ProgramFailed(Finished(tuple(command), 127, "", f"{error.strerror}: {command[0]}")) from error
        group = cls(process, tuple(command))
        assert process.stdout is not None
        assert process.stderr is not None
        group._watch(process.stdout.fileno(), on_stdout)
        group._watch(process.stderr.fileno(), on_stderr)
        group._watch_end()
        return group

    def _watch(self, fd: int, callback: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._open += 1
        self._loop.add_reader(fd, self._read, fd, callback)

    def _read(self, fd: int, callback: Callable[[bytes], None]) -> None:
        """Takes what is there, then looks away for a moment: a program that writes line by line would wake us for every line."""
        try:
            data = os.read(fd, _PIPE)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(fd)
            self._open -= 1
            if not self._open and not self._quiet.done():
                self._quiet.set_result(None)
            return
        callback(data)
        if len(data) < _PIPE // 2 and self.running:
            self._loop.remove_reader(fd)
            self._paused[fd] = (self._loop.call_later(_LOOK_AWAY, self._resume, fd, callback), callback)

    def _resume(self, fd: int, callback: Callable[[bytes], None]) -> None:
        self._paused.pop(fd)
        self._loop.add_reader(fd, self._read, fd, callback)

    def _watch_end(self) -> None:
        pidfd = os.pidfd_open(self.pid)

        def ended() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._ended.set_result(self.process.wait())
            for fd, (timer, callback) in list(self._paused.items()):
                timer.cancel()
                self._resume(fd, callback)

        self._loop.add_reader(pidfd, ended)

    async def wait(self) -> int:
        """The leader's exit status (negative: the signal), when it has ended and its whole group is gone.

        Members that outlive the leader get two seconds, then SIGTERM, then SIGKILL: nothing may write into a backup afterwards.
        """
        status = await asyncio.shield(self._ended)
        for patience, signal_number in ((2.0, signal.SIGTERM), (5.0, signal.SIGKILL)):
            if await self._gone_within(patience):
                break
            self.signal(signal_number)
        while not await self._gone_within(60):
            log.error("process group %d does not end (a process in uninterruptible sleep?)", self.pid)
        await self._drain()
        return status

    async def _gone_within(self, seconds: float) -> bool:
        pause, waited = 0.005, 0.0
        while self._alive():
            if waited >= seconds:
                return False
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 0.25)
        return True

    def _alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._quiet), 5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                self._loop.remove_reader(stream.fileno())
                stream.close()

    def signal(self, number: int) -> None:
        """Sends a signal to every member; nothing happens when all are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    @property
    def running(self) -> bool:
        """Whether the leader has not ended yet."""
        return not self._ended.done()


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
                found.append(Member(int(entry.name), int(fields[1]), _text(name), int(counters[1]), ticks))
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
