"""waitress as the dashboard uses it: clients that read nothing, send a byte at a time, or request too much; over sockets."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from waitress import buffers, server, wasyncore
from werkzeug.exceptions import TooManyRequests

from btrkeep.serving.viewer import Viewer
from tests.beds.watch import wait_for
from web import waitress_server as ours
from web.dashboard_settings import Settings

ENDLESS = ("/endless", "/endless/stream")
"""Answers without an end: one that waitress's loop sends, and one that its thread sends itself, as a download."""
HEAD = b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n"


def little(_environ: object, start: Callable) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "1000000")])
    return [b"x" * 1_000_000]


def endless(environ: dict[str, Any], start: Callable) -> Iterator[bytes]:
    if environ["PATH_INFO"] == "/endless/stream":
        ours.mark_stream()
    start("200 OK", [("Content-Type", "application/octet-stream")])
    try:
        while True:
            yield b"x" * (1 << 20)
    finally:
        ended.set()


class Clock:
    """A clock that only a test moves; counts how often the server reads it."""

    def __init__(self) -> None:
        self.now, self.looks = 1000.0, 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now

    time = staticmethod(time.time)

    def wait_for_two_looks(self) -> None:
        before = self.looks
        wait_for(lambda: self.looks >= before + 2)


ended = threading.Event()
ANSWER = 8_000_000
CUSTOMER = ("acme-*",)


def answers(environ: dict[str, Any], start: Callable) -> list[bytes]:
    """Returns an answer for the viewer whom the path names, as the application does."""
    try:
        ours.require_read(Viewer(environ["PATH_INFO"], "viewer", CUSTOMER if "acme" in environ["PATH_INFO"] else None))
    except TooManyRequests:
        start("429 TOO MANY REQUESTS", [("Content-Length", "6")])
        return [b"unread"]
    start("200 OK", [("Content-Length", str(ANSWER))])
    return [b"x" * ANSWER]


def app(environ: dict[str, Any], start: Callable) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/healthz":
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]
    if environ["PATH_INFO"].startswith("/size/"):
        size = int(environ["PATH_INFO"].rpartition("/")[2])
        start("200 OK", [("Content-Length", str(size))])
        return [b"x" * size]
    if environ["PATH_INFO"].startswith("/answer"):
        return answers(environ, start)
    return (endless if environ["PATH_INFO"].startswith("/endless") else little)(environ, start)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server with two threads and short timeouts."""
    for name, value in {"TAKING": 1.0, "ASKING": 1.0, "HURRY": 1.0, "CONNECTIONS": 20, "_CHECK_EVERY": 0.2}.items():
        monkeypatch.setattr(ours, name, value)
    ended.clear()
    result = ours.server_of(app, Settings("x", Path(), Path(), Path(), port=0, threads=2))
    result.adj.cleanup_interval = 0.2
    thread = threading.Thread(target=result.run)
    thread.start()
    yield int(result.effective_port)
    # All in its own thread, which ends when it has no connections.
    result.trigger.pull_trigger(lambda: [active_channel.handle_close() for active_channel in list(result.active_channels.values())])
    result.task_dispatcher.shutdown()
    with suppress(OSError):  # a thread that ends may have woken it up already, so that it is closed
        result.trigger.pull_trigger(lambda: wasyncore.close_all(result._map))
    thread.join(60)
    assert not thread.is_alive()


def healthy(port: int, timeout: float = 3.0) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/healthz", headers={"Host": "localhost"})
        return connection.getresponse().read() == b"ok"
    except TimeoutError:
        return False
    finally:
        connection.close()


def line(port: int, sent: bytes) -> socket.socket:
    """Sends the bytes and returns the client's socket, which has a small buffer; nothing is read from it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(sent)
    return client


def is_over(client: socket.socket, patience: float) -> bool:
    client.settimeout(patience)
    try:
        while client.recv(1 << 16):
            continue
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def answer(port: int, path: str) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path, headers={"Host": "localhost"})
        return connection.getresponse().read()


@pytest.mark.parametrize(
    ("of_one", "in_all", "most", "victim"), [(2.5, 100, 100, "/answer/beta"), (100, 2.5, 100, "/answer/beta"), (100, 2.5, 2.5, "")]
)
def test_who_reads_no_answer_gets_no_more(
    port: int, monkeypatch: pytest.MonkeyPatch, of_one: float, in_all: float, most: float, victim: str
) -> None:
    """Other clients get their answers, unless too many bytes wait: a client that requests much on all threads at once passes the
    check with all of it.
    """
    monkeypatch.setattr(ours, "TAKING", 60.0)
    for name, limit in {"OF_ONE": of_one, "IN_ALL": in_all, "MOST": most}.items():
        monkeypatch.setattr(ours, name, int(limit * ANSWER))
    words = b"GET /answer/acme/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    held = [line(port, words % number) for number in range(5)]  # the kernel takes a part of each
    try:
        for client in held:
            client.recv(1)
        assert answer(port, "/answer/acme/other") == b"unread"  # another user of the same customer
        if victim:
            assert answer(port, victim) == b"x" * ANSWER
        else:
            assert answer(port, "/answer/beta") == b"unread"
    finally:
        for client in held:
            client.close()
    wait_for(lambda: answer(port, "/answer/acme/other") != b"unread")


def test_connections_to_all_addresses_of_the_server_count_together() -> None:
    """Otherwise a client with IPv4 and IPv6 would have twice as many unread bytes."""
    counts: list[int] = []

    def count(_environ: object, start: Callable) -> list[bytes]:
        counts.append(len(ours._serving.connection.others()))
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    result = ours.server_of(count, Settings("x", Path(), Path(), Path(), host="*", port=0, threads=1))
    thread = threading.Thread(target=result.run)
    thread.start()
    try:
        listening = result.effective_listen
        assert len(listening) == 2, "this machine has no IPv6"
        with ExitStack() as held:
            for number, (host, port) in enumerate(listening, 1):
                address = "::1" if ":" in host else "127.0.0.1"
                client = held.enter_context(closing(socket.create_connection((address, int(port)))))
                client.sendall(HEAD)
                assert client.recv(9) == b"HTTP/1.1 "
                assert counts[-1] == number
    finally:
        result.task_dispatcher.shutdown()
        trigger = next(channel.trigger for channel in list(result.map.values()) if isinstance(channel, server.BaseWSGIServer))
        trigger.pull_trigger(lambda: wasyncore.close_all(result.map))
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("path", ENDLESS)
def test_who_takes_nothing_gives_its_thread_back(port: int, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(ours, "TAKING", 60.0)
    stuck = [line(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) for _ in range(2)]
    wait_for(lambda: not healthy(port, 0.5))
    monkeypatch.setattr(ours, "TAKING", 1.0)
    assert healthy(port, 30)
    assert ended.wait(60)
    for client in stuck:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ENDLESS)
def test_who_takes_slowly_but_steadily_is_let_be(port: int, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Each time the client has read LEAST bytes, the server's clock advances by a little less than TAKING."""
    clock = Clock()
    monkeypatch.setattr(ours, "time", clock)
    with line(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as slow:
        for _ in range(4):
            taken = 0
            while taken < 2 * ours.LEAST:
                taken += len(slow.recv(1 << 15))
            clock.wait_for_two_looks()
            clock.now += 0.9 * ours.TAKING
            clock.wait_for_two_looks()
        assert not ended.is_set()


def test_many_requests_in_one_breath_keep_no_thread(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "TAKING", 300.0)  # a client that reads nothing keeps its thread that long
    stuck = [line(port, HEAD * 100) for _ in range(2)]
    time.sleep(0.3)  # until both threads have the requests; if not yet, they come later
    assert healthy(port, 30)
    for client in stuck:
        client.close()


@pytest.mark.slow
def test_of_requests_in_one_breath_the_first_is_answered_and_the_connection_ends(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"GET /healthz HTTP/1.1\r\nX: ", b"POST /x HTTP/1.1\r\nContent-Length: 5000\r\n\r\n"])
def test_a_request_that_comes_byte_by_byte_is_given_up(port: int, beginning: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        begun = time.monotonic()
        client.sendall(beginning)
        with suppress(ConnectionError):
            while time.monotonic() < begun + 100:
                client.sendall(b"a")
                time.sleep(0.1)
        assert 0.9 < time.monotonic() - begun < 90


@pytest.mark.slow
def test_a_connection_may_ask_again_long_after_its_first_request_began(port: int) -> None:
    two = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(4):
        two.request("GET", "/healthz")
        assert two.getresponse().read() == b"ok"
        time.sleep(0.5)
    two.close()


@pytest.mark.slow
def test_strangers_who_hold_all_connections_and_ask_nothing_are_let_go(port: int) -> None:
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    assert healthy(port, 60)
    assert sum(is_over(client, 60) for client in idle[:20]) == 20
    for client in idle:
        client.close()


@pytest.mark.parametrize(("size", "files"), [(1_400_000, 0), (4_000_000, 0), (5_000_000, 1)])
def test_an_answer_as_long_as_a_list_needs_no_temporary_file(
    port: int, monkeypatch: pytest.MonkeyPatch, size: int, files: int
) -> None:
    """A list ends at 4 MiB; /metrics of 1,000 hosts has 1.1 MiB."""
    made = []

    class Counted(buffers.TempfileBasedBuffer):  # type: ignore[misc]  # waitress has no types
        def __init__(self, from_buffer: object = None) -> None:
            made.append(self)
            super().__init__(from_buffer)

    monkeypatch.setattr(buffers, "TempfileBasedBuffer", Counted)
    assert len(answer(port, f"/size/{size}")) == size
    assert len(made) == files
