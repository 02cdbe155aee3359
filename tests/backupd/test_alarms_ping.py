"""The dead man's switch: the requests that such a service gets; the night neither waits for it nor fails because of it."""

import logging
import socket
import time
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from backupd.alarms.dead_man_switch import Ping, send
from backupd.run.run_hosts import Reporting
from btrkeep.config import Url
from btrkeep.errors import OperatorError
from tests.beds.receivers import Web, web


@pytest.fixture
def service() -> Iterator[Web]:
    with web() as result:
        yield result


def url(service: Web) -> Url:
    return Url(f"http://127.0.0.1:{service.port}/ping/secret-uuid")


@pytest.mark.parametrize(("met", "path"), [(True, "/ping/secret-uuid"), (False, "/ping/secret-uuid/fail")])
def test_a_night_is_reported_from_its_beginning_to_its_end(service: Web, met: bool, path: str) -> None:
    ping = Ping(url(service))
    ping.start()
    ping.end(met=met, text="2 of 3 hosts are well: wéb1")
    ping.wait()
    assert [(method, where) for method, where, _ in service.got] == [("POST", "/ping/secret-uuid/start"), ("POST", path)]
    assert service.got[1][2].decode() == "2 of 3 hosts are well: wéb1"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OperatorError("/pool cannot be read"), "the night ended with an error: /pool cannot be read"),
        (OSError("odd"), "the night ended with an error: check the log on the server (journalctl -u 'btrkeep-*')"),
    ],
)
def test_a_night_that_an_error_ends_is_reported_as_failed(service: Web, error: Exception, text: str) -> None:
    """Otherwise the service waits for the end of a night that has started, for hours."""
    night: Any = SimpleNamespace(
        config=SimpleNamespace(notify=SimpleNamespace(ping=url(service))), night=True, clock=SimpleNamespace(start=None)
    )

    def fails() -> None:
        with Reporting() as reporting:
            reporting.begin(night)
            raise error

    with pytest.raises(type(error)):
        fails()
    assert [where for _, where, _ in service.got] == ["/ping/secret-uuid/start", "/ping/secret-uuid/fail"]
    assert service.got[1][2].decode() == text


def test_a_service_that_hangs_delays_nothing_and_the_end_only_for_a_moment(service: Web, caplog: pytest.LogCaptureFixture) -> None:
    service.hang = Event()
    begun = time.monotonic()
    ping = Ping(url(service))
    ping.start()
    ping.end(met=True, text="")
    ping.wait(0.5)
    assert time.monotonic() - begun > 0.4
    assert "failed: no answer within" in caplog.text  # had it been waited for, it would have been given up
    assert "secret-uuid" not in caplog.text


def test_no_answer_in_time_is_said_as_such(service: Web) -> None:
    service.hang = Event()
    assert send(url(service), "", b"", 0.2) == "no answer in time"


@pytest.mark.parametrize("status", [404, 500])
def test_a_failing_service_is_a_warning_without_the_secret(service: Web, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service.status = status
    ping = Ping(url(service))
    ping.start()
    ping.end(met=True, text="")
    ping.wait()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert f"the ping /start to 127.0.0.1 failed: HTTP status {status}" in caplog.text
    assert "secret-uuid" not in caplog.text


def test_a_refused_connection_is_a_reason_without_secrets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        closed = unheard.getsockname()[1]
    assert send(Url(f"http://127.0.0.1:{closed}/secret"), "/start", b"", 1) == "Connection refused"
    assert "secret" not in send(Url("http://no.such.name.invalid/secret"), "", b"", 1)
    assert "secret" not in send(Url("http://127.0.0.1:99999/secret"), "", b"", 1)


def test_without_a_thread_a_night_goes_on_without_a_ping(
    service: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ping = Ping(url(service))
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
        ping.start()
    ping.end(met=True, text="")
    ping.wait()
    assert "the limit of processes is reached" in caplog.text
    assert service.got == []
