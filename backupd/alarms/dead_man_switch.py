"""Whether a night met its goal, and the ping that reports it to a dead man's switch.

The switch is a service that raises an alarm if no good night is reported, https://healthchecks.io/docs/http_api/. Pings are sent
in a separate thread, in order. They never delay a night or make it fail: errors become warnings, and the program waits at most a
few seconds at its end. The URL is a secret; messages name only its host.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from urllib.parse import urlsplit

from backupd.alarms.alarm_messages import harmless
from btrkeep.config import Config, Url
from btrkeep.decisions.cause_words import grouped_alike, without_host
from btrkeep.decisions.host_state import COPY, HostStatus
from btrkeep.process.threads import NoThread, start
from btrkeep.units import counted, format_share

log = logging.getLogger(__name__)

_MOST = 5  # lines: services show the first lines in their lists
_LONGEST = 200  # characters of a line
_SECONDS = 5.0  # for the connection, and again for the answer
_PATIENCE = 12.0  # for pings that are still being sent when the program ends
_LONGEST_BODY = 10_000  # bytes of a body; healthchecks.io keeps the first 100,000


@dataclass(frozen=True, slots=True)
class NightVerdict:
    """The verdict on a night."""

    met: bool
    """True if enough hosts are ok, according to [notify] `ping_goal`."""
    text: str
    """The number of hosts that are ok, and the others."""


def judge_night(config: Config, hosts: Sequence[HostStatus], ended: str | None = None) -> NightVerdict:
    """Decides whether the night was good: as many hosts are ok as [notify] ping_goal requires, and nothing ended the night early
    (`ended`).

    The present state of the hosts counts, not the result of this run: a host whose window opens later, or that had its backup an
    hour ago, is ok.
    """
    own = [status for status in hosts if status.state != COPY]
    configured = {status.host: config.host_named(status.host) for status in own}
    counting = [status for status in own if configured[status.host].enabled and not configured[status.host].optional]
    unwell = [status for status in counting if status.state != "ok"]
    well = len(counting) - len(unwell)
    # Compares numbers of hosts, so that rounding of floating point cannot miss 100 %.
    met = well >= len(counting) * config.notify.ping_goal - 1e-9
    lines = [f"{well:,} of {len(counting):,} hosts are ok, the goal is {format_share(config.notify.ping_goal)}"]
    if ended is not None:
        lines.insert(0, f"the night ended early: {harmless(ended)}")
    groups = grouped_alike(unwell, lambda status: f"{status.state}: {without_host(status.error or '', status.host)}")
    lines += [_line(group) for group in groups[:_MOST]]
    if more := sum(len(group) for group in groups[_MOST:]):
        lines.append(f"and {more:,} more")
    return NightVerdict(met and ended is None, "\n".join(lines))


def _line(group: Sequence[HostStatus]) -> str:
    """Returns a line for one host, or for all hosts that are not ok for the same reason."""
    first = group[0]
    subject = first.host if len(group) == 1 else counted(len(group), "host")
    reason = f": {first.error}" if first.error else ""
    return harmless(f"{subject}: {first.state}{reason}", _LONGEST)


class Ping:
    """Reports one night. Call `start`, then `end`, then `wait` before the process ends."""

    def __init__(self, url: Url) -> None:
        self._url = url
        self._waiting: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ping", daemon=True)  # a hung name server must not delay the exit

    def start(self) -> None:
        """Reports the start of the night."""
        try:
            start(self._thread)
        except NoThread as error:
            log.warning("the ping was not sent: %s", error.message)
            return
        self._waiting.put(("/start", b""))

    def end(self, *, met: bool, text: str) -> None:
        """Reports the end of the night; `text` is sent too, for people."""
        self._waiting.put(("" if met else "/fail", text.encode("utf-8", "replace")[:_LONGEST_BODY]))

    def wait(self, seconds: float = _PATIENCE) -> None:
        """Waits until pending pings have been sent, but no longer than `seconds`."""
        if self._thread.ident is None:  # the thread could not be started
            return
        self._waiting.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the ping failed: no answer within %.0f s", seconds)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            path, body = job
            ping = f"the ping{path and f' {path}'} to {urlsplit(self._url.text).hostname}"
            if fault := send(self._url, path, body, _SECONDS):
                log.warning("%s failed: %s", ping, fault)


def send(url: Url, path: str, body: bytes, seconds: float) -> str:
    """Sends one POST. Returns the error, "" on success; it never contains the URL."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(url.text + path, data=body, headers={"User-Agent": "btrkeep", "Content-Type": "text/plain; charset=utf-8"})  # noqa: S310
    try:
        with urlopen(request, timeout=seconds):  # noqa: S310
            return ""
    except HTTPError as error:
        with error:
            return f"HTTP status {error.code}"
    except URLError as error:
        return reason_of(error.reason)
    except (OSError, HTTPException, ValueError) as error:
        return reason_of(error)


def reason_of(error: object) -> str:
    """Returns only the system's error message: the rest may contain the URL."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
