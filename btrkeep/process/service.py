"""The status line that `systemctl status` shows for a command: sd_notify(3), one datagram to the socket in NOTIFY_SOCKET.

Only STATUS= is sent. The units are Type=oneshot, so READY=1 is not needed. There is no watchdog: balancing a block group, or a
transfer, may rightly be silent for an hour, and work that must not hang has its own limits.
"""

import os
import socket
import time
from collections.abc import Callable

_EVERY = 1.0  # seconds: nobody reads faster


def is_service() -> bool:
    """True if a service manager listens for our state."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(line: str) -> bool:
    """Sends one assignment, such as "STATUS=3 of 12 hosts". Whether it was taken; nothing is raised: no work depends on it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):  # others would be AF_VSOCK, which a host may have for its guests
        return False
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
