"""The connection of a host that calls, as a transport for this server's ssh: docs/decisions/0095-hosts-that-call.rst.

The host's session of ssh is the standard input and output of this process. ssh gets the bytes through a socket in a private folder,
which disappears when ssh has connected to it, once.
"""

import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backupd.rsync import call_proxy
from btrkeep.config import HostConfig
from btrkeep.process.threads import start

_PIECE = 1 << 18  # bytes
_RUN = Path("/run")


class CallTransport:
    """Carries one connection of ssh between `incoming` and `outgoing`, descriptors that it closes. `close` ends it."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._folder = tempfile.mkdtemp(prefix="btrkeep-call-", dir=_RUN if os.access(_RUN, os.W_OK) else None)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._path)
        self._listening.listen(1)
        self._connection: socket.socket | None = None
        start(threading.Thread(target=self._carry, daemon=True, name="call"))

    @property
    def _path(self) -> str:
        return str(Path(self._folder) / "s")

    def host(self, host: HostConfig) -> HostConfig:
        """Returns the host with the options of ssh that use this transport."""
        words = (sys.executable or "/usr/bin/python3", "-I", "-S", str(Path(call_proxy.__file__).absolute()), self._path)
        command = shlex.join(words).replace("%", "%%")
        return replace(host, ssh_options=(f"ProxyCommand={command}", "ProxyUseFdpass=yes", *host.ssh_options), attempts=1)

    def _carry(self) -> None:
        with suppress(OSError):  # `close`
            self._connection, _ = self._listening.accept()
            self._stop_listening()
            start(threading.Thread(target=self._receive, args=(self._connection,), daemon=True, name="call received"))
            while data := self._connection.recv(_PIECE):
                _write(self._outgoing, data)
        self._end(self._connection)
        with suppress(OSError):
            os.close(self._outgoing)  # the host's sshd ends

    def _receive(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := os.read(self._incoming, _PIECE):
                connection.sendall(data)
        self._end(connection)  # also ssh, when the host's connection is lost

    @staticmethod
    def _end(connection: socket.socket | None) -> None:
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _stop_listening(self) -> None:
        self._listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the connection, and deletes the socket."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._end(self._connection)
        self._stop_listening()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
