"""Runs programs to their end, or connected by pipes; and the environment for all programs that are started."""

import contextlib
import logging
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from btrkeep.errors import ERRORS_VARIABLE, OperatorError, ReportedError, first_reported
from btrkeep.process.threads import NoThread, start

log = logging.getLogger(__name__)

UNENDING = 30.0
"""Seconds from a SIGKILL until a remaining process is no longer waited for: it waits in the kernel (state D), perhaps for ever."""
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR")


class ProgramFailed(OperatorError):
    """A required program failed; `finished` has its output."""

    def __init__(self, finished: "ProgramResult", hint: str = "") -> None:
        last = finished.stderr.strip().splitlines()[-1:] or [f"exit status {finished.returncode}"]
        super().__init__(f"{finished.command[0]}: {last[0]}", hint)
        self.finished = finished


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A finished program."""

    command: tuple[str, ...]
    """Its command line."""
    returncode: int
    """Its exit status; negative for a signal."""
    stdout: str
    """Its output."""
    stderr: str
    """Its error output."""


def paste_line(command: Iterable[str]) -> str:
    """The command as one line that can be pasted into a shell."""
    return shlex.join(command)


@lru_cache(64)
def program_path(program: str, path: str | None) -> str:
    """Returns the path of a program, searched once, and not by each child in every folder of PATH."""
    return shutil.which(program, path=path) or program


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Builds an environment: few variables, messages in English, and none of the variables that change what rsync or ssh do."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **kept, "LC_ALL": "C", **(extra or {})}


def run(
    command: Sequence[str],
    *,
    timeout: float | None = 60,
    check: bool = True,
    given: str = "",
    keep_open: Sequence[int] = (),
    extra: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Runs a program to its end; `given` is its standard input, `keep_open` are descriptors that it inherits, `extra` variables.

    Raises ProgramFailed when it is missing, takes too long or (with `check`) fails.
    """
    log.debug("running %s", paste_line(command))
    try:
        process = subprocess.Popen(
            command,
            env=environment(extra),
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(keep_open),
        )
        finished = _to_its_end(process, tuple(command), timeout, given)
    except FileNotFoundError:
        finished = ProgramResult(tuple(command), 127, "", f"{command[0]} is not installed")
        check = True
    except OSError as error:
        finished = ProgramResult(tuple(command), 126, "", f"{command[0]} cannot be run: {error.strerror}")
        check = True
    except subprocess.TimeoutExpired:
        finished = ProgramResult(tuple(command), 124, "", f"did not end within {timeout} s")
        check = True
    if check and finished.returncode:
        raise ProgramFailed(finished)
    return finished


def _to_its_end(process: subprocess.Popen[bytes], command: tuple[str, ...], timeout: float | None, given: str) -> ProgramResult:
    """Raises TimeoutExpired. Then the program is killed, and no longer waited for if it does not end: subprocess.run would wait for
    ever.
    """
    try:
        stdout, stderr = process.communicate(given.encode() if given else None, timeout)
    except BaseException:  # including Ctrl-C
        process.kill()
        wait_for_end(process)
        raise
    return ProgramResult(command, process.returncode, _text(stdout), _text(stderr))


def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a program that was killed, but not for ever."""
    try:
        process.wait(UNENDING)
    except subprocess.TimeoutExpired:
        log.error("process %d (%s) cannot be ended: it waits in the kernel (state D)", process.pid, process.args)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


_TO_ITS_END = 5.0  # seconds to end after the end of its input
_MOST_OF_MESSAGES = 1 << 16  # bytes of its messages
_LOOK = 500  # ms between two checks while waiting for it


class PipedProgram:
    """`input` and `output`: descriptors of this process. Its messages are stored, the first 64 KiB."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: int, pidfd: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._errors, self._pidfd = process, errors, pidfd
        self.pid = process.pid
        self.input, self.output = process.stdin.fileno(), process.stdout.fileno()

    def end_input(self) -> None:
        """Closes the input of the program."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self, poll: Callable[[], None]) -> int:
        """Returns its exit status after it has ended, negative for a signal. `poll` is called regularly, and may raise."""
        self.end_input()
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        while not ended.poll(_LOOK):
            poll()
        return self._process.wait()

    def error_lines(self) -> list[str]:
        """Returns the lines of its messages so far."""
        return os.pread(self._errors, _MOST_OF_MESSAGES, 0).decode(errors="replace").strip().splitlines()

    def kill(self) -> None:
        """Kills it at once, from any thread; a writer to its input gets BrokenPipeError."""
        self._process.kill()

    def end(self) -> None:
        """Ends it by the end of its input, and kills it if it takes too long: a cell that is killed while it is being made may
        leave its first process behind.
        """
        self.end_input()
        if self._process.stdout:
            self._process.stdout.close()
        try:
            self._process.wait(_TO_ITS_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
        wait_for_end(self._process)


@contextmanager
def piped(command: Sequence[str], extra: Mapping[str, str] | None = None, keep_open: Sequence[int] = ()) -> Iterator[PipedProgram]:
    """Starts the program, with `keep_open` among its descriptors.

    Raises ProgramFailed if it cannot be started, or if not all of its processes can be ended.
    """
    errors = os.memfd_create("messages")
    alive, inherited = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(extra),
                pass_fds=(inherited, *keep_open),
                bufsize=0,
            )
        except OSError as error:
            raise ProgramFailed(ProgramResult(tuple(command), 127, "", f"{command[0]}: {error.strerror}")) from None
        os.close(inherited)
        inherited = -1
        pidfd = os.pidfd_open(process.pid)  # now: after a `kill` by another thread the pid may be reused
        try:
            program = PipedProgram(process, errors, pidfd)
            try:
                yield program
            finally:
                program.end()
        finally:
            os.close(pidfd)
        if not _is_over(alive):
            why = "it cannot be ended: it waits in the kernel (state D)"
            raise ProgramFailed(ProgramResult(tuple(command), 124, "", why), "check the kernel's messages (dmesg)")
    finally:
        for fd in (errors, alive, *((inherited,) if inherited >= 0 else ())):
            os.close(fd)


def _is_over(alive: int) -> bool:
    """Returns True if no process has the other end open; a program in a cell ends a moment after the cell's own process."""
    waiting = select.poll()
    waiting.register(alive, 0)
    return bool(waiting.poll(UNENDING * 1000))


_CALLER_CHECKED = 0.05
_LONGEST = 64 << 20  # bytes of output; more is an error


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """A finished program."""

    command: tuple[str, ...]
    """Its command line."""
    returncode: int
    """Its exit status; negative for a signal."""
    stdout: bytes
    """Its output, raw bytes."""
    stderr: str
    """Its error output."""
    error: ReportedError | None = None
    """The first error that it reported, if it is a program of btrkeep; otherwise None."""

    def failed(self) -> ProgramFailed:
        """Returns the error, if the program was required to succeed."""
        return ProgramFailed(ProgramResult(self.command, self.returncode, "", self.stderr))


class ProgramStopped(OperatorError):
    """The caller no longer waited for the program, or it took too long; it was killed."""


def our_command(package: str) -> tuple[str, ...]:
    """Returns the start of a command line for a program of btrkeep: with the interpreter and the code of this process."""
    return (sys.executable, "-P", "-m", package)


def run_watched(command: Sequence[str], *, timeout: float, gone: Callable[[], bool]) -> ProgramEnd:
    """Runs a program to its end. Raises ProgramStopped if it takes too long, writes too much, or `gone` returns true; its whole
    group is killed then.

    Until the end, its output is in unnamed files, not in memory.
    """
    log.debug("running %s", paste_line(command))
    from tempfile import TemporaryFile  # few commands need it

    with TemporaryFile() as out, TemporaryFile() as err, TemporaryFile() as errors:
        process = _start(command, out.fileno(), err.fileno(), errors.fileno())
        end = time.monotonic() + timeout
        try:
            while process.poll() is None:
                if time.monotonic() > end:
                    raise ProgramStopped(f"{command[0]} did not end within {timeout:.0f} s")
                if gone() or os.fstat(out.fileno()).st_size > _LONGEST:
                    raise ProgramStopped(f"{command[0]} was stopped, because its result is no longer needed")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_CALLER_CHECKED)
        finally:
            _end(process)
        for file in (out, err):
            file.seek(0)
        error_output = err.read(_LONGEST).decode("utf-8", "surrogateescape")
        return ProgramEnd(tuple(command), process.returncode, out.read(_LONGEST), error_output, first_reported(errors))


def start_detached(command: Sequence[str]) -> int:
    """Starts a program in its own session, without our descriptors, and returns its pid. It continues after the end of this
    process.
    """
    log.debug("starting %s", paste_line(command))
    process = _start(command, subprocess.DEVNULL, subprocess.DEVNULL)
    with contextlib.suppress(NoThread):  # it stays a zombie until this process ends
        start(threading.Thread(target=process.wait, daemon=True))
    return process.pid


def _start(command: Sequence[str], out: int, err: int, errors: int | None = None) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # needed in a checkout that is not installed
    reporting = {ERRORS_VARIABLE: str(errors)} if errors is not None else {}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(kept | reporting),
            pass_fds=() if errors is None else (errors,),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise ProgramFailed(ProgramResult(tuple(command), 127, "", f"{command[0]} cannot be run: {error.strerror}")) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills its whole group, unless it has ended, because its number may belong to another process then."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        wait_for_end(process)
