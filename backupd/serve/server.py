"""Accepts connections, each answered by a thread of its own, until it has been idle for long enough or is told to stop."""

import logging
import select
import socket
import threading
import time
from contextlib import suppress

from backupd.serve.answering import answer
from backupd.serve.context import ServiceContext
from btrkeep.serving.protocol import RequestRefused, error_line

log = logging.getLogger("backupd.serve")

AT_ONCE = 16
"""Connections; whoever comes beyond is told that it is busy."""
_LOOK = 0.5
_BUSY = error_line(RequestRefused("too much is asked at once", "try again in a moment", "busy"))


class Server:
    """`idle` is seconds without a connection after which it ends, `longest` seconds after which it ends in the first
    moment without one; None: never. As long as a backup waits for its turn it ends neither way.
    """

    def __init__(
        self,
        service: ServiceContext,
        listening: socket.socket,
        allowed: frozenset[int],
        idle: float | None,
        longest: float | None = None,
    ) -> None:
        self._service, self._listening, self._allowed = service, listening, allowed
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
        """Ends it soon. What is being answered is left where it is."""
        self._stop.set()

    def _done(self) -> str:
        now = time.monotonic()
        with self._lock:
            if self._under_way or self._service.queue.waits:
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
            free = self._under_way < AT_ONCE
            self._under_way += free
        if free:
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            return
        log.warning("busy: %d connections are open", AT_ONCE)
        with connection, suppress(OSError):
            connection.send(_BUSY, socket.MSG_DONTWAIT)

    def _answer(self, connection: socket.socket) -> None:
        try:
            answer(self._service, connection, self._allowed)
            self._service.tell()
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()
