"""The client of the root service: `RootServiceClient(socket, who).ask("browse", host="web1", ...)`."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from btrkeep.descriptors import Closing
from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import (
    FAILED,
    HEAD,
    LONGEST_ANSWER,
    LONGEST_FRAME,
    RequestRefused,
    StreamHeader,
    read_answer,
    request_line,
)

__all__ = ["Absent", "RootServiceClient", "Stream"]

PATIENCE = 120.0
_PIECE = 64 << 10
_QUEUEING, _PAUSE = 5.0, 0.02  # seconds
_TIMEVAL = struct.Struct("ll")


class Absent(OperatorError):
    """The service is not listening, or has disappeared."""


class RootServiceClient:
    """A client of the service of one pool, for one user. `patience`: seconds without a byte, after which the service counts as
    absent.

    `session`: the user's login or token; without one, only root gets answers, in the name of `who`. Several threads may use it:
    each request is a separate connection.
    """

    def __init__(self, socket: Path, who: str, patience: float = PATIENCE, session: str | None = None) -> None:
        self.socket, self.who, self.patience, self.session = socket, who, patience, session

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Returns the answer in the types of JSON. Raises RequestRefused, Absent, and UsageError for a request that is too long."""
        with closing(_Line(self, request_line(verb, self.who, arguments, self.session))) as line:
            answer = line.answer()
        if isinstance(answer, StreamHeader):
            raise RequestRefused(f"{verb} is answered with a stream", "this is a bug in the client")
        return answer

    def stream(self, verb: str, **arguments: Any) -> "Stream":
        """Opens a stream; close it, best as a context. Raises RequestRefused, Absent, and UsageError."""
        line = _Line(self, request_line(verb, self.who, arguments, self.session))
        try:
            answer = line.answer()
            if not isinstance(answer, StreamHeader):
                raise RequestRefused(f"{verb} is not answered with a stream", "this is a bug in the client")
        except OperatorError:
            line.close()
            raise
        return Stream(line, answer)


class Stream(Closing):
    """Yields bytes as they arrive, once. Raises RequestRefused if the service fails midway, Absent if it disappears
    before the end.
    """

    def __init__(self, line: "_Line", streamed: StreamHeader) -> None:
        self._line = line
        line.wait_in_kernel()
        self.name, self.type, self.length = streamed.name, streamed.type, streamed.length

    def __iter__(self) -> Iterator[bytes]:
        while size := HEAD.unpack(self._line.exactly(HEAD.size))[0]:
            if size == FAILED:
                self._line.answer()
                raise RequestRefused("the service failed, and gave no reason")
            if size > LONGEST_FRAME:
                raise RequestRefused("the service sent an invalid frame", "check that it has the same version")
            yield self._line.exactly(size)

    def close(self) -> None:
        """Informs the service that the rest is not needed."""
        self._line.close()


class _Line:
    """A connection on which the request has been sent."""

    def __init__(self, agent: RootServiceClient, request: bytes) -> None:
        self._agent = agent
        self._held = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(agent.patience)
        try:
            self._connect()
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered early: that can still be read
                self._socket.sendall(request)
        except OSError as error:
            self._socket.close()
            raise self._absent(error) from error

    def _connect(self) -> None:
        """Connects repeatedly, because connecting with a time limit fails at once if the queue of the service is full. Raises
        OSError.
        """
        end = time.monotonic() + _QUEUEING
        while True:
            try:
                return self._socket.connect(str(self._agent.socket))
            except BlockingIOError:
                if time.monotonic() > end:
                    self._socket.close()
                    raise RequestRefused("too many requests at once", "try again in a moment", "busy") from None
                time.sleep(_PAUSE)

    def answer(self) -> Any:
        """Returns the decoded next line. Raises RequestRefused or Absent."""
        searched = 0
        while (end := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            if searched > LONGEST_ANSWER:
                raise RequestRefused("the service's answer is incomplete")
            self._more()
        return read_answer(self.exactly(end + 1))

    def exactly(self, size: int) -> bytes:
        """Returns the next bytes, that many. Raises Absent."""
        parts = []
        if self._held:
            parts.append(bytes(self._held[:size]))
            del self._held[:size]
            size -= len(parts[0])
        while size:
            parts.append(self._received(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def wait_in_kernel(self) -> None:
        """From now on one call receives all requested bytes, which is much faster for frames; the time limit remains."""
        self._socket.settimeout(None)
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(*divmod(int(self._agent.patience * 1e6), 10**6))
        )

    def _more(self) -> None:
        self._held += self._received(_PIECE, 0)

    def _received(self, size: int, flags: int = socket.MSG_WAITALL) -> bytes:
        try:
            data = self._socket.recv(size, flags)
        except OSError as error:
            raise self._absent(error) from error
        if not data:
            raise Absent("the root service ended before it answered", _HINT)
        return data

    def _absent(self, error: OSError) -> Absent:
        reason = "no answer in time" if isinstance(error, TimeoutError | BlockingIOError) else error.strerror or str(error)
        return Absent(f"the root service cannot be reached: {reason}", _HINT)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


_HINT = "check that it runs: `systemctl status 'btrkeep-serve@*.socket'`"
