"""Programs that somebody waits for who may leave, and programs that go on by themselves when we end."""

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

from btrkeep.errors import OperatorError
from btrkeep.process.error_report import VARIABLE, ReportedError, first_reported
from btrkeep.process.programs import Finished, ProgramFailed, environment, paste_line, wait_for_end

log = logging.getLogger(__name__)

_LOOK = 0.05
_LONGEST = 64 << 20  # bytes of output; more is a fault


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """A program that has ended: its exit status (negative: the signal) and what it printed. `stdout` is bytes as they are.

    `error`: the first one that it reported, if it is ours.
    """

    command: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: str
    error: ReportedError | None = None

    def failed(self) -> ProgramFailed:
        """The error that it is when it had to succeed."""
        return ProgramFailed(Finished(self.command, self.returncode, "", self.stderr))


class Abandoned(OperatorError):
    """Nobody waited for the program any more, or it took too long; it has been ended."""


def ours(package: str) -> tuple[str, ...]:
    """Returns how a command line of one of our programs begins: with the interpreter and the code that we run ourselves."""
    return (sys.executable, "-P", "-m", package)


def run_watched(command: Sequence[str], *, timeout: float, gone: Callable[[], bool]) -> ProgramEnd:
    """Runs a program to its end. Raises Abandoned when it takes too long, when `gone` says so, or when it talks too much; its whole
    group is killed then.

    Its output lies in files without a name, not in memory, until it has ended.
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
        said = err.read(_LONGEST).decode("utf-8", "surrogateescape")
        return ProgramEnd(tuple(command), process.returncode, out.read(_LONGEST), said, first_reported(errors))


def start_detached(command: Sequence[str]) -> int:
    """Starts a program in a session of its own, with nothing of ours open; gives its pid. It goes on when we end."""
    log.debug("starting %s", paste_line(command))
    process = _start(command, subprocess.DEVNULL, subprocess.DEVNULL)
    threading.Thread(target=process.wait, daemon=True).start()  # so that it leaves no zombie
    return process.pid


def _start(command: Sequence[str], out: int, err: int, errors: int | None = None) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # a checkout is no installation
    asked = {VARIABLE: str(errors)} if errors is not None else {}
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
    """Its whole group, unless it has ended: then its number may be another's."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        wait_for_end(process)
