"""Runs programs to their end; and the environment with which all of our programs are started."""

import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from btrkeep.errors import OperatorError

log = logging.getLogger(__name__)

UNENDING = 30.0
"""Seconds from a SIGKILL until a process that is still there is given up: it waits in the kernel (state D), maybe for ever."""
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR")


class ProgramFailed(OperatorError):
    """A program failed that had to succeed; `finished` has its output."""

    def __init__(self, finished: "Finished", hint: str = "") -> None:
        last = finished.stderr.strip().splitlines()[-1:] or [f"exit status {finished.returncode}"]
        super().__init__(f"{finished.command[0]}: {last[0]}", hint)
        self.finished = finished


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished program: its exit status (negative: the signal) and its output."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def paste_line(command: Iterable[str]) -> str:
    """The command as one line that can be pasted into a shell."""
    return shlex.join(command)


@lru_cache(64)
def found_program(program: str, path: str | None) -> str:
    """Returns the path of a program, looked up once, and not by each child in every folder of PATH."""
    return shutil.which(program, path=path) or program


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A built environment: few variables, messages in English, and none of those that change what rsync or ssh do."""
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
) -> Finished:
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


def _to_its_end(process: subprocess.Popen[bytes], command: tuple[str, ...], timeout: float | None, given: str) -> Finished:
    """Raises TimeoutExpired. The program is ended then, and given up when it does not end: subprocess.run would wait for ever."""
    try:
        stdout, stderr = process.communicate(given.encode() if given else None, timeout)
    except BaseException:  # Ctrl-C too
        process.kill()
        wait_for_end(process)
        raise
    return Finished(command, process.returncode, _text(stdout), _text(stderr))


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
