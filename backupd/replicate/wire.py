"""The protocol of a replication: requests are lines of JSON, answers are frames.

A frame is its kind, its length, and its data: an object of JSON, a piece of a stream, or the end of an answer. An answer is objects
or pieces, and then END with an object: {} or an error. An empty piece is a sign of life. Hosts, backups, sizes and times are parsed
from such objects here. Nothing from the other server is trusted before it has been checked, and everything has a maximum length.
"""

import fcntl
import json
import os
import select
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from btrkeep.config.sources import name_fault
from btrkeep.decisions.replication import RemoteBackup
from btrkeep.errors import OperatorError
from btrkeep.units import format_duration, format_size, parse_backup_name, parse_time

PROTOCOL = 1
OBJECT, PIECE, END = b"o", b"p", b"e"
_REQUEST = b"{"  # every request starts with it, and no frame does
LONGEST_PIECE = 1 << 18
KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT = (
    30.0,
    240.0,
)  # seconds between keep-alives, and of silence until the connection counts as lost
_LONGEST_OBJECT = 16 << 20  # bytes: the list of a host with some ten thousand backups
_LOOK = 500  # ms
_SPAN, _LEAST = 7200.0, 4 << 20  # seconds, bytes: 600 bytes a second, a tenth of a modem's rate
_LONGEST_UNREAD = 86400.0  # seconds: the other server's own configuration sets how long it may pause
_HEAD = struct.Struct(">cI")
_INT = struct.Struct("i")
_NOT_UNDERSTOOD = (ValueError, TypeError, RecursionError)


class ConnectionBroken(OperatorError):
    """The other server has disconnected, or sent an unexpected message."""


class OtherAsks(ConnectionBroken):
    """The other server sends a request instead of answering: the key reaches `receive-only` there."""


class RemoteRefused(OperatorError):
    """The other server refused the request, with a reason."""


class UnreadableThere(RemoteRefused):
    """The other server cannot read the requested backup from its disk. `parent`: it is the parent of the difference."""

    def __init__(self, message: str, hint: str = "", *, parent: bool = False) -> None:
        super().__init__(message, hint)
        self.parent = parent


UNREADABLE, UNREADABLE_PARENT = "unreadable", "unreadable-parent"
"""The `code` beside the error in END, for UnreadableThere."""


def frame(kind: bytes, content: bytes) -> bytes:
    """Returns a frame."""
    return _HEAD.pack(kind, len(content)) + content


def object_frame(document: Mapping[str, Any], kind: bytes = OBJECT) -> bytes:
    """Returns a frame with an object."""
    return frame(kind, json.dumps(document).encode())


def parse_object(content: bytes) -> dict[str, Any]:
    """Parses an object. Raises ConnectionBroken."""
    try:
        document = json.loads(content)
    except _NOT_UNDERSTOOD as error:
        raise ConnectionBroken(f"the other server sent invalid JSON: {error!r}") from None
    if not isinstance(document, dict):
        raise ConnectionBroken("the other server sent JSON that is not an object")
    return document


class AnswerReader:
    """Reads answers from a descriptor: each byte must arrive within `patience` seconds, and in each span of `_SPAN` seconds at
    least `_LEAST` bytes: a server that sends a byte now and then would hold the host's lock for years. An empty piece counts for
    neither.

    With a `pulse`, something, even an empty piece, must arrive within that many seconds. `on_read` is called with the number of
    bytes received, and with 0 from time to time while none arrive; it may raise. `why_ended` is called when the connection has
    ended.
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
        """Returns whether the end of an answer is still missing; and whether a frame was read only in part."""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def answer(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the frames of one answer, kind and content, without its END. Raises ConnectionBroken, RemoteRefused."""
        self.begin_span()
        self.is_open, self.pulse = True, None
        return self.rest()

    def begin_span(self) -> None:
        """Starts a new span: the other server had a reason to send little."""
        self._since, self._read, self._waited = time.monotonic(), 0, 0.0

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the unread rest of the answer in the same way."""
        while True:
            kind, length = _HEAD.unpack(self._exactly(_HEAD.size, counts=False))
            if kind == _REQUEST:
                raise OtherAsks("receive-only answers there, which receives backups but does not send any")
            if kind not in (OBJECT, PIECE, END) or length > (LONGEST_PIECE if kind == PIECE else _LONGEST_OBJECT):
                raise ConnectionBroken("the other server sent an unexpected message")
            content = self._exactly(length)
            self.is_torn = False
            if kind == END:
                self.is_open = False
                end = parse_object(content)
                if error := str(end.get("error") or "")[:1000]:
                    if end.get("code") in (UNREADABLE, UNREADABLE_PARENT):
                        raise UnreadableThere(error, parent=end["code"] == UNREADABLE_PARENT)
                    raise RemoteRefused(error)
                return
            yield kind, content

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yields the objects of one answer. Raises ConnectionBroken, RemoteRefused."""
        for kind, content in self.answer():
            if kind != OBJECT:
                raise ConnectionBroken("the other server sent a stream that was not requested")
            yield parse_object(content)

    def _exactly(self, length: int, *, counts: bool = True) -> bytes:
        pieces, left = list[bytes](), length
        while left:
            self._wait()
            piece = os.read(self._fd, left)
            if not piece:
                raise ConnectionBroken(self._why_ended() or "the connection ended in the middle of an answer")
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
            raise ConnectionBroken(f"the other server has sent less than {format_size(_LEAST)} in {format_duration(_SPAN)}")

    def _wait(self) -> None:
        begun = time.monotonic()
        left = self.patience - self._waited
        limit = left if self.pulse is None else min(left, self.pulse)
        while not self._poll.poll(_LOOK):
            self._on_read(0)
            if time.monotonic() - begun > limit:
                raise _silent(self.patience if limit == left else limit)
        self._waited += time.monotonic() - begun
        if self._waited > self.patience:  # empty pieces arrived more often than it checks
            raise _silent(self.patience)


def _silent(seconds: float) -> ConnectionBroken:
    return ConnectionBroken(f"the other server has sent nothing for {format_duration(seconds)}")


def is_unread(pipe: int) -> bool:
    """Returns True if the pipe has unread data. Raises BrokenPipeError if it has no reader."""
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        raise BrokenPipeError
    return bool(_INT.unpack(fcntl.ioctl(pipe, termios.FIONREAD, bytes(_INT.size)))[0])


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Writes everything. Raises OSError; BrokenPipeError also if writes do not wait and nothing was read for a day."""
    left = memoryview(content)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            if not poll.poll(_LONGEST_UNREAD * 1000):
                raise BrokenPipeError from None


def write_watched(pipe: int, content: bytes | memoryview, poll: Callable[[], None]) -> None:
    """Writes everything into a pipe whose writes do not wait. `poll` is called from time to time while nothing is read, and may
    raise.
    """
    writable = select.poll()
    writable.register(pipe, select.POLLOUT)
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(pipe, left) :]
        except BlockingIOError:
            if not writable.poll(_LOOK):
                poll()


_MOST_BACKUPS = 100_000
_KEPT_NOTES = 64 << 10
_LARGEST_SIZE = 1 << 63


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """A host in the other pool's list."""

    name: str
    """Its name there."""
    was: tuple[str, ...]
    """Earlier names of the host there."""
    backups: tuple[RemoteBackup, ...]
    """Its backups there."""
    held: dict[str, tuple[str | None, str]]
    """Reason and end of the holds, by the backup's name."""
    copy_of: str | None = None
    """The id of the pool that the other server fetches it from; None: that server backs it up itself."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The other pool's announcement of a stream. `notes`: its notes about the backup; `bytes`: the maximum length of the stream;
    `total`: of all files of the backup. None: unknown.
    """

    notes: dict[str, dict[str, Any]]
    bytes: int | None
    stream: int
    total: int | None = None


def size_in(answer: Mapping[str, Any], name: str) -> int | None:
    """Returns a number of bytes from the other server; None if it sent no valid one."""
    size = answer.get(name)
    return size if type(size) is int and 0 <= size < _LARGEST_SIZE else None


def time_in(answer: Mapping[str, Any]) -> datetime | None:
    """Returns the time of the other server's clock."""
    try:
        return parse_time(str(answer.get("now")))
    except ValueError:
        return None


def host_in(answer: dict[str, Any]) -> RemoteHost:
    """Returns the host that the other server describes. Raises ConnectionBroken if the description is invalid."""
    name, was, backups = answer.get("host"), answer.get("was"), answer.get("backups")
    if not isinstance(name, str) or name_fault(name) or not isinstance(was, list) or not isinstance(backups, list):
        raise ConnectionBroken("the other server sent an invalid host entry")
    if len(backups) > _MOST_BACKUPS or not all(isinstance(old, str) for old in was):
        raise ConnectionBroken(f"the other server sent an invalid host entry: {name}")
    far_backups, held = [], {}
    for backup in backups:
        if not _is_backup(backup):
            raise ConnectionBroken(f"the other server sent an invalid backup entry for {name}")
        far_backups.append(RemoteBackup(backup[0], backup[1], intern(backup[2])))
        if len(backup) > 3:
            held[backup[0]] = (backup[3][0], backup[3][1])
    copy_of = answer.get("copy_of")
    return RemoteHost(name, tuple(was), tuple(far_backups), held, copy_of if isinstance(copy_of, str) else None)


def words_of(host: RemoteHost) -> Iterator[str]:
    """Yields the texts about the host that the other server sent, of any length."""
    yield from host.was
    yield host.copy_of or ""
    for until, why in host.held.values():
        yield until or ""
        yield why


def _is_backup(item: Any) -> bool:
    if not isinstance(item, list) or len(item) not in (3, 4) or not all(isinstance(text, str) for text in item[:3]):
        return False
    if parse_backup_name(item[0]) is None or len(item[1]) != 36 or not item[1].isascii() or item[2] not in ("complete", "suspect"):
        return False
    hold = item[3] if len(item) == 4 else [None, ""]
    return isinstance(hold, list) and len(hold) == 2 and isinstance(hold[1], str) and isinstance(hold[0], str | None)


def parse_stream_info(answer: dict[str, Any], version: int) -> StreamInfo:
    """Returns the other server's announcement of a stream, of at most that version. Raises ConnectionBroken."""
    notes = answer.get("notes")
    if not isinstance(notes, dict) or len(json.dumps(notes)) > _KEPT_NOTES:
        raise ConnectionBroken("the other server sent an invalid description of a backup")
    kept = {key: dict(note) for key, note in notes.items() if isinstance(note, dict)}
    stream = answer.get("stream")
    stream = stream if type(stream) is int and 0 < stream <= version else 1
    return StreamInfo(kept, size_in(answer, "bytes"), stream, size_in(answer, "total"))
