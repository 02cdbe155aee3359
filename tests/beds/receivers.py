"""Receivers of notifications in tests: a real HTTP and a real SMTP server on 127.0.0.1 that record what arrives."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP


@dataclass(slots=True)
class Web:
    """`got`: method, path and body of each request, in order. `status`: that of the answers, which wait until `hang` is set."""

    port: int = 0
    status: int = 200
    hang: threading.Event | None = None
    got: list[tuple[str, str, bytes]] = field(default_factory=list)

    def json(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.got]

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _ in self.got]


@contextmanager
def web() -> Iterator[Web]:
    """A web server that takes every POST and GET."""
    result = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            result.got.append((self.command, self.path, body))
            if result.hang:
                result.hang.wait(60)
            self.send_response(result.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815  http.server's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    result.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield result
    finally:
        if result.hang:
            result.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(slots=True)
class Mail:
    """`got`: the messages, from Python's own parser of mails."""

    port: int = 0
    got: list[EmailMessage] = field(default_factory=list)


class _Postman:
    """A handler for aiosmtpd: a plain object, to which aiosmtpd adds attributes."""

    def __init__(self, result: Mail) -> None:
        self._result = result

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self._result.got.append(message)
        return "250 OK"


@contextmanager
def mail() -> Iterator[Mail]:
    """Yields a mail server that accepts every mail, in a separate loop: aiosmtpd's Controller needs the port in advance."""
    result = Mail()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(lambda: SMTP(_Postman(result), loop=loop), "127.0.0.1", 0))
    result.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield result
    finally:
        loop.call_soon_threadsafe(server.close)  # in its own thread: a connection may be ending there
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
