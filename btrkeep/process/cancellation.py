"""The one cancel token: set by a signal or by a caller with a reason, checked between small steps of cancellable work."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from btrkeep.errors import Exit

_LONGEST_NAP = 0.05  # seconds until a sleeper sees that it is cancelled


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns SIGINT, SIGTERM, and SIGHUP (the terminal has closed) unless the parent ignores it, as nohup does."""
    both = (signal.SIGINT, signal.SIGTERM)
    return both if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*both, signal.SIGHUP)


def signal_status(number: int) -> Exit:
    """The exit status of a command that this signal ended."""
    return Exit.INTERRUPTED if number == signal.SIGINT else Exit.TERMINATED


def exit_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit from now on, as Ctrl-C raises KeyboardInterrupt, so that unfinished work is cleaned up."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(Exit.TERMINATED))


class Cancelled(Exception):
    """The work ends early because a `Cancellation`, or the caller, asked for it. Not an error: what is unfinished is cleaned up, or
    continued by the next run.
    """


class Cancellation:
    """True once cancelled. `signal`: the number of the first signal, 0 without one.

    Any thread may look at it. Nothing takes a lock, as `threading.Event.set` would: a signal handler could wait for the very code
    that it interrupts.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._cancelled = False

    def __bool__(self) -> bool:
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled once it is."""
        if self:
            raise Cancelled

    def exit_status(self, otherwise: int = Exit.OK) -> int:
        """Returns the exit status of the cancelled command, `otherwise` of one that was not cancelled."""
        return int(signal_status(self.signal) if self else otherwise)

    def handle_signal(self, number: int, _frame: FrameType | None = None) -> None:
        """Cancels; a signal handler."""
        self.signal = self.signal or number
        self._cancelled = True

    def listen(self) -> None:
        """Makes the ending signals cancel from now on. For the main thread."""
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
        """Sleeps so long, or until cancelled."""
        end = time.monotonic() + seconds
        while not self and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_NAP))
