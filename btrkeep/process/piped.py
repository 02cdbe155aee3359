"""Runs a program that is connected by pipes, from any thread, and ends it with all of its children."""

import contextlib
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from btrkeep.process.programs import UNENDING, Finished, ProgramFailed, environment, wait_for_end

_TO_ITS_END = 5.0  # seconds that it has after the end of its input
_MOST = 1 << 16  # bytes of its messages
_LOOK = 500  # ms between two looks while it is waited for


class PipedProgram:
    """`input` and `output` are descriptors of ours. Its messages are kept, the first 64 KiB."""

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

    def wait(self, look: Callable[[], None]) -> int:
        """Returns its exit status after it has ended, negative for a signal. `look` is called now and then, and may raise."""
        self.end_input()
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        while not ended.poll(_LOOK):
            look()
        return self._process.wait()

    def said(self) -> list[str]:
        """The lines of its messages so far."""
        return os.pread(self._errors, _MOST, 0).decode(errors="replace").strip().splitlines()

    def kill(self) -> None:
        """Kills it at once, from any thread; a writer to its input gets BrokenPipeError."""
        self._process.kill()

    def end(self) -> None:
        """Ends it by the end of its input, and kills it if it takes too long: a cell that is killed while it is being made
        can leave its beginning behind.
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

    Raises ProgramFailed when it cannot be started, or when not all of it can be ended afterwards.
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
            raise ProgramFailed(Finished(tuple(command), 127, "", f"{command[0]}: {error.strerror}")) from None
        os.close(inherited)
        inherited = -1
        pidfd = os.pidfd_open(process.pid)  # now: later `kill` of another thread may have buried it, and its number be another's
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
            raise ProgramFailed(Finished(tuple(command), 124, "", why), "see the kernel's messages (dmesg)")
    finally:
        for fd in (errors, alive, *((inherited,) if inherited >= 0 else ())):
            os.close(fd)


def _is_over(alive: int) -> bool:
    """Returns True if no process has the other end open; a program in a cell ends a moment after the cell's own process."""
    waiting = select.poll()
    waiting.register(alive, 0)
    return bool(waiting.poll(UNENDING * 1000))
