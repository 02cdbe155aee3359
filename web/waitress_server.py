"""waitress, with a time limit for slow clients: a few slow browsers must not occupy the whole server.

waitress itself closes idle connections. But a client that requests much and reads nothing blocks a thread for ever; so does a
client that pipelines many requests and reads no answer; and a client that sends a request byte by byte occupies one of the limited
number of connections. waitress stores data that a client has not read in memory and in temporary files: a viewer with too many
unread bytes gets no further answer.
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flask import abort
from waitress import channel, server, task

from btrkeep.serving.viewer import Holder, Viewer, holders
from web.dashboard_settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

IDLE = 75
"""Seconds until the first byte of the next request on a connection; nginx closes its own after 60."""
ASKING = 30.0
"""Seconds for a whole request; for a long body, that many more for each MiB."""
TAKING = 120.0
"""Seconds in which a client must read at least LEAST bytes of its answer: its connection may be slow."""
LEAST = 64 << 10
CONNECTIONS = 200
AHEAD = 1 << 20
"""Bytes of a stream that are read before the client has received them."""
IN_MEMORY = 4 << 20
"""Bytes from which waitress moves an answer to a temporary file, which costs more than the rest of sending it. A list has at most
this many; /metrics has more than a mebibyte from 1,000 hosts.
"""
HURRY = 5.0
"""Seconds for the first byte and for the whole request, while more than half of CONNECTIONS are open."""
IN_ALL, OF_ONE = 64 << 20, 16 << 20
"""Unread bytes, in all and of one viewer, above which there is no further answer."""
MOST = 256 << 20
"""Unread bytes above which even viewers without unread bytes get no answer: the requests of one viewer at the same time, on all
threads of the server, must not be enough to refuse all others.
"""
_CHECK_EVERY = 5  # seconds between two checks
_MEBIBYTE = 1 << 20
_ACKED = struct.Struct("120xQ")  # tcpi_bytes_acked in struct tcp_info
_AT_ONCE = struct.pack("ii", 1, 0)  # struct linger: unsent data is dropped


class AnswerTask(task.WSGITask):  # type: ignore[misc]  # waitress has no types
    """An answer. Pieces of a stream are not joined with the marks around them."""

    def write(self, data: bytes) -> None:
        """Sends a piece, in the form that the headers announce."""
        if data and self.channel.streams and self.wrote_header and self.chunked_response:
            self.channel.send_now((b"%X\r\n" % len(data), data, b"\r\n"))
        else:
            super().write(data)


class Channel(channel.HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that records since when it waits for its client."""

    task_class = AnswerTask
    will_close = False
    streams = False
    """True while the answer is a stream, of which there are few at the same time: see send_now."""
    unsent = 0
    """Bytes of a piece of a stream that the client has not received yet."""
    begun: float | None = None
    """When the incoming request began; None: it is complete."""
    mark: tuple[float, int] | None = None
    """When data began to wait for the client, and how many bytes the client had received then; None: no data waits."""
    readers: tuple[Holder, ...] = ()
    """The users of the last request."""

    def received(self, data: bytes) -> bool:
        """Receives a part of a request. Clears the start time when the request is complete."""
        is_received: bool = super().received(data)
        self.begun = None if self.request is None else self.begun or time.monotonic()
        return is_received

    def service(self) -> None:
        """Handles one request, and drops pipelined ones, because their answers would accumulate. Browsers send none."""
        with self.requests_lock:
            later = self.requests[1:]
            del self.requests[1:]
        if later:
            self.requests[0].headers["CONNECTION"] = "close"
            for request in later:
                request.close()
        self.streams = False
        serve_on(self)
        super().service()

    def write_soon(self, data: bytes) -> int:
        """Takes a part of an answer. Raises ClientDisconnected."""
        if self.streams:
            return self.send_now((data,))
        taken: int = super().write_soon(data)
        return taken

    def send_now(self, parts: Sequence[bytes]) -> int:
        """Sends all parts from this thread, and waits for the client. waitress would copy each byte five times, and through a
        temporary file if a mebibyte waits, which takes seven times as long. Raises ClientDisconnected.
        """
        rest = [memoryview(part) for part in parts if part]
        size = self.unsent = sum(map(len, parts))
        try:
            while rest:
                line = self._send_some(rest)
                if line is not None and not _can_take(line):
                    self._break_off()
        finally:
            self.unsent = 0
        return size

    def _send_some(self, rest: list[memoryview]) -> int | None:
        """Removes from `rest` what the client received; returns the descriptor to wait for if that was nothing. The lock is
        released while waiting for a client: the server's loop needs it to close the connection. Raises ClientDisconnected.
        """
        with self.outbuf_lock:
            try:
                if self.connected and self.total_outbufs_len:
                    self._flush_some(do_close=False)
                if not self.connected or self.will_close:
                    raise channel.ClientDisconnected
                count = 0 if self.total_outbufs_len else self.socket.sendmsg(rest)
            except BlockingIOError:
                count = 0
            except OSError:
                self._break_off()
            if not count:
                return int(self.socket.fileno())
        self.last_activity = time.time()
        self.unsent -= count
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]
        return None

    def _break_off(self) -> NoReturn:
        self.will_close = True
        self.server.pull_trigger()
        raise channel.ClientDisconnected

    def others(self) -> list["Channel"]:
        """Returns all connections, including this one and those to other addresses (IPv4 and IPv6), which have separate lists."""
        return [other for other in list(self.server._map.values()) if isinstance(other, Channel)]

    def is_stuck(self, crowded: bool) -> bool:
        """Returns True if the time of its client is over. If there are many connections, idle clients have little time."""
        now = time.monotonic()
        if self.begun is not None and not self.requests and now - self.begun > (HURRY if crowded else self._patience()):
            return True
        if crowded and not self.requests and not self.total_outbufs_len and time.time() - self.last_activity > HURRY:
            return True
        if not self.total_outbufs_len and not self.unsent:
            self.mark = None
        elif self.mark is None or self._taken() - self.mark[1] >= LEAST:
            self.mark = (now, self._taken())
        return self.mark is not None and now - self.mark[0] > TAKING

    def _taken(self) -> int:
        """Returns the bytes that the client has received. The number of sent bytes means little, because the kernel buffers some
        MiB.
        """
        try:
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
        except OSError:
            return 0
        return int(_ACKED.unpack(info)[0])

    def _patience(self) -> float:
        body = getattr(self.request, "content_length", 0) or 0
        return ASKING * (1 + body / _MEBIBYTE)

    def end(self) -> None:
        """Disconnects the client. waitress's own loop then finds the socket broken and closes it."""
        self.will_close = True
        try:
            # Unsent data is dropped, and the connection is closed.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _can_take(line: int) -> bool:
    """Waits until a client can receive more, at most a second. Returns False if it never will."""
    poll = select.poll()
    poll.register(line, select.POLLOUT)
    return not any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(1000))


_serving = threading.local()


def serve_on(connection: Channel) -> None:
    """Records the connection that the thread serves now."""
    _serving.connection = connection


def mark_stream() -> None:
    """Records that the present answer is a stream, which keeps its thread until the client has received all of it."""
    connection: Channel | None = getattr(_serving, "connection", None)
    if connection:
        connection.streams = True


def require_read(viewer: Viewer) -> None:
    """Aborts with 429 if too many bytes wait for this viewer's clients, or for all. Records the viewer of the connection."""
    connection: Channel | None = getattr(_serving, "connection", None)
    if connection is None:  # another server, or a test
        return
    connection.readers = holders(viewer)
    waiting = [(other.readers, other.total_outbufs_len) for other in connection.others()]
    own = max(sum(size for readers, size in waiting if key in readers) for key in connection.readers)
    if own > OF_ONE:
        abort(429, "too many bytes of your answers are unread: read them, or close their connections")
    if sum(size for _, size in waiting) > (IN_ALL if own else MOST):
        abort(429, "too many bytes of answers are unread: try again in a minute")


def server_of(app: "WSGIApplication", settings: Settings) -> Any:
    """Returns a listening server. Raises OSError if it cannot listen."""
    dispatchers: dict[int, Any] = {}
    made = server.create_server(
        app,
        map=dispatchers,
        host=settings.host,
        port=settings.port,
        threads=settings.threads,
        ident=None,
        channel_timeout=IDLE,
        cleanup_interval=_CHECK_EVERY,
        outbuf_high_watermark=AHEAD,
        outbuf_overflow=IN_MEMORY,
        connection_limit=CONNECTIONS + 5,  # besides its own sockets
        max_request_header_size=64 << 10,
        max_request_body_size=2 << 20,
        clear_untrusted_proxy_headers=False,  # web.app does it, based on the client's address
    )
    for dispatcher in dispatchers.values():
        if isinstance(dispatcher, server.BaseWSGIServer):  # one listening server for each address
            dispatcher.channel_class = Channel
            dispatcher.maintenance = partial(_check_connections, dispatcher)
    return made


def _check_connections(listening: Any, now: float) -> None:
    """Runs waitress's own check for ended connections, which it makes every few seconds; and the checks of this module."""
    type(listening).maintenance(listening, now)
    channels = list(listening.active_channels.values())
    for connection in channels:
        if connection.is_stuck(len(channels) > CONNECTIONS // 2):
            connection.end()
