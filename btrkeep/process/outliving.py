"""Lets a command end although storage stops answering while it works: a child does the work, and this process waits for it.

Used only if that is probable: on a server with the folder on a remote mount. A thread that waits for such storage keeps its process
for ever, whatever the signal; see docs/decisions/0077. The child is the command in everything but its number.
"""

import ctypes
import os
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from btrkeep.errors import PoolUnusable
from btrkeep.hung_storage import HINT, PATIENCE, answers, is_remote
from btrkeep.units import printable

LOOK = 5.0
"""Seconds between two checks whether the folder answers."""
_ENDING = 0.5
_ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_SI_KERNEL = 0x80  # from the terminal, which sends it to the child as well
_PR_SET_PDEATHSIG = 1


class StorageHung(PoolUnusable):
    """The folder no longer answers, and the child that did the work was killed."""


def outlive(folder: Path, patience: float, *, keeps_output: bool) -> None:
    """Continues in a child if `folder` is remote and answers now; else does nothing. Call it before the first thread.

    This process ends in the same way as the child. Raises StorageHung, in this process, if the folder has not answered for PATIENCE
    and `patience` seconds more; then the child is killed. A signal that ends commands ends `patience`.

    `keeps_output`: the child's output for a pipe or socket is stored until it ends, because otherwise a reader would wait as long
    as a child that hangs has the other end open. The output of a child that was killed is lost.
    """
    if threading.active_count() > 1 or not (answers(folder) and is_remote(folder)):
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signals = {*_ENDS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the fork, so that none is missed
    outputs = _Outputs() if keeps_output else None
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(os.EX_UNAVAILABLE)
        if outputs:
            outputs.take()
    status = _wait(child, signals, folder, patience) if child > 0 else None
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if status is not None:
        if outputs:
            outputs.print()
        _end_as(status)
    if outputs:
        outputs.close()
    if child > 0:
        raise StorageHung(f"{printable(str(folder))} no longer answers: nothing could be read for {PATIENCE:.0f} s", HINT)


def _wait(child: int, signals: set[signal.Signals], folder: Path, patience: float) -> int | None:
    """Returns the wait status of the child; None if it was killed."""
    silent_since = None
    while True:
        info = signal.sigtimedwait(signals, LOOK)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if info and info.si_signo != signal.SIGCHLD:
            patience = 0 if info.si_signo in _ENDS else patience
            if info.si_code != _SI_KERNEL:
                os.kill(child, info.si_signo)
        if info:
            continue
        if answers(folder):
            silent_since = None
            continue
        silent_since = silent_since or time.monotonic()
        if time.monotonic() - silent_since >= patience:
            break
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + _ENDING
    while time.monotonic() < deadline and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(_ENDING / 10)
    return None


def _end_as(status: int) -> NoReturn:
    """Ends this process in the same way as another one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) % 256)


class _Outputs:
    """Files in memory instead of standard output and standard error, if these are pipes or sockets."""

    def __init__(self) -> None:
        self._files: list[tuple[tuple[int, int], int, list[int]]] = []  # identity of a pipe, its file, its descriptors
        for number in (1, 2):
            status = os.fstat(number)
            if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                continue
            pipe = (status.st_dev, status.st_ino)
            numbers = next((numbers for other, _, numbers in self._files if other == pipe), None)
            if numbers is None:
                self._files.append((pipe, os.memfd_create("output"), [number]))
            else:
                numbers.append(number)  # one file, to keep the order

    def take(self) -> None:
        """Makes them the standard streams of this process."""
        for _, file, numbers in self._files:
            for number in numbers:
                os.dup2(file, number)

    def print(self) -> None:
        """Writes their content to the streams. If a stream has no reader, its content is lost."""
        for _, file, numbers in self._files:
            os.lseek(file, 0, os.SEEK_SET)
            with suppress(OSError):
                while data := os.read(file, 1 << 16):
                    while data:
                        data = data[os.write(numbers[0], data) :]

    def close(self) -> None:
        """Closes the files."""
        for _, file, _ in self._files:
            os.close(file)
