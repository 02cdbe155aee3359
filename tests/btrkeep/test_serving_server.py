"""The server that answers each connection in a separate thread."""

import json
import socket
import threading
from pathlib import Path

import pytest

from btrkeep.serving.server import Server


def receive_from(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        return connection.recv(1000)


def test_a_connection_for_which_no_thread_can_be_started_is_told_to_try_again_and_the_next_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.send(b"answered")

    def limited(thread: threading.Thread) -> None:
        if refuses:
            raise RuntimeError("can't start new thread")
        start(thread)

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "socket"))
    listening.listen()
    server, start, refuses = Server(answer, listening, at_once=1), threading.Thread.start, []
    serving = threading.Thread(target=server.run)
    serving.start()
    monkeypatch.setattr("threading.Thread.start", limited)
    try:
        refuses.append(True)
        for _ in range(2):
            assert json.loads(receive_from(tmp_path / "socket"))["kind"] == "busy"
        refuses.clear()
        assert receive_from(tmp_path / "socket") == b"answered"
    finally:
        server.stop()
        serving.join(60)
        listening.close()
