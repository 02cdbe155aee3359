"""Runs programs for a caller who may disconnect, and programs that outlive this process."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from btrkeep.errors import ERRORS_VARIABLE, OperatorError, ReportedError, first_reported
from btrkeep.process.programs import Finished, ProgramFailed, environment, paste_line, wait_for_end
from btrkeep.process.threads import NoThread, start

log = logging.getLogger(__name__)

_LOOK = 0.05
_LONGEST = 64 << 20  # bytes of output; more is a fault


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
    """The first error that it reported, if it is one of our programs; otherwise None."""

    def failed(self) -> ProgramFailed:
        """The error that it is when it had to succeed."""
        return ProgramFailed(Finished(self.command, self.returncode, "", self.stderr))


class Abandoned(OperatorError):
    """The caller no longer waited for the program, or it took too long; it has been killed."""


def our_command(package: str) -> tuple[str, ...]:
    """Returns how a command line of one of our programs begins: with the interpreter and the code that we run ourselves."""
    return (sys.executable, "-P", "-m", package)


def run_watched(command: Sequence[str], *, timeout: float, gone: Callable[[], bool]) -> ProgramEnd:
    """Runs a program to its end. Raises Abandoned if it takes too long, writes too much, or `gone` returns true; its whole group is
    killed then.

    Until the end, its output is in unnamed files, not in memory.
    """
    log.debug("running %s", paste_line(command))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as errors:
        process = _start(command, out.fileno(), err.fileno(), errors.fileno())
        end = time.monotonic() + timeout
        try:
            while process.poll() is None:
                if time.monotonic() > end:
                    raise Abandoned(f"{command[0]}: no end after {timeout:.0f} s")
                if gone() or os.fstat(out.fileno()).st_size > _LONGEST:
                    raise Abandoned(f"{command[0]}: ended before it was done")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK)
        finally:
            _end(process)
        for file in (out, err):
            file.seek(0)
        error_output = err.read(_LONGEST).decode("utf-8", "surrogateescape")
        return ProgramEnd(tuple(command), process.returncode, out.read(_LONGEST), error_output, first_reported(errors))


def start_detached(command: Sequence[str]) -> int:
    """Starts a program in its own session, without our descriptors, and returns its pid. It outlives this process."""
    log.debug("starting %s", paste_line(command))
    process = _start(command, subprocess.DEVNULL, subprocess.DEVNULL)
    with contextlib.suppress(NoThread):  # then it becomes a zombie until this process ends
        start(threading.Thread(target=process.wait, daemon=True))
    return process.pid


def _start(command: Sequence[str], out: int, err: int, errors: int | None = None) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # a checkout is not an installation
    asked = {ERRORS_VARIABLE: str(errors)} if errors is not None else {}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(kept | asked),
            pass_fds=() if errors is None else (errors,),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise ProgramFailed(Finished(tuple(command), 127, "", f"{command[0]} cannot be run: {error.strerror}")) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills its whole group, unless it has ended: its number may belong to another process then."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        wait_for_end(process)
