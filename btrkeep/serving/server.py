"""Accepts connections, each answered by its own thread, until it has been idle long enough or is stopped."""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from btrkeep.serving.protocol import RequestRefused, error_line

log = logging.getLogger("btrkeep.serving")

AT_ONCE = 16
"""Connections; whoever comes beyond is told that it is busy."""
_LOOK = 0.5
_BUSY = error_line(RequestRefused("too much is asked at once", "try again in a moment", "busy"))


class Server:
    """`answer` has a thread for each connection, and closes it. `idle` is seconds without a connection after which the server ends,
    `longest` seconds after which it ends in the first moment without one; None: never. While `busy` it ends neither way.
    """

    def __init__(
        self,
        answer: Callable[[socket.socket], None],
        listening: socket.socket,
        idle: float | None = None,
        longest: float | None = None,
        busy: Callable[[], bool] = lambda: False,
        at_once: int = AT_ONCE,
    ) -> None:
        self._answer_it, self._listening, self._busy, self._at_once = answer, listening, busy, at_once
        self._idle, self._longest = idle, longest
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._under_way = 0
        self._last = time.monotonic()
        self._stop = threading.Event()

    def run(self) -> str:
        """Answers; gives why it ended. A connection that comes while it ends waits in the socket for the next service."""
        self._listening.setblocking(False)
        while not self._stop.is_set():
            if reason := self._done():
                return reason
            if select.select([self._listening], [], [], _LOOK)[0]:
                self._accept()
        return "told to stop"

    def stop(self) -> None:
        """Stops soon, without finishing the requests in progress."""
        self._stop.set()

    def _done(self) -> str:
        now = time.monotonic()
        with self._lock:
            if self._under_way or self._busy():
                return ""
            if self._idle is not None and now - self._last >= self._idle:
                return f"nothing was asked for {self._idle:.0f} s"
            return "served for long enough" if self._longest is not None and now - self._begun >= self._longest else ""

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # too many open files, say: what comes waits
            log.warning("a connection cannot be accepted: %s", error.strerror)
            time.sleep(_LOOK)
            return
        with self._lock:
            free = self._under_way < self._at_once
            self._under_way += free
        if free:
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:
                why = "no further thread can be started: the limit of processes is reached"
                with self._lock:
                    self._under_way -= 1
            else:
                return
        else:
            why = f"{self._at_once} connections are open"
        log.warning("busy: %s", why)
        with connection, suppress(OSError):
            connection.send(_BUSY, socket.MSG_DONTWAIT)

    def _answer(self, connection: socket.socket) -> None:
        try:
            self._answer_it(connection)
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()
