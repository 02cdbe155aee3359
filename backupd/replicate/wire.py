"""What the two sides of a replication say to each other: requests are lines of JSON, answers are frames.

A frame is its kind, its length, and so many bytes: an object of JSON, a piece of a stream, or the end of an answer. An answer is
objects or pieces, and then END with an object: {} or what went wrong. A piece of no bytes says that more is to come. Nothing that
the other side says is believed before it has been looked at, and nothing is longer than it may be.
"""

import fcntl
import json
import os
import select
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from btrkeep.errors import OperatorError
from btrkeep.units import format_duration, format_size

PROTOCOL = 1
OBJECT, PIECE, END = b"o", b"p", b"e"
_REQUEST = b"{"  # no frame begins so, and each request does
LONGEST_PIECE = 1 << 18
BEAT, PULSE = 30.0, 240.0  # seconds: as often does a stream say something, and after so many of silence nobody is there
_LONGEST_OBJECT = 16 << 20  # a host's list of some ten thousand backups
_LOOK = 500  # ms
_SPAN, _LEAST = 7200.0, 4 << 20  # seconds, bytes: 600 bytes a second; a modem has ten times that
_LONGEST_UNREAD = 86400.0  # seconds: how long the other side may stand still its own configuration says
_HEAD = struct.Struct(">cI")
_INT = struct.Struct("i")
_NOT_UNDERSTOOD = (ValueError, TypeError, RecursionError)


class ConnectionBroken(OperatorError):
    """The other side is gone, or says what is none of the protocol."""


class OtherAsks(ConnectionBroken):
    """The other side asks where it should answer: the key reaches `receive-only` there."""


class Refused(OperatorError):
    """The other side does not do what it was asked for, and says why."""


class UnreadableThere(Refused):
    """The disk of the other side does not give back the backup that was asked for. `parent`: it is the parent of the difference."""

    def __init__(self, message: str, hint: str = "", *, parent: bool = False) -> None:
        super().__init__(message, hint)
        self.parent = parent


UNREADABLE, UNREADABLE_PARENT = "unreadable", "unreadable-parent"
"""What END says as its `code` beside the error, for UnreadableThere."""


def frame(kind: bytes, content: bytes) -> bytes:
    """A frame."""
    return _HEAD.pack(kind, len(content)) + content


def object_frame(found: Mapping[str, Any], kind: bytes = OBJECT) -> bytes:
    """A frame of an object."""
    return frame(kind, json.dumps(found).encode())


def parse_object(content: bytes) -> dict[str, Any]:
    """The object. Raises ConnectionBroken."""
    try:
        found = json.loads(content)
    except _NOT_UNDERSTOOD as error:
        raise ConnectionBroken(f"the other side says what cannot be understood: {error!r}") from None
    if not isinstance(found, dict):
        raise ConnectionBroken("the other side says something that is no object")
    return found


class AnswerReader:
    """Answers, read from a descriptor: each byte must come within `patience` seconds, and in each span of `_SPAN` seconds at least
    `_LEAST` bytes: whoever trickles would hold a host's lock for years. A piece of no bytes counts for neither; with a `pulse`
    something must come within so many seconds, be it such a piece.

    `on_read` is told of each count of bytes that came, and of 0 now and then while none does; it may raise. `why_ended` is asked
    when the connection has ended.
    """

    def __init__(
        self,
        fd: int,
        on_read: Callable[[int], None] = lambda _: None,
        patience: float = 60.0,
        why_ended: Callable[[], str] = lambda: "",
    ) -> None:
        self._fd = fd
        self._on_read, self._why_ended = on_read, why_ended
        self.patience, self._waited = patience, 0.0
        self.pulse: float | None = None
        self.begin_span()
        self.is_open, self.is_torn = False, False
        """True if the end of an answer is still to come; and whether part of a frame was read and not the rest."""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def answer(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the frames of one answer, kind and content, without its END. Raises ConnectionBroken, Refused."""
        self.begin_span()
        self.is_open, self.pulse = True, None
        return self.rest()

    def begin_span(self) -> None:
        """Begins to measure a span: the other side had a reason to send little."""
        self._since, self._read, self._waited = time.monotonic(), 0, 0.0

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rest of the answer, which nobody has taken yet, in the same way."""
        while True:
            kind, length = _HEAD.unpack(self._exactly(_HEAD.size, counts=False))
            if kind == _REQUEST:
                raise OtherAsks("receive-only answers there, which takes backups and sends none")
            if kind not in (OBJECT, PIECE, END) or length > (LONGEST_PIECE if kind == PIECE else _LONGEST_OBJECT):
                raise ConnectionBroken("the other side says what is none of the protocol")
            content = self._exactly(length)
            self.is_torn = False
            if kind == END:
                self.is_open = False
                end = parse_object(content)
                if error := str(end.get("error") or "")[:1000]:
                    if end.get("code") in (UNREADABLE, UNREADABLE_PARENT):
                        raise UnreadableThere(error, parent=end["code"] == UNREADABLE_PARENT)
                    raise Refused(error)
                return
            yield kind, content

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yields the objects of one answer. Raises ConnectionBroken, Refused."""
        for kind, content in self.answer():
            if kind != OBJECT:
                raise ConnectionBroken("the other side sends a stream that nobody asked for")
            yield parse_object(content)

    def _exactly(self, length: int, *, counts: bool = True) -> bytes:
        pieces, left = list[bytes](), length
        while left:
            self._wait()
            piece = os.read(self._fd, left)
            if not piece:
                raise ConnectionBroken(self._why_ended() or "the connection has ended in the middle of an answer")
            self.is_torn = True
            pieces.append(piece)
            left -= len(piece)
            if counts:
                self._waited = 0.0
            self._require_rate(len(piece))
            self._on_read(len(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _require_rate(self, size: int) -> None:
        self._read += size
        now = time.monotonic()
        if self._read >= _LEAST:
            self._since, self._read = now, 0
        elif now - self._since > _SPAN:
            raise ConnectionBroken(f"the other side has sent less than {format_size(_LEAST)} in {format_duration(_SPAN)}")

    def _wait(self) -> None:
        begun = time.monotonic()
        left = self.patience - self._waited
        limit = left if self.pulse is None else min(left, self.pulse)
        while not self._poll.poll(_LOOK):
            self._on_read(0)
            if time.monotonic() - begun > limit:
                raise _silent(self.patience if limit == left else limit)
        self._waited += time.monotonic() - begun
        if self._waited > self.patience:  # pieces of no bytes came, more often than it looks
            raise _silent(self.patience)


def _silent(seconds: float) -> ConnectionBroken:
    return ConnectionBroken(f"the other side has said nothing for {format_duration(seconds)}")


def is_unread(pipe: int) -> bool:
    """Returns True if something lies in the pipe that its reader has not read yet. Raises BrokenPipeError if nobody reads it."""
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        raise BrokenPipeError
    return bool(_INT.unpack(fcntl.ioctl(pipe, termios.FIONREAD, bytes(_INT.size)))[0])


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Writes all of it. Raises OSError; BrokenPipeError too when writes do not wait and nobody has read anything for a day."""
    left = memoryview(content)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            if not poll.poll(_LONGEST_UNREAD * 1000):
                raise BrokenPipeError from None


def write_watched(pipe: int, content: bytes | memoryview, look: Callable[[], None]) -> None:
    """The same into a pipe whose writes do not wait. `look` is called now and then while nobody reads, and may raise."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(pipe, left) :]
        except BlockingIOError:
            if not poll.poll(_LOOK):
                look()
