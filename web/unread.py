"""Answers that their clients have not read yet: waitress keeps them in memory and in temporary files.

A client can ask for long answers on many connections and read none. So a viewer with too many unread bytes gets no further answer.
"""

import threading
from typing import Protocol

from flask import abort

from btrkeep.serving.places import Holder, holders
from btrkeep.serving.viewer import Viewer

IN_ALL, OF_ONE = 64 << 20, 16 << 20
"""Bytes, in all and of one viewer or customer, from which on there is no further answer."""
MOST = 256 << 20
"""Bytes from which on not even those get an answer who have read all of theirs: what one viewer requests in the same moment, on all
threads of the server, must not be enough to refuse everybody else.
"""
_serving = threading.local()


class Connection(Protocol):
    """A connection of the server. `readers`: who asked last on it. `total_outbufs_len`: bytes that wait for the client.
    `streams`: the present answer is a stream.
    """

    readers: tuple[Holder, ...]
    total_outbufs_len: int
    streams: bool

    def others(self) -> list["Connection"]:
        """Returns all connections of the program, this one too."""


def serve_on(connection: Connection) -> None:
    """Records the connection that the thread serves now."""
    _serving.connection = connection


def mark_stream() -> None:
    """Records that the answer being made is a stream, which keeps its thread until the client has all of it."""
    connection: Connection | None = getattr(_serving, "connection", None)
    if connection:
        connection.streams = True


def require_read(viewer: Viewer) -> None:
    """Aborts with 429 if too many bytes wait for this viewer's clients, or for all. Records who asks on the connection."""
    connection: Connection | None = getattr(_serving, "connection", None)
    if connection is None:  # another server, or a test
        return
    connection.readers = holders(viewer)
    waiting = [(other.readers, other.total_outbufs_len) for other in connection.others()]
    own = max(sum(size for readers, size in waiting if key in readers) for key in connection.readers)
    if own > OF_ONE:
        abort(429, "too many bytes of your answers are unread: read them first, or close their connections")
    if sum(size for _, size in waiting) > (IN_ALL if own else MOST):
        abort(429, "too many bytes of answers are unread: try again in a minute")
