"""One request being answered: who asks for what, and the way back to whoever asks."""

import json
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backupd.serve.context import ServiceContext
from backupd.serve.peer import Peer
from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import (
    FAILED,
    HEAD,
    LONGEST_FRAME,
    LONGEST_REQUEST,
    Request,
    RequestRefused,
    Streamed,
    error_line,
    read_request,
    stream_line,
)
from btrkeep.units import printable

ASKING = 10.0
"""Seconds in which the request must be there, however slowly it comes."""
TAKING = 600.0
"""Seconds in which a frame must be taken: a browser may be behind a slow line, or its person may have paused the download."""
_PIECE = 256 << 10


class ClientGone(Exception):
    """Whoever asked is gone, or takes nothing: the work ends. No error of anybody's."""


class Wire:
    """The connection, its time limits and whether anything has been answered yet."""

    def __init__(self, connection: socket.socket, asking: float = ASKING, taking: float = TAKING) -> None:
        self._socket, self._asking, self._taking = connection, asking, taking
        self.answered = self.streaming = False
        self.sent = 0

    def request(self) -> Request:
        """Raises RequestRefused, of kind usage, and ClientGone."""
        end, line = time.monotonic() + self._asking, bytearray()
        while b"\n" not in line[-_PIECE:]:
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

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Raises ClientGone."""
        self._socket.settimeout(self._taking)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ClientGone from error
        self.sent += len(data)

    def answer(self, line: bytes) -> None:
        """The only line, or the one before the frames. Raises ClientGone."""
        self.answered = True
        self.send(line)

    def fail(self, error: OperatorError) -> None:
        """Says that it failed, midway if it must be. Raises ClientGone."""
        if self.streaming:
            self.streaming = False
            self.send(HEAD.pack(FAILED) + error_line(error))
        elif not self.answered:
            self.answer(error_line(error))

    def gone(self) -> bool:
        """Whether whoever asked has closed the connection."""
        look = select.poll()
        look.register(self._socket, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in look.poll(0))


class Frames:
    """Something to write into, as into a file: what is written leaves as frames. One piece of it is all that lies in memory."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._held = bytearray()
        self._written = 0

    def write(self, data: bytes) -> int:
        """Raises ClientGone."""
        self._written += len(data)
        if len(data) + len(self._held) < _PIECE:
            self._held += data
            return len(data)
        self.flush()
        with memoryview(data) as view:
            for place in range(0, len(data), LONGEST_FRAME):
                self._send(view[place : place + LONGEST_FRAME])
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def flush(self) -> None:
        """What is held is sent. Raises ClientGone."""
        if self._held:
            self._send(self._held)
            self._held = bytearray()

    def writable(self) -> bool:
        """It is."""
        return True

    def end(self) -> None:
        """It is whole. Raises ClientGone."""
        self.flush()
        self._wire.streaming = False
        self._wire.send(HEAD.pack(0))

    def _send(self, piece: bytes | bytearray | memoryview) -> None:
        self._wire.send(HEAD.pack(len(piece)))
        self._wire.send(piece)


@dataclass(slots=True)
class Call:
    """What a verb's function is given. `arguments` are checked, and all there."""

    service: ServiceContext
    wire: Wire
    peer: Peer
    who: str
    arguments: Mapping[str, Any]
    frames: Frames | None = None

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def stream(self, name: bytes, kind: str, length: int | None) -> Frames:
        """Answers with a stream, which the function writes into; its return is the end. Raises ClientGone."""
        self.wire.answer(stream_line(Streamed(os.fsdecode(name), kind, length)))
        self.wire.streaming = True
        self.frames = Frames(self.wire)
        return self.frames

    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.wire.gone()


def in_words(request: Request, longest: int = 300) -> str:
    """A request for the log: one line, whatever is in it."""
    told = json.dumps(request.arguments)  # ASCII alone
    return f"{printable(request.verb[:40])} {told if len(told) <= longest else told[:longest] + '...'}"
