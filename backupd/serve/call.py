"""One request being answered: the caller, the request, and the connection back."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backupd.serve.context import ServiceContext
from btrkeep.serving.protocol import HEAD, LONGEST_FRAME, Request, Streamed, stream_line
from btrkeep.serving.server import Peer
from btrkeep.serving.viewer import Viewer
from btrkeep.serving.wire import Wire
from btrkeep.units import printable

_PIECE = 256 << 10
_LOOK = 1.0
"""Seconds after which it is looked up again whether the asker may have more: a slow line keeps a stream for days."""


class Frames:
    """A file-like writer: what is written is sent in frames. Only one piece is in memory.

    `require` raises RequestRefused if the caller loses the right to it.
    """

    def __init__(self, wire: Wire, require: Callable[[], None] = lambda: None) -> None:
        self._wire, self._require = wire, require
        self._looked = time.monotonic()
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
        """Sends buffered data. Raises ClientGone."""
        if self._held:
            self._send(self._held)
            self._held = bytearray()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def end(self) -> None:
        """Sends the end of the stream. Raises ClientGone."""
        self.flush()
        self._wire.streaming = False
        self._wire.send(HEAD.pack(0))

    def _send(self, piece: bytes | bytearray | memoryview) -> None:
        if time.monotonic() - self._looked > _LOOK:
            self._require()
            self._looked = time.monotonic()
        self._wire.send_while(HEAD.pack(len(piece)), self._require)
        self._wire.send_while(piece, self._require)


@dataclass(slots=True)
class Call:
    """The argument of a verb's function. `arguments` are validated and complete. `require` checks again whether the caller has
    the right to this request, and raises OperatorError.
    """

    service: ServiceContext
    wire: Wire
    peer: Peer
    viewer: Viewer
    arguments: Mapping[str, Any]
    require: Callable[[], None]
    frames: Frames | None = None

    @property
    def who(self) -> str:
        """Returns the name of the caller."""
        return self.viewer.name

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def stream(self, name: bytes, kind: str, length: int | None) -> Frames:
        """Answers with a stream, which the function writes into; its return is the end. Raises ClientGone."""
        self.wire.answer(stream_line(Streamed(os.fsdecode(name), kind, length)))
        self.wire.streaming = True
        self.frames = Frames(self.wire, self.require)
        return self.frames

    def gone(self) -> bool:
        """Returns True if the caller no longer waits for the answer."""
        return self.wire.gone()


def in_words(request: Request, longest: int = 300) -> str:
    """A request for the log: one line, whatever is in it."""
    told = json.dumps(request.arguments)  # ASCII alone
    return f"{printable(request.verb[:40])} {told if len(told) <= longest else told[:longest] + '...'}"
