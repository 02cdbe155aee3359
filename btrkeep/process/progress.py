"""Progress of long work: a series of events, each passed to every sink; and the sink that `systemctl status` shows.

An event is a value that the work has anyway, such as its plan, a reading or its result, or one of those below. A sink is a function
of one event: a display, lines, the catalogue's record, the status line of `systemctl status`. It ignores events that do not concern
it. It is called in the working thread, so it must be quick; if it raises, the work ends in good order.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark for the operator."""

    text: str
    """The remark."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The work is waiting; repeated while it waits."""

    why: str
    """What it waits for."""


Event = TypeVar("Event")
ProgressSink = Callable[[Event], None]


class ProgressSinks(Generic[Event]):
    """Passes events to several sinks in order."""

    def __init__(self, *sinks: ProgressSink[Event | Notice]) -> None:
        self._sinks = sinks

    def __call__(self, event: Event | Notice) -> None:
        for sink in self._sinks:
            sink(event)

    def notice(self, text: str) -> None:
        """Sends a Notice."""
        self(Notice(text))


_EVERY = 1.0  # seconds: nobody reads faster


def is_service() -> bool:
    """True if a service manager listens for our state."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(line: str) -> bool:
    """Sends one assignment, such as "STATUS=3 of 12 hosts". Whether it was taken; nothing is raised: no work depends on it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):  # others would be AF_VSOCK, which a host may have for its guests
        return False
    import socket  # which only a service needs

    name = f"\0{address[1:]}" if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as channel:
            channel.sendto(line.encode("utf-8", "backslashreplace"), name)
    except OSError:
        return False
    return True


class Status:
    """The line that `systemctl status` shows. Asked as often as one likes, it is sent once a second at most."""

    def __init__(self) -> None:
        self._told = 0.0
        self._line = ""

    def say(self, line: str) -> None:
        """Something that matters: sent now."""
        if line != self._line:
            self._line, self._told = line, time.monotonic()
            tell(f"STATUS={' '.join(line.split())}")

    def go_on(self, line: Callable[[], str]) -> None:
        """Sends how far it is; makes the line only when the last one is a second old."""
        if time.monotonic() - self._told >= _EVERY:
            self.say(line())
