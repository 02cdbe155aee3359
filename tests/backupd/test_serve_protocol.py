"""Any bytes may arrive at the socket of the root service: it answers with one line or none, in time, and continues."""

import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backupd.serve import answering, verbs
from backupd.serve.answering import answer
from backupd.serve.request_checks import ROOT, Right
from backupd.serve.service_context import Call, ConcurrencyLimit, Frames, ServiceContext
from backupd.serve.verbs import VERBS, Verb
from btrkeep.clock import Clock
from btrkeep.serving.client import Absent, RootServiceClient
from btrkeep.serving.protocol import FAILED, KINDS, LONGEST_REQUEST, RequestRefused, decoded, encoded, read_request
from btrkeep.serving.server import USUAL_FRAME, ClientGone, Wire
from tests.beds.asked import asked_by_root
from tests.beds.gate import examples

ME = frozenset((ROOT,))
SERVICE = ServiceContext("none", Path("/nowhere/none.toml"), Clock(), systemd=False)
FUZZ = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def _as_root() -> Iterator[None]:
    """The requests here name the user, which only root may do."""
    with asked_by_root():
        yield


def answer_bytes(data: bytes, allowed: frozenset[int] = ME, *, end: bool = True) -> bytes:
    """Returns the complete answer to these bytes. An exception in the service is raised here."""
    ours, theirs = socket.socketpair()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            answer(SERVICE, theirs, allowed)
        except BaseException as error:  # noqa: BLE001  it is raised below
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    ours.settimeout(60)
    with ours:
        try:
            ours.sendall(data)
            if end:
                ours.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass
        content = b"".join(pieces(ours))
    thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]
    return content


def pieces(ours: socket.socket) -> Iterator[bytes]:
    try:
        while piece := ours.recv(1 << 16):
            yield piece
    except ConnectionResetError:  # it has closed without reading all that was sent
        return


def failure(data: bytes) -> dict:
    document = json.loads(data)
    assert data.count(b"\n") == 1
    assert set(document) == {"ok", "error", "hint", "kind", "own"}
    assert document["ok"] is False
    assert document["kind"] in KINDS
    return document


def request(verb: object = "browse", who: object = "alice", **arguments: object) -> bytes:
    return json.dumps({"verb": verb, "who": who, "arguments": arguments}).encode() + b"\n"


GOOD = {"host": "web1", "backup": "latest", "path": "/etc"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4),
    max_leaves=12,
)


# --- the form of a request


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_are_answered_with_one_line_or_none(data: bytes) -> None:
    content = answer_bytes(data)
    assert content == b"" or failure(content)["kind"] == "usage"
    assert (content == b"") == (b"\n" not in data)


@pytest.mark.slow
@FUZZ
@given(JSON)
def test_any_json_is_answered_with_one_line(value: object) -> None:
    assert failure(answer_bytes(json.dumps(value).encode() + b"\n"))["kind"] == "usage"


@pytest.mark.slow
@FUZZ
@given(st.sampled_from(sorted(VERBS)), JSON, st.dictionaries(st.sampled_from(sorted({*GOOD, "as", "limit", "paths", "job"})), JSON))
def test_any_arguments_are_answered_with_one_line(verb: str, who: object, arguments: dict) -> None:
    fields = failure(answer_bytes(request(verb, who, **arguments)))
    assert fields["kind"] in ("usage", "unusable")  # there is no configuration
    assert "Traceback" not in fields["error"]


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_request_that_ends_too_soon_is_not_answered(cut: int) -> None:
    assert answer_bytes(request(**GOOD)[:cut]) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 60_000 + b"\n",
        b'{"verb":"browse","who":"a","arguments":' + b'{"a":' * 9_000 + b"1" + b"}" * 9_000 + b"}\n",
        b'{"verb":"browse","who":"a","arguments":{"limit":' + b"9" * 20_000 + b"}}\n",
        b'{"verb":"browse","who":"a","arguments":{"limit":1e999}}\n',
        b'{"verb":"browse","who":"a","arguments":{"limit":NaN}}\n',
        b'{"verb":"browse","verb":"run","who":"a","arguments":{}}\n',
        b'{"verb":"browse","who":"a","arguments":{},"more":1}\n',
        b'{"verb":"brows\xff","who":"a","arguments":{}}\n',
        b'\xef\xbb\xbf{"verb":"browse","who":"a","arguments":{}}\n',
        request(**GOOD) + request(**GOOD),
        b"\n",
        b"x" * (LONGEST_REQUEST + 10),
        b"x" * 2_000_000,
    ],
    ids=range(13),
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    content = answer_bytes(data)
    assert content.count(b"\n") == 1
    assert failure(content)["kind"] == "usage"


def test_what_was_sent_is_not_said_back() -> None:
    assert b"secret" not in answer_bytes(b'{"password": "secret\n')


def test_a_request_as_long_as_may_be_is_read() -> None:
    line = request(verb="x" * 10, pad="")
    line = request(verb="x" * 10, pad="y" * (LONGEST_REQUEST - len(line)))
    assert len(line) == LONGEST_REQUEST
    assert "no verb" in failure(answer_bytes(line))["error"]


# --- arguments


@pytest.mark.parametrize(
    ("verb", "changed"),
    [
        ("remove", {}),
        ("__class__", {}),
        ("browse", {"more": 1}),
        ("browse", {"sort": "inode"}),
        ("browse", {"sort": ["size"]}),
        ("browse", {"descending": 1}),
        ("browse", {"path": None}),
        ("browse", {"path": 5}),
        ("browse", {"path": "etc"}),
        ("browse", {"path": "/../etc"}),
        ("browse", {"path": "/a/../../b"}),
        ("browse", {"path": "/a\0b"}),
        ("browse", {"path": "/\ud800"}),
        ("browse", {"path": "/" + "x" * 20_000}),
        ("browse", {"host": ".."}),
        ("browse", {"host": "."}),
        ("browse", {"host": ""}),
        ("browse", {"host": "web1/../web2"}),
        ("browse", {"host": "web1\n"}),
        ("browse", {"host": "-web1"}),
        ("browse", {"host": ["web1"]}),
        ("browse", {"host": "x" * 300}),
        ("browse", {"host": "wéb"}),
        ("browse", {"backup": "../2026-11-20T220003Z"}),
        ("browse", {"backup": ".working"}),
        ("browse", {"backup": "2026-11-20T220003Z/data"}),
        ("browse", {"backup": ""}),
        ("browse", {"limit": 0}),
        ("browse", {"limit": True}),
        ("browse", {"limit": 1.0}),
        ("browse", {"limit": "5"}),
        ("browse", {"offset": -1}),
        ("download", {"as": "raw"}),
        ("download", {"as": ["tar"]}),
        ("hold", {"backup": "2026"}),
        ("hold", {"why": "a\nb"}),
        ("hold", {"why": "x" * 1000}),
        ("hold", {"until": "tomorrow"}),
        ("hold", {"until": "0001-01-01T00:00:00+23:59"}),
        ("extents", {"vaddr": -1}),
        ("extents", {"vaddr": "0; reboot"}),
        ("extents", {"vaddr": 1, "curve": "--help"}),
        ("job", {"job": "../../etc/shadow"}),
        ("job", {"job": "20261121T210000Z-0123456g"}),
        ("doctor", {"fix": "atime"}),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_looked_at(verb: str, changed: dict) -> None:
    by_name = VERBS[verb].arguments if verb in VERBS else {}
    arguments = {**{name: value for name, value in GOOD.items() if name in by_name}, **changed}
    if "backup" in arguments and verb == "hold" and "backup" not in changed:
        arguments["backup"] = "latest"
    fields = failure(answer_bytes(request(verb, **arguments)))
    assert fields["kind"] == "usage"
    assert "codec" not in fields["error"]  # our words, not Python's


@pytest.mark.parametrize("line", [b"NaN", b"-Infinity", b"1e999", b'{"a": 1, "a": 1}', b"[" * 5000, b'"\xff"', b"1 2"])
def test_what_python_takes_for_json_and_others_do_not_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(line)


def test_the_same_without_the_mistake_gets_further() -> None:
    for verb in ("browse", "download", "hold", "versions"):
        arguments = {name: value for name, value in GOOD.items() if name in VERBS[verb].arguments}
        assert failure(answer_bytes(request(verb, **arguments)))["kind"] == "unusable", verb


@pytest.mark.parametrize("who", ["", "  ", 7, None, "x" * 200, ["alice"]])
def test_a_request_of_root_needs_a_name(who: object) -> None:
    assert failure(answer_bytes(request("jobs", who)))["kind"] == "usage"


def test_bytes_that_are_no_utf8_come_through() -> None:
    result = read_request(encoded({"verb": "v", "who": "w", "arguments": {"path": os.fsdecode(b"/\xff\n")}}))
    assert VERBS["browse"].arguments["path"].check(result.arguments["path"]) == b"/\xff\n"
    assert decoded(b'"\\udcff"') == "\udcff"


# --- who may ask


def test_another_user_is_told_so_and_his_request_not_even_read() -> None:
    assert failure(answer_bytes(b"", frozenset((12345,))))["kind"] == "refused"
    assert failure(answer_bytes(request(**GOOD), frozenset((12345,))))["kind"] == "refused"


def test_each_request_is_logged_with_who_and_what_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "backupd.serve"):
        answer_bytes(request("browse", "al\nice\x1b[2J", host="web1", backup="latest", path="/a\nb"))
    (record,) = caplog.records
    text = record.getMessage()
    assert all(char.isprintable() for char in text)
    assert all(word in text for word in ("browse", "al\\nice", "web1", "/a\\nb", f"user {ROOT}"))


def test_a_fault_of_ours_is_told_without_its_traceback_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(_: Call) -> None:
        raise KeyError("a detail that is nobody's business")

    class Broken(Verb):
        def function(self, name: str) -> verbs.Function:
            return function

    monkeypatch.setattr(answering, "VERBS", {"browse": Broken("x", {}, Right.HOST, ConcurrencyLimit(1, 1))})
    file = tmp_path / "main.toml"
    file.write_text('[pool]\npath = "/srv/backup"\n')
    ours, theirs = socket.socketpair()
    ours.sendall(request("browse"))
    with pytest.raises(KeyError):
        answer(ServiceContext("main", file, Clock(), systemd=False), theirs, ME)
    fields = failure(ours.recv(10_000))
    ours.close()
    assert (fields["kind"], "detail" in json.dumps(fields)) == ("failed", False)


# --- time and room


@contextmanager
def wires(asking: float = 10, taking: float = 10) -> Iterator[tuple[socket.socket, Wire]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Wire(theirs, asking, taking)


def test_a_request_that_comes_byte_by_byte_is_given_up_after_the_time_for_all_of_it() -> None:
    with wires(asking=0.4) as (ours, wire):
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.05):
                ours.send(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        began = time.monotonic()
        with pytest.raises(RequestRefused):
            wire.request()
        assert 0.3 < time.monotonic() - began < 60
        stop.set()
        thread.join()


def test_an_asker_that_takes_nothing_is_given_up() -> None:
    with wires(taking=0.3) as (_, wire), pytest.raises(ClientGone):
        wire.send(b"x" * 50_000_000)


def test_an_asker_that_is_gone_is_noticed() -> None:
    with wires() as (ours, wire):
        assert not wire.gone()
        ours.shutdown(socket.SHUT_WR)
        assert not wire.gone()  # it still reads
        ours.close()
        assert wire.gone()


def test_what_is_written_leaves_in_frames_and_does_not_pile_up() -> None:
    with wires() as (ours, wire):
        got = bytearray()

        def read() -> None:
            while piece := ours.recv(1 << 20):
                got.extend(piece)

        thread = threading.Thread(target=read)
        thread.start()
        frames = Frames(wire)
        for _ in range(100):
            frames.write(b"0123456789" * 10_000)
            assert len(frames._held) < 1 << 19
        frames.end()
        wire._socket.shutdown(socket.SHUT_RDWR)
        thread.join()
    data, place = bytearray(), 0
    while size := struct.unpack(">I", got[place : place + 4])[0]:
        assert size <= 1 << 20
        data += got[place + 4 : place + 4 + size]
        place += 4 + size
    assert bytes(data) == b"0123456789" * 1_000_000
    assert place + 4 == len(got)


# --- the client, and a service that is not what it should be


@contextmanager
def answering_with(path: Path, data: bytes, *, read: bool = True) -> Iterator[RootServiceClient]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                if read:
                    connection.recv(1 << 16)
                connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield RootServiceClient(path, "alice", 5)
        thread.join()
        path.unlink()


STREAM = b'{"ok":true,"stream":{"name":"a","type":"t","length":3}}\n'


def test_the_client_tells_a_whole_stream_from_one_that_broke(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with answering_with(path, STREAM + struct.pack(">I", 3) + b"abc" + bytes(4)) as agent, agent.stream("x") as stream:
        assert b"".join(stream) == b"abc"
    with answering_with(path, STREAM + struct.pack(">I", 3) + b"abc") as agent, agent.stream("x") as stream, pytest.raises(Absent):
        list(stream)
    error = b'{"ok":false,"error":"no more","hint":"h","kind":"failed"}\n'
    broken = STREAM + struct.pack(">I", 3) + b"abc" + struct.pack(">I", FAILED) + error
    with answering_with(path, broken) as agent, agent.stream("x") as stream, pytest.raises(RequestRefused, match="no more"):
        list(stream)


@pytest.mark.parametrize(
    "data", [b"\n", b"{}\n", b'{"ok":true}\n', b"[]\n", b'{"ok":false}\n', b'{"ok":true,"stream":{}}\n', STREAM]
)
def test_the_client_takes_no_nonsense_for_an_answer(tmp_path: Path, data: bytes) -> None:
    with answering_with(tmp_path / "s", data) as agent, pytest.raises(RequestRefused):
        agent.ask("x")


def test_the_client_reports_that_the_service_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        RootServiceClient(tmp_path / "nobody", "alice").ask("x")
    with answering_with(tmp_path / "s", b"") as agent, pytest.raises(Absent):
        agent.ask("x")


def test_the_client_reads_a_refusal_that_came_before_its_request_was_read(tmp_path: Path) -> None:
    line = b'{"ok":false,"error":"busy","hint":"","kind":"busy"}\n'
    with answering_with(tmp_path / "s", line, read=False) as agent, pytest.raises(RequestRefused) as refused:
        agent.ask("x", pad="y" * 60_000)
    assert refused.value.kind == "busy"


@contextmanager
def full_queue(path: Path) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listening socket whose queue is full, and the connections in it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        waiting = list[socket.socket]()
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(path))
        except BlockingIOError:
            yield listening, waiting
        finally:
            for client in waiting:
                client.close()


def test_who_finds_the_services_queue_full_waits_for_a_place(tmp_path: Path) -> None:
    with full_queue(tmp_path / "socket") as (listening, waiting):

        def serve() -> None:
            time.sleep(0.1)
            for _ in waiting[:-1]:
                listening.accept()[0].close()
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(encoded({"ok": True, "answer": "here"}))

        thread = threading.Thread(target=serve)
        thread.start()
        assert RootServiceClient(tmp_path / "socket", "me", 10).ask("jobs") == "here"
        thread.join()


def test_a_queue_that_stays_full_is_busy_and_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("btrkeep.serving.client._QUEUEING", 0.1)
    with full_queue(tmp_path / "socket"), pytest.raises(RequestRefused) as caught:
        RootServiceClient(tmp_path / "socket", "me", 10).ask("jobs")
    assert caught.value.kind == "busy"


def test_an_unread_stream_ends_with_the_right_to_it() -> None:
    """Otherwise the client of a revoked token would keep its slot, and an open file, for ten minutes."""
    ours, theirs = socket.socketpair()
    asked = list[float]()

    def require() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise RequestRefused("the token is revoked")

    with ours, theirs, pytest.raises(ClientGone):
        Wire(ours, taking=5).send_while(b"x" * (8 << 20), require, interval=0.05)
    assert len(asked) == 3
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ClientGone):  # and with the right to it after the usual time
        Wire(ours, taking=0.2).send_while(b"x" * USUAL_FRAME, lambda: None, interval=0.05)


def test_a_large_frame_has_more_time_than_a_small_one() -> None:
    """The dashboard reads no frame before its client, on a slow line, has received the last one, which had as many bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        taker = threading.Timer(1.0, lambda: [theirs.recv(1 << 20, socket.MSG_WAITALL) for _ in range(4)])
        taker.start()
        Wire(ours, taking=0.5).send_while(bytes(4 << 20), lambda: None)
        taker.join()
