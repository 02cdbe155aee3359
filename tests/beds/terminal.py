"""A command at a terminal: waits for its questions and answers them."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_WIDTH, _HEIGHT = 200, 50


class Terminal:
    """The other end of the terminal. `text`: the output so far, with line ends as in a file."""

    def __init__(self, process: "subprocess.Popen[bytes]", end: int) -> None:
        self.process = process
        self._end = end
        self._shown = b""
        self._looked = 0

    @property
    def text(self) -> str:
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait_for(self, pattern: str, seconds: float = 30) -> "re.Match[str]":
        """Waits until the output since the last answer matches. Fails with all output if the command ends, or after the timeout."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text[self._looked :])):
            assert self._read(deadline - time.monotonic()), f"{pattern!r} did not come:\n{self.text}"
        return match

    def answer(self, question: str, words: str) -> None:
        """Waits for the question, then types the words and Enter."""
        self.wait_for(question)
        self._looked = len(self.text)
        os.write(self._end, words.encode() + b"\n")

    def type(self, keys: str) -> None:
        """Presses those keys; later output counts as new."""
        self._looked = len(self.text)
        os.write(self._end, keys.encode())

    def interrupted(self) -> int:
        """Returns the exit status after Ctrl-C, or several: one between a prompt and its read can be missed."""
        for _ in range(20):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.5)
                break
        return self.ends(5)

    def goes_away(self) -> None:
        """Closes the window: the session gets SIGHUP, and each later write fails."""
        os.close(self._end)
        self._end = -1
        os.killpg(self.process.pid, signal.SIGHUP)

    def close(self) -> None:
        """Ends the command, if necessary."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._end >= 0:
            os.close(self._end)

    def ends(self, seconds: float = 100) -> int:
        """Reads up to the command's end; returns its exit status."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def _read(self, seconds: float) -> bool:
        if not select.select([self._end], [], [], max(0.0, seconds))[0]:
            return False
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self._shown += piece
        return bool(piece)


@contextmanager
def at_a_terminal(
    words: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None, width: int = _WIDTH
) -> Iterator[Terminal]:
    """Starts the command with a separate terminal as all three files; it is killed at the end if necessary."""
    end, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _HEIGHT, width, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}  # pytest-xdist sets them
    environment = {**inherited, "TERM": "dumb", "NO_COLOR": "1", **(env or {})}
    process = subprocess.Popen(
        [*map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cwd, start_new_session=True
    )
    os.close(theirs)
    terminal = Terminal(process, end)
    try:
        yield terminal
    finally:
        terminal.close()
