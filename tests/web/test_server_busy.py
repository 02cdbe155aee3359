"""The login and the catalogue's pages are served even if the root service does not answer and browsers read nothing."""

import http.client
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flask import Flask
from waitress import wasyncore

from tests.beds.watch import wait_for
from tests.web.gate import Gate, add_user, dashboard, made
from web.dashboard_settings import Settings
from web.waitress_server import server_of


class Mute:
    """Streams a download for ever; does not answer any other verb."""

    def __init__(self, path: Path) -> None:
        self.lines: list[socket.socket] = []
        self.verbs: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(100)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                self.lines.append(line)
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with suppress(OSError):
            verb = json.loads(line.recv(1 << 16))["verb"]
            self.verbs.append(verb)
            if verb == "download":
                line.sendall(b'{"ok":true,"stream":{"name":"x","type":"application/octet-stream","length":null}}\n')
                while True:
                    line.sendall(b"\0\1\0\0" + b"x" * (1 << 16))

    def close(self) -> None:
        self._listening.close()
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    result = made(tmp_path)
    for name in ("olga", "oskar"):
        add_user(result, name)
    return result


@pytest.fixture
def mute() -> Iterator[Mute]:
    with tempfile.TemporaryDirectory() as folder:
        service = Mute(Path(folder) / "s")
        yield service
        service.close()


@pytest.fixture
def app(settings: Settings, mute: Mute) -> Flask:
    where = Path(mute._listening.getsockname())
    return dashboard(Settings(settings.pool, settings.state, settings.data, where))


@pytest.fixture
def port(app: Flask) -> Iterator[int]:
    result = server_of(app, Settings("x", Path(), Path(), Path(), port=0))
    thread = threading.Thread(target=result.run, daemon=True)
    thread.start()
    yield int(result.effective_port)
    result.trigger.pull_trigger(lambda: [active_channel.handle_close() for active_channel in list(result.active_channels.values())])
    result.task_dispatcher.shutdown(timeout=1)
    result.trigger.pull_trigger(lambda: wasyncore.close_all(result._map))
    thread.join(60)


def cookie_of(app: Flask, name: str) -> tuple[str, str]:
    """Returns the cookie of a logged-in user, and the token for their forms."""
    gate = Gate(app)
    gate.log_in(name)
    token, cookie = gate.token("/account"), gate.client.get_cookie("btrkeep")
    assert cookie
    return f"btrkeep={cookie.value}", token


def sent(port: int, method: str, address: str, cookie: str, form: str = "") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    head = f"{method} {address} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nContent-Length: {len(form)}\r\n"
    client.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}".encode())
    return client


def answer(port: int, address: str, cookie: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", address, headers={"Host": "localhost", "Cookie": cookie})
    response = connection.getresponse()
    status, text = response.status, response.read().decode()
    connection.close()
    return status, text


@pytest.mark.slow
def test_with_everything_stuck_that_can_be_the_login_and_the_overview_answer(app: Flask, port: int, mute: Mute) -> None:
    (olga, token), (oskar, _) = cookie_of(app, "olga"), cookie_of(app, "oskar")
    wish = f"csrf_token={token}&path=/etc&place=original&overwrite=never"
    stuck = [sent(port, "GET", "/files/web1/download?path=/etc&as=tar", who) for who in (olga, oskar) for _ in range(4)]
    stuck += [sent(port, "POST", "/restore/web1/preview", olga, wish) for _ in range(12)]
    stuck += [sent(port, "POST", "/doctor", olga, f"csrf_token={token}") for _ in range(6)]
    stuck += [sent(port, "GET", "/files/web1?path=/etc", oskar) for _ in range(6)]
    wait_for(lambda: len(mute.verbs) >= 10)
    time.sleep(0.5)  # more would come now
    assert mute.verbs.count("download") == 3  # the last slot is for users without any
    assert len(mute.verbs) == 10
    begun = time.monotonic()
    assert answer(port, "/login")[0] == 200
    assert "olga" in answer(port, "/", olga)[1]
    assert answer(port, "/healthz")[0] == 503  # there is no sample
    assert time.monotonic() - begun < 60  # the stuck ones stay stuck
    status, text = answer(port, "/files/web1?path=/", oskar)
    assert (status, "are running" in text) == (503, True)
    for client in stuck:
        client.close()
