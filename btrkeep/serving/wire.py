"""A connection to a service: the request, its answer, and how long each may take."""

import select
import socket
import time
from collections.abc import Callable

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import FAILED, HEAD, LONGEST_REQUEST, Request, RequestRefused, error_line, read_request

ASKING = 10.0
"""Seconds in which the request must be there, however slowly it comes."""
TAKING = 600.0
"""Seconds in which a frame must be taken: a browser may be behind a slow line, or its person may have paused the download."""
USUAL_FRAME = 256 << 10
"""Bytes that have so many seconds; a larger frame has more. The dashboard takes no frame while its client has not got the last one,
and lets a client be that takes 64 KiB in two minutes.
"""
STALLED = 10.0
"""Seconds without a byte after which it is checked whether the client still has the right to a stream."""
READING = 60.0
"""Seconds in which an answer must be read: it is in memory until then."""
_TAIL = 256 << 10


class ClientGone(Exception):
    """The client has disconnected or reads nothing: the work ends. This is not an error."""


class Wire:
    """The connection, its time limits and whether anything has been answered yet."""

    def __init__(self, connection: socket.socket, asking: float = ASKING, taking: float = TAKING) -> None:
        self._socket, self._asking, self._taking = connection, asking, taking
        self.answered = self.streaming = False
        self.sent = 0

    def request(self) -> Request:
        """Raises RequestRefused, of kind usage, and ClientGone."""
        end, line = time.monotonic() + self._asking, bytearray()
        while b"\n" not in line[-_TAIL:]:
            if len(line) >= LONGEST_REQUEST:
                raise RequestRefused(f"a request is a line of {LONGEST_REQUEST} bytes at most", kind="usage")
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                piece = self._socket.recv(LONGEST_REQUEST - len(line))
            except TimeoutError:
                raise RequestRefused(f"the request was not there in {self._asking:.0f} s", kind="usage") from None
            except OSError as error:
                raise ClientGone from error
            if not piece:
                raise ClientGone
            line += piece
        return read_request(bytes(line))

    def send(self, data: bytes | bytearray | memoryview, within: float | None = None) -> None:
        """Sends data; `within`: seconds for all of it, if not those of a frame. Raises ClientGone."""
        self._socket.settimeout(within or self._taking)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ClientGone from error
        self.sent += len(data)

    def send_while(self, data: bytes | bytearray | memoryview, require: Callable[[], None], look: float = STALLED) -> None:
        """Sends a part of a stream. Calls `require` after each `look` seconds in which the client reads nothing. Raises ClientGone,
        also if `require` raises OperatorError: an error cannot be sent within a frame.
        """
        end = time.monotonic() + self._taking * max(1.0, len(data) / USUAL_FRAME)
        with memoryview(data) as whole:
            rest = whole
            while rest:
                self._socket.settimeout(max(0.001, min(look, end - time.monotonic())))
                try:
                    count = self._socket.send(rest)
                except TimeoutError as error:
                    if time.monotonic() >= end:
                        raise ClientGone from error
                    self._require(require)
                    continue
                except OSError as error:
                    raise ClientGone from error
                rest = rest[count:]
        self.sent += len(data)

    def _require(self, require: Callable[[], None]) -> None:
        try:
            require()
        except OperatorError as error:
            raise ClientGone from error

    def answer(self, line: bytes) -> None:
        """The only line, or the one before the frames. Raises ClientGone."""
        self.answered = True
        self.send(line, min(READING, self._taking))

    def fail(self, error: OperatorError) -> None:
        """Sends an error, even in the middle of a stream. Raises ClientGone."""
        if self.streaming:
            self.streaming = False
            self.send(HEAD.pack(FAILED) + error_line(error))
        elif not self.answered:
            self.answer(error_line(error))

    def gone(self) -> bool:
        """Returns True if the client has closed the connection."""
        look = select.poll()
        look.register(self._socket, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in look.poll(0))
