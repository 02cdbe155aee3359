"""Downloads: passes on the root service's stream piece by piece; never displayed, never truncated unnoticed.

Nothing is stored: the server's own buffer is limited, and the root service waits while it is full. A transfer that fails midway has
no end marker, so that no client regards half an archive as complete.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import quote

from flask import Response
from waitress import channel

from btrkeep.errors import OperatorError
from btrkeep.serving.viewer import NoSlot, RequestSlots, Viewer
from btrkeep.units import printable
from web.waitress_server import mark_stream

KINDS = ("file", "tar", "zip")
AT_ONCE = 4
"""Downloads at the same time. Each occupies one of the server's threads as long as its client reads."""
OF_ONE = 2
"""The limit for one viewer, and for all viewers with the same limit of hosts together."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # If a browser displays it anyway, it has no rights: no scripts, no forms, no origin.
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store, no-transform",  # a proxy that compresses it would hide a truncated end
    "Accept-Ranges": "none",
    "X-Accel-Buffering": "no",  # otherwise nginx would buffer it on its own disk
}
_log = logging.getLogger(__name__)


class ServiceStream(Protocol):
    """The interface of `RootServiceClient.stream`: bytes in pieces; raises OperatorError if it fails midway."""

    @property
    def length(self) -> int | None:
        """Total bytes; None: unknown."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Closes the stream, which ends its producer."""


class TooManyDownloads(OperatorError):
    """The maximum number of downloads is reached."""


PLACES = RequestSlots(AT_ONCE, OF_ONE)


class _Body:
    """The response's body. Its `close` is always called, also if no piece was requested (HEAD, a client that has left)."""

    def __init__(self, stream: ServiceStream, viewer: Viewer, content: str, places: RequestSlots) -> None:
        self._stream, self._viewer, self._what, self._places = stream, viewer, content, places
        self._pieces = iter(stream)
        self._closed = False

    def __iter__(self) -> "_Body":
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except OperatorError as error:
            _log.error("download of %s by %s failed midway: %s", self._what, printable(self._viewer.name), printable(error.message))
            # The server then closes the connection, without the last chunk and without a traceback.
            raise channel.ClientDisconnected from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._places.leave(self._viewer)
            self._stream.close()


@contextmanager
def place(viewer: Viewer, places: RequestSlots = PLACES) -> Iterator[RequestSlots]:
    """Takes a slot for a download; returns it if the context ends with an error. Raises TooManyDownloads."""
    try:
        places.take(viewer)
    except NoSlot as error:
        count = f"{places.of_one} downloads of yours" if error.own else "the maximum number of downloads"
        raise TooManyDownloads(f"{count} are running", "try again when a download has ended") from None
    try:
        yield places
    except BaseException:
        places.leave(viewer)
        raise


def sent(stream: ServiceStream, name: bytes, viewer: Viewer, places: RequestSlots) -> Response:
    """Returns the stream as a response that browsers save under `name`. The caller has taken a slot, which the response returns."""
    response = Response(_Body(stream, viewer, printable(name), places), mimetype="application/octet-stream", headers=_HEADERS)
    response.headers["Content-Disposition"] = disposition(name)
    if stream.length is not None:
        response.content_length = stream.length
    mark_stream()
    return response


def name_of(host: str, backup: str, path: bytes, kind: str) -> bytes:
    """Returns the name of a download: the file's name for a file, else host, folder and the backup's day for an archive."""
    last = path.rstrip(b"/").rsplit(b"/", 1)[-1]
    if kind == "file":
        return last or b"file"
    parts = [host.encode(), last, backup[:10].encode() if backup[:1].isdigit() else b""]
    return b"-".join(part for part in parts if part) + b"." + kind.encode()


def disposition(name: bytes) -> str:
    """Returns the header of RFC 6266: a name that any client accepts, and the real one in UTF-8 (RFC 5987). No character of `name`
    ends its quotes.

    Bytes that are not valid UTF-8 become U+FFFD, because the header cannot contain them; unprintable characters become underscores.
    """
    seen = "".join((char if char.isprintable() and char not in '/\\"' else "_") for char in name.decode("utf-8", "replace")) or "_"
    plain = "".join(char if " " <= char <= "~" and char != "%" else "_" for char in seen)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(seen, safe='')}"
