"""Runs a program in the background: all of its processes can be stopped and, more important, are known to have ended. rsync forks a
receiver and starts ssh.

A receiver that lives longer than its parent would continue to write into the backup.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NoReturn, TypeVar

from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import OperatorError
from btrkeep.process.proc import GroupMember, are_dead, members
from btrkeep.process.programs import UNENDING, ProgramFailed, ProgramResult, environment, paste_line, program_path, wait_for_end
from btrkeep.process.progress import Cancellation

log = logging.getLogger(__name__)

_PIPE = 1 << 16
_NO_PROCESS = "the limit of processes is reached (TasksMax= of the unit, ulimit -u)"
_LOOK_AWAY = 0.02
_SLOW = 0.25  # seconds between two checks of a group that outlives its leader
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""The start of a command line for a program that the kernel kills when the thread that started it ends (prctl(2))."""
PATIENCE = 10.0
"""Seconds from SIGTERM to SIGKILL."""


Reason = TypeVar("Reason")


class UnkillableProcess(OperatorError):
    """A process that does not end after SIGKILL: it waits in the kernel for a disk or a server that does not answer (state D).

    It may continue at any time, and keeps its open files until then.
    """

    def __init__(self, group_members: Sequence[GroupMember], command: str) -> None:
        who = f"process {group_members[0].pid} ({group_members[0].name})" if group_members else f"a process of {command}"
        super().__init__(
            f"{who} cannot be ended: it waits in the kernel (state D)",
            "check dmesg for the mount or disk that hangs",
        )


class Group:
    """A program in its own session, whose output is passed to two callbacks as it arrives.

    Belongs to one asyncio loop. `keep_open`: descriptors that every member inherits (a lock, so that it is held as long as any
    member lives). `wraps`: the leader only confines the program and would kill it silently if SIGTERM ended the leader; its input
    is an empty pipe, because a process with /dev/null open as root could change that device's mode.
    """

    def __init__(self, process: subprocess.Popen[bytes], command: tuple[str, ...], *, wraps: bool = False) -> None:
        self.process = process
        self._wraps = wraps
        self._beside: list[_Beside] = []
        self.command = command
        self.pid = process.pid
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._paused: dict[int, tuple[asyncio.TimerHandle, Callable[[bytes], None]]] = {}
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._quiet: asyncio.Future[None] = self._loop.create_future()
        self._unending: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = -1

    @classmethod
    @Checkpoint("process group started")
    def start(
        cls,
        command: Sequence[str],
        *,
        on_stdout: Callable[[bytes], None] | int,
        on_stderr: Callable[[bytes], None],
        keep_open: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        wraps: bool = False,
    ) -> "Group":
        """Starts the program. Raises ProgramFailed when it cannot be started.

        `on_stdout`: a callback, or the descriptor that becomes its standard output.
        """
        if log.isEnabledFor(logging.DEBUG):
            log.debug("starting %s", paste_line(command))
        variables = environment() if env is None else dict(env)
        try:
            process = subprocess.Popen(
                command,
                executable=program_path(command[0], variables.get("PATH")),
                stdin=subprocess.PIPE if wraps else subprocess.DEVNULL,
                stdout=on_stdout if isinstance(on_stdout, int) else subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=variables,
                pass_fds=tuple(keep_open),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            why = f"{error.strerror}: {_NO_PROCESS if error.errno == errno.EAGAIN else command[0]}"
            raise ProgramFailed(ProgramResult(tuple(command), 127, "", why)) from error
        try:
            group = cls(process, tuple(command), wraps=wraps)
            group._watch_end()
        except OSError as error:  # too many open files: the process would be lost
            os.killpg(process.pid, signal.SIGKILL)
            wait_for_end(process)
            raise ProgramFailed(ProgramResult(tuple(command), 126, "", f"{error.strerror}: {command[0]}")) from error
        if process.stdin is not None:
            process.stdin.close()
        assert process.stderr is not None
        if process.stdout is not None and not isinstance(on_stdout, int):
            group._watch(process.stdout.fileno(), on_stdout)
        group._watch(process.stderr.fileno(), on_stderr)
        return group

    def start_beside(self, command: Sequence[str], files: Sequence[int], on_end: Callable[[int], None]) -> None:
        """Starts another program, which belongs to the group although its session is its own. `on_end` gets its exit status.

        `files` become its input, output and errors. If it cannot be started, the status is that of a shell, 126 or 127. It has no
        lock, and the host determines when it ends: so the kernel kills it when this process ends for any reason.
        """
        variables = environment()
        try:
            process = subprocess.Popen(
                (*ENDS_WITH_US, *command),
                executable=program_path(ENDS_WITH_US[0], variables["PATH"]),
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
                env=variables,
                start_new_session=True,
            )
            try:
                self._beside.append(_Beside(process, self._loop, on_end))
            except OSError:  # too many open files: the process would be lost
                os.killpg(process.pid, signal.SIGKILL)
                wait_for_end(process)
                raise
        except OSError as error:
            os.write(files[2], os.fsencode(f"{command[0]}: {error.strerror}\n"))
            on_end(127 if isinstance(error, FileNotFoundError) else 126)

    def _watch(self, fd: int, callback: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._open += 1
        self._loop.add_reader(fd, self._read, fd, callback)

    def _read(self, fd: int, callback: Callable[[bytes], None]) -> None:
        """Reads the available output, then pauses for a moment: otherwise a program that writes line by line would wake this
        process for every line.
        """
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
        self._pidfd = os.pidfd_open(self.pid)

        def ended() -> None:
            self._forget_pidfd()
            self._ended.set_result(self.process.wait())
            for fd, (timer, callback) in list(self._paused.items()):
                timer.cancel()
                self._resume(fd, callback)

        self._loop.add_reader(self._pidfd, ended)

    def _forget_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

    async def wait(self) -> int:
        """Waits until the leader and its whole group have ended. Returns the leader's exit status (negative: the signal).

        Members that live longer than the leader get two seconds, then SIGTERM, then SIGKILL: nothing may write into a backup
        afterwards. Raises UnkillableProcess if one still exists half a minute after any SIGKILL; then it is no longer waited for.
        """
        await asyncio.wait((self._ended, self._unending), return_when=asyncio.FIRST_COMPLETED)
        if self.running:
            self._give_up()
        status = self._ended.result()
        for patience, signal_number in ((2.0, signal.SIGTERM), (5.0, signal.SIGKILL)):
            if await self._gone_within(patience):
                break
            self.signal(signal_number)
        if not await self._gone_within(UNENDING):
            self._give_up()
        await self._drain()
        return status

    def _give_up(self) -> NoReturn:
        if self.running:
            self._forget_pidfd()
        for timer, _ in self._paused.values():
            timer.cancel()
        self._close()
        raise UnkillableProcess(members(self.pid), self.command[0])

    async def _gone_within(self, seconds: float) -> bool:
        pause, waited = 0.005, 0.0
        while self._is_running():
            if pause >= _SLOW and are_dead(*self._groups):
                self._is_running()  # reaps our own children
                return True  # another parent does not reap them: PID 1 of a container, or a subreaper
            if waited >= seconds:
                return False
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, _SLOW)
        return True

    def _is_running(self) -> bool:
        leaders = (self.process, *(each.process for each in self._beside))
        return sum(map(_is_alive, leaders)) > 0  # checks every process, which also reaps it

    @property
    def _groups(self) -> list[int]:
        return [self.pid, *(each.process.pid for each in self._beside)]

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._quiet), 5)
        self._close()

    def _close(self) -> None:
        for each in self._beside:
            each.forget()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                self._loop.remove_reader(stream.fileno())
                stream.close()

    def signal(self, number: int) -> None:
        """Sends a signal to every member; does nothing if all have ended."""
        within = self._wrapped() if number != signal.SIGKILL else []
        for pid in within:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for group in self._groups[1:] if within else self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
        if number == signal.SIGKILL:
            self._loop.call_later(UNENDING, self._check_end)

    def _wrapped(self) -> list[int]:
        """Returns the members without those that only watch the others, if there are any others."""
        return [member.pid for member in members(self.pid) if member.name != self.command[0]] if self._wraps else []

    def _check_end(self) -> None:
        if not self._unending.done():
            self._unending.set_result(None)

    @property
    def running(self) -> bool:
        """Returns True if the leader has not ended yet."""
        return not self._ended.done()


def _is_alive(leader: subprocess.Popen[bytes]) -> bool:
    """Reaps those of its group that have ended, except the leader, whose status another caller reads."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_PGID, leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid != leader.pid:
                os.waitpid(ended.si_pid, os.WNOHANG)
            elif leader.poll() is None:
                break
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    return True


class _Beside:
    """A program beside a group, until it ends or is no longer needed."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, on_end: Callable[[int], None]) -> None:
        self.process = process
        self._loop = loop
        self._on_end = on_end
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self.forget()
        self._on_end(self.process.wait())

    def forget(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class GroupCancellation(Cancellation, Generic[Reason]):
    """A cancellation with a `reason`, the first one given, that also ends the running process group, `group`.

    Used in the loop's thread; any thread may read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: Reason | None = None
        self.group: Group | None = None
        self._event = asyncio.Event()

    def cancel_for(self, reason: Reason) -> None:
        """Sends SIGTERM to the group, which keeps its partial data, and kills it if it does not end in time."""
        self.reason = self.reason or reason
        self._cancelled = True
        self._event.set()
        if self.group:
            self.group.signal(signal.SIGTERM)
            asyncio.get_running_loop().call_later(PATIENCE, self.kill)

    def kill(self) -> None:
        """Ends the group at once."""
        if self.group:
            self.group.signal(signal.SIGKILL)

    async def wait(self, seconds: float) -> None:
        """Waits for that time, or until cancelled."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
