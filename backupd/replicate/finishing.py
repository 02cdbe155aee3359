"""What is done for one host beside what comes of the next one, and how far a host is."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class HostProgress:
    """How far a host is, in bytes. `came`: of the streams before the one that is coming; `named`: of backups that have their names.

    One thread receives and another one names; each of these is written by one thread at a time.
    """

    came: int = 0
    coming: int = 0
    named: int = 0
    announced: int | None = None
    is_received: bool = False
    is_named: bool = True

    @property
    def is_over(self) -> bool:
        return self.is_received and self.is_named

    @property
    def unnamed(self) -> int:
        """Returns the bytes of what has come and has no name yet."""
        return max(0, self.came + self.coming - self.named)

    @property
    def left(self) -> int:
        """Returns the bytes that are still to come of the stream under way, as far as the other side says."""
        return max(0, (self.announced or 0) - self.coming)

    def expect(self, size: int | None) -> None:
        """Begins a further stream."""
        self.came, self.coming, self.announced = self.came + self.coming, 0, size


class Finisher:
    """Ends the work on one host in a second thread, while the thread that has this goes on with the next host: one at a time.

    `guarded` runs the work of a host and keeps what goes wrong; whether all went well.
    """

    def __init__(self, guarded: Callable[[str, Callable[[], None]], bool]) -> None:
        self._guarded = guarded
        self._thread: threading.Thread | None = None
        self._host = ""
        self._is_well = True

    def begin(self, host: str, work: Callable[[], None]) -> None:
        """Has the work done, after that of the host before."""
        self.wait()

        def run() -> None:
            self._is_well = self._guarded(host, work)

        self._host, thread = host, threading.Thread(target=run)
        try:
            thread.start()
        except RuntimeError:  # no further thread can be had
            run()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Waits for the end of what was begun."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def is_well(self, host: str) -> bool:
        """Returns False if that host's work was the last one, and failed; waits for its end."""
        if host != self._host:
            return True
        self.wait()
        return self._is_well
