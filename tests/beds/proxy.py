"""A network that fails, between ssh and a server: each port of the proxy has one fault, and passes everything else on.

cut         the connection is reset after some kilobytes from the server
half-open   after the same amount nothing more is passed on, in either direction, and the connection stays
silent      it is accepted, and nothing is ever sent
refused     no process listens
garbage     noise instead of a server's first line
banner      lines of noise before it, as RFC 4253 allows
slow        200 kB a second
lossy       now and then nothing for a while, as when packets are lost and sent again
"""

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_AFTER = 20_000  # bytes from the server: more than the key exchange takes, less than a transfer
_RATE = 200_000
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Faults:
    """The proxy's ports. Each connection has a thread, which ends with it or with the proxy."""

    def __init__(self, server: int, stack: ExitStack) -> None:
        self._server, self._stack, self._over = server, stack, threading.Event()
        stack.callback(self._over.set)

    def port(self, fault: str = "") -> int:
        """A new port with that fault; "" means no fault."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        number = int(listening.getsockname()[1])
        if fault == "refused":
            self._stack.callback(listening.close)  # bound to reserve the port, but never accepts
            return number
        listening.listen(64)
        listening.settimeout(0.2)
        thread = threading.Thread(target=self._listen, args=(listening, fault), daemon=True)
        thread.start()
        return number

    def _listen(self, listening: socket.socket, fault: str) -> None:
        with listening:
            while not self._over.is_set():
                with suppress(TimeoutError):
                    client, _ = listening.accept()
                    threading.Thread(target=self._connected, args=(client, fault), daemon=True).start()

    def _connected(self, client: socket.socket, fault: str) -> None:
        with client, suppress(OSError):
            if fault == "silent":
                self._over.wait()
                return
            if fault == "garbage":
                client.sendall(os.urandom(4000) + b"\n")
                return
            if fault == "banner":
                client.sendall(b"".join(b"welcome to line %d of the banner\r\n" % line for line in range(200)))
            with socket.create_connection(("127.0.0.1", self._server)) as server:
                self._pass_on(client, server, fault)

    def _pass_on(self, client: socket.socket, server: socket.socket, fault: str) -> None:
        passed, noise = 0, random.Random(client.getpeername()[1])
        while not self._over.is_set():
            for ready in select.select([client, server], [], [], 0.2)[0]:
                data = ready.recv(16384)
                if not data:
                    return
                if ready is server:
                    passed += len(data)
                if passed > _AFTER and fault == "cut":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    return
                if passed > _AFTER and fault == "half-open":
                    self._over.wait()
                    return
                if fault == "slow":
                    time.sleep(len(data) / _RATE)
                if fault == "lossy" and noise.random() < 0.03:
                    time.sleep(noise.uniform(0.05, 0.4))
                (client if ready is server else server).sendall(data)


@contextmanager
def faulty_proxy(server: int) -> Iterator[Faults]:
    """Yields ports in front of the server's port; all of them stop working at the end."""
    with ExitStack() as stack:
        yield Faults(server, stack)
