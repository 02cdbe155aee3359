"""Messages to systemd are as sd_notify(3) requires, and are harmless without systemd. The test listens on its own socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from btrkeep.process.progress import Status, is_service, tell
from tests.beds.notified import Said, notified


@pytest.fixture(params=["/path", "@abstract"])
def sent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """Yields a function that returns the messages since its last call."""
    name = str(tmp_path / "notify") if request.param == "/path" else f"@btrkeep-{tmp_path.name}-{id(tmp_path)}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with notified(name) as output:
        yield output


def test_a_line_is_sent_as_one_status(sent: Said) -> None:
    assert is_service()
    Status().say("3 of 12 hosts\ndone: ä")
    assert sent() == ["STATUS=3 of 12 hosts done: ä"]


def test_the_same_line_is_sent_once_and_progress_once_a_second(sent: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("btrkeep.process.progress.time.monotonic", lambda: now[0])
    status = Status()
    status.say("begun")
    status.say("begun")
    for count in range(10):
        now[0] += 0.25
        status.go_on(lambda count=count: f"{count}")  # type: ignore[misc]
    assert sent() == ["STATUS=begun", "STATUS=3", "STATUS=7"]


def test_without_systemd_nothing_is_sent_and_nothing_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not is_service()
    assert not tell("STATUS=x")
    for nobody in (str(tmp_path / "gone"), "vsock:2:1234", "relative", "@nobody-listens"):
        monkeypatch.setenv("NOTIFY_SOCKET", nobody)
        assert not tell("STATUS=x"), nobody


def test_text_that_is_no_utf8_is_sent_all_the_same(sent: Said) -> None:
    assert tell("STATUS=\udcff")
    assert sent() == ["STATUS=\\udcff"]
