"""Progress of long work, a series of events, each passed to every sink, and the sink for `systemctl status`; and the one cancel
token, set by a signal or by a caller with a reason, and checked between small steps of cancellable work.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from btrkeep.errors import Exit

_LONGEST_NAP = 0.05  # seconds until a sleep notices a cancellation


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns SIGINT, SIGTERM, and SIGHUP (the terminal has closed) unless the parent ignores it, as nohup does."""
    both = (signal.SIGINT, signal.SIGTERM)
    return both if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*both, signal.SIGHUP)


def signal_status(number: int) -> Exit:
    """Returns the exit status of a command that this signal ended."""
    return Exit.INTERRUPTED if number == signal.SIGINT else Exit.TERMINATED


def exit_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit from now on, as Ctrl-C raises KeyboardInterrupt, so that unfinished work is cleaned up."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(Exit.TERMINATED))


class Cancelled(Exception):
    """The work ends early because a `Cancellation`, or the caller, requested it. Not an error: unfinished work is cleaned up, or
    continued by the next run.
    """


class Cancellation:
    """True once cancelled. `signal`: the number of the first signal, 0 without one.

    Any thread may read it. Nothing takes a lock, as `threading.Event.set` would: a signal handler could wait for the code that it
    interrupts.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._cancelled = False

    def __bool__(self) -> bool:
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled if it is cancelled."""
        if self:
            raise Cancelled

    def exit_status(self, otherwise: int = Exit.OK) -> int:
        """Returns the exit status of the cancelled command, or `otherwise` if it was not cancelled."""
        return int(signal_status(self.signal) if self else otherwise)

    def handle_signal(self, number: int, _frame: FrameType | None = None) -> None:
        """Cancels; a signal handler."""
        self.signal = self.signal or number
        self._cancelled = True

    def listen(self) -> None:
        """Makes the signals that end commands cancel from now on. For the main thread."""
        for number in ending_signals():
            signal.signal(number, self.handle_signal)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Does the same within a context, and restores the previous handlers."""
        before = {number: signal.getsignal(number) for number in ending_signals()}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def sleep(self, seconds: float) -> None:
        """Sleeps for that time, or until cancelled."""
        end = time.monotonic() + seconds
        while not self and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_NAP))


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark for the user."""

    text: str
    """The remark."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The work is waiting; repeated while it waits."""

    why: str
    """The reason for waiting."""


Event = TypeVar("Event")
ProgressSink = Callable[[Event], None]


class ProgressSinks(Generic[Event]):
    """Passes events to several sinks in order."""

    def __init__(self, *sinks: ProgressSink[Event | Notice]) -> None:
        self._sinks = sinks

    def __call__(self, event: Event | Notice) -> None:
        for sink in self._sinks:
            sink(event)

    def notice(self, text: str) -> None:
        """Sends a Notice."""
        self(Notice(text))


_EVERY = 1.0  # seconds: users do not read faster


def is_service() -> bool:
    """True if a service manager waits for our state."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(line: str) -> bool:
    """Sends one assignment, such as "STATUS=3 of 12 hosts". Returns whether it was received; raises nothing, because no work
    depends on it.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):  # other addresses would be AF_VSOCK, of a virtual machine's host
        return False
    import socket  # only a service needs it

    name = f"\0{address[1:]}" if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as channel:
            channel.sendto(line.encode("utf-8", "backslashreplace"), name)
    except OSError:
        return False
    return True


class Status:
    """The line in `systemctl status`, sent at most once a second, however often it is changed."""

    def __init__(self) -> None:
        self._sent = 0.0
        self._line = ""

    def say(self, line: str) -> None:
        """Sends an important state now."""
        if line != self._line:
            self._line, self._sent = line, time.monotonic()
            tell(f"STATUS={' '.join(line.split())}")

    def go_on(self, line: Callable[[], str]) -> None:
        """Sends the progress; makes the line only if the last one is a second old."""
        if time.monotonic() - self._sent >= _EVERY:
            self.say(line())
