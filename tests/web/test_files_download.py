"""Downloads: as large as announced, broken midway, cancelled by the client, too many at once."""

import http.client
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from btrkeep.serving.protocol import FAILED, HEAD
from tests.beds import session
from tests.beds.dashboard import OPERATOR, VIEWER, Dashboard, own_folder, serving
from tests.web.files_visit import Visitor, files, raw, visitor

PIECE = b"\xa5" * (256 << 10)
Send = Callable[[bytes], None]


class FakeService:
    """Speaks as `backupd serve` does, and streams data for a test: `script` gets a way to send. `gone`: the client left."""

    def __init__(self, path: Path) -> None:
        self.script: Callable[[Send], None] = lambda _send: None
        self.length: int | None = None
        self.gone = threading.Event()
        self.sent = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        path.chmod(0o777)
        self.socket.listen(20)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line:
            line.recv(1 << 16)
            stream = {"name": "x", "type": "application/octet-stream", "length": self.length}
            try:
                line.sendall(json.dumps({"ok": True, "stream": stream}).encode() + b"\n")
                self.script(self._counting(line))
            except OSError:
                self.gone.set()

    def _counting(self, line: socket.socket) -> Send:
        def send(data: bytes) -> None:
            line.sendall(data)
            self.sent += len(data)

        return send


def frame(data: bytes) -> bytes:
    return HEAD.pack(len(data)) + data


def pieces(count: int) -> Callable[[Send], None]:
    """Sends that many pieces, and the end."""

    def script(send: Send) -> None:
        for _ in range(count):
            send(frame(PIECE))
        send(frame(b""))

    return script


@contextmanager
def fake(path: Path) -> Iterator[FakeService]:
    service = FakeService(path)
    try:
        yield service
    finally:
        service.socket.close()


@pytest.fixture(scope="module")
def rigged(site: Dashboard) -> Iterator[tuple[Dashboard, FakeService]]:
    """A dashboard of the invented site with our root service."""
    with own_folder() as folder, ExitStack() as stack:
        service = stack.enter_context(fake(Path(tempfile.mkdtemp(dir=session.folder())) / "s"))
        path = Path(service.socket.getsockname())
        path.parent.chmod(0o755)
        yield stack.enter_context(serving(folder, site.state, path)), service


@pytest.fixture
def olga(rigged: tuple[Dashboard, FakeService]) -> Visitor:
    return visitor(rigged[0], OPERATOR)


@pytest.fixture
def service(rigged: tuple[Dashboard, FakeService]) -> FakeService:
    rigged[1].length, rigged[1].sent = None, 0
    rigged[1].gone.clear()
    return rigged[1]


@pytest.fixture
def address(site: Dashboard) -> str:
    assert site.made
    return files(next(iter(site.made.hosts)), b"/srv/large", "/download", **{"as": "tar"})


def memory(pid: int, name: str = "VmRSS") -> int:
    """Returns the bytes of a process's memory, according to the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def request(who: Visitor, address: str, version: str = "1.1") -> bytes:
    return f"GET {address} HTTP/{version}\r\nHost: 127.0.0.1\r\nCookie: {who.cookie}\r\n\r\n".encode()


def test_memory_does_not_grow_with_what_is_downloaded(olga: Visitor, service: FakeService, address: str) -> None:
    service.script = pieces(1200)
    olga.get("/account")
    before = memory(olga.web.pid)
    connection = http.client.HTTPConnection("127.0.0.1", olga.web.port, timeout=60)
    connection.request("GET", address, headers={"Cookie": olga.cookie})
    answer, size, most = connection.getresponse(), 0, 0
    while piece := answer.read(1 << 20):
        size, most = size + len(piece), max(most, memory(olga.web.pid))
    connection.close()
    assert size == 1200 * len(PIECE)
    assert most - before < 40 << 20


def test_a_client_that_takes_its_time_keeps_the_service_waiting_and_nothing_piles_up(
    olga: Visitor, service: FakeService, address: str
) -> None:
    service.script = pieces(2000)
    before = memory(olga.web.pid)
    with socket.create_connection(("127.0.0.1", olga.web.port)) as line:
        line.sendall(request(olga, address))
        line.recv(1000)
        last, end = -1, time.monotonic() + 60
        while service.sent != last and time.monotonic() < end:
            last = service.sent
            time.sleep(0.7)
        assert service.sent < 60 << 20
        assert memory(olga.web.pid) - before < 40 << 20
    assert service.gone.wait(60)


def test_a_client_that_goes_away_ends_the_work(olga: Visitor, service: FakeService, address: str) -> None:
    service.script = pieces(100_000)
    raw(olga.web, request(olga, address), until=5 << 20)
    assert service.gone.wait(60)
    service.script = lambda send: send(frame(b"after") + frame(b""))
    end = time.monotonic() + 60
    while (answer := olga.get(address)).status == 429 and time.monotonic() < end:
        time.sleep(0.05)
    assert answer.body == b"after"
    assert "Traceback" not in olga.web.log_text


@pytest.mark.parametrize("how", ["it says so", "it is killed"])
@pytest.mark.parametrize("length", [None, 4 * len(PIECE)])
def test_what_breaks_midway_is_no_whole_file_for_any_client(
    olga: Visitor, service: FakeService, address: str, how: str, length: int | None
) -> None:
    end = (
        HEAD.pack(FAILED) + b'{"ok":false,"error":"the disk is broken","hint":"","kind":"failed"}\n' if how == "it says so" else b""
    )
    service.script, service.length = lambda send: send(frame(PIECE) + frame(PIECE) + end), length
    with pytest.raises(http.client.IncompleteRead) as exception_info:
        olga.get(address)
    assert len(exception_info.value.partial) <= 2 * len(PIECE)
    came = raw(olga.web, request(olga, address))
    assert not came.endswith(b"0\r\n\r\n")
    assert "failed midway: " + ("the disk is broken" if end else "the root service ended") in olga.web.log_text
    assert "Traceback" not in olga.web.log_text


def test_an_archive_over_a_protocol_without_ends_is_refused(olga: Visitor, service: FakeService, address: str) -> None:
    service.script = lambda send: send(frame(PIECE) + frame(b""))
    came = raw(olga.web, request(olga, address, "1.0"))
    assert came.split(b" ", 2)[1] == b"426"
    assert PIECE[:100] not in came
    assert b"proxy_http_version 1.1" in came


def test_downloads_leave_threads_to_the_pages(olga: Visitor, service: FakeService, address: str) -> None:
    held = threading.Event()

    def script(send: Send) -> None:
        send(frame(b"x" * 40_000))
        held.wait(60)
        send(frame(b""))

    service.script = script
    lines = []
    try:
        for _ in range(2):
            lines.append(socket.create_connection(("127.0.0.1", olga.web.port)))
            lines[-1].sendall(request(olga, address))
            assert lines[-1].recv(100).startswith(b"HTTP/1.1 200")
        third = olga.get(address)
        assert third.status == 429
        assert "2 downloads of yours are running" in third.text
        victor = visitor(olga.web, VIEWER)
        lines.append(socket.create_connection(("127.0.0.1", olga.web.port)))
        lines[-1].sendall(request(victor, address))
        assert lines[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert olga.get("/hosts").status == 200
    finally:
        held.set()
        for line in lines:
            line.close()


def test_a_missing_listener_is_reported_with_what_to_check(site: Dashboard, address: str) -> None:
    who = visitor(site, OPERATOR)
    for page in (address, address.replace("/download", ""), address.replace("/download", "/versions")):
        answer = who.get(page)
        assert answer.status == 503
        assert "systemctl status btrkeep-serve@main.socket" in answer.text
