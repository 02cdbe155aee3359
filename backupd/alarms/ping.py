"""The dead man's switch: a service that raises an alarm if no good night is reported, https://healthchecks.io/docs/http_api/.

Pings are sent in a separate thread, in order. They never delay a night or make it fail: errors become warnings, and the program
waits at most a few seconds at its end. The URL is a secret; messages name only its host.
"""

import http.client
import logging
import threading
from queue import SimpleQueue
from urllib.parse import urlsplit

from btrkeep.config import Url
from btrkeep.process.threads import NoThread, start

log = logging.getLogger(__name__)

_SECONDS = 5.0  # for each of: connection, answer
_PATIENCE = 12.0  # for all that is still on its way when the program ends
_LONGEST = 10_000  # bytes of a body; healthchecks.io keeps the first 100,000


class Ping:
    """Reports one night. `start`, then `end`; then `wait` before the process ends."""

    def __init__(self, url: Url) -> None:
        self._url = url
        self._waiting: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ping", daemon=True)  # a name server that hangs must not keep us

    def start(self) -> None:
        """The night begins."""
        try:
            start(self._thread)
        except NoThread as error:
            log.warning("no ping: %s", error.message)
            return
        self._waiting.put(("/start", b""))

    def end(self, *, met: bool, text: str) -> None:
        """The night is over; `text` is sent along, for people."""
        self._waiting.put(("" if met else "/fail", text.encode("utf-8", "replace")[:_LONGEST]))

    def wait(self, seconds: float = _PATIENCE) -> None:
        """Waits until pending pings have been sent, but no longer than `seconds`."""
        if self._thread.ident is None:  # it could not be started
            return
        self._waiting.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the ping did not come through within %.0f s", seconds)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            path, body = job
            what = f"the ping{path and f' {path}'} to {urlsplit(self._url.text).hostname}"
            if fault := send(self._url, path, body, _SECONDS):
                log.warning("%s did not come through: %s", what, fault)


def send(url: Url, path: str, body: bytes, seconds: float) -> str:
    """Sends one POST. Returns the error, "" on success; it never contains the URL."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(url.text + path, data=body, headers={"User-Agent": "btrkeep", "Content-Type": "text/plain; charset=utf-8"})  # noqa: S310  parse_ping takes http and https alone
    try:
        with urlopen(request, timeout=seconds):  # noqa: S310
            return ""
    except HTTPError as error:
        with error:
            return f"HTTP status {error.code}"
    except URLError as error:
        return reason_of(error.reason)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return reason_of(error)


def reason_of(error: object) -> str:
    """Returns the system's error message alone: the rest may name the URL."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
