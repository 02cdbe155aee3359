"""A socket like systemd's for a service: receives its notifications."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Said = Callable[[], list[str]]


@contextmanager
def notified(name: str) -> Iterator[Said]:
    """Listens at a path, or at "@name"; returns the messages since the last call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1))
        listener.setblocking(False)

        def read() -> list[str]:
            lines = []
            while True:
                try:
                    lines.append(listener.recv(4096).decode())
                except BlockingIOError:
                    return lines

        yield read
