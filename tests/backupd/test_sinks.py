"""Progress of a run or an expiry: lines, --json and the line of `systemctl status`, from the same events."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.expire.cli.expire import expiry_sinks
from backupd.expire.report import ExpiryProgress, Pause, Summary
from backupd.run.cli.run import night_sinks
from backupd.run.run_context import HostResult, NightEnded, NightStarted, RunningTransfer
from btrkeep.decisions.expiry_plan import ExpiryStep, HostPlan, Plan, UnreadableHost
from btrkeep.decisions.safety_limits import DeletedShare
from tests.beds.notified import Said, notified


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """Yields a list of the messages that systemd receives."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with notified(str(tmp_path / "notify")) as output:
        yield output


def a_night(as_json: bool) -> None:
    tell = night_sinks(as_json=as_json)
    tell(NightStarted(("web", "mail")))
    tell(RunningTransfer("web", 1))
    tell(RunningTransfer("mail", 2))
    tell.notice("the catalogue\x1b was mended")
    tell(HostResult("web", "complete", files=3, bytes=5, new_bytes=2))
    tell(HostResult("mail", "failed", "no route"))
    tell(NightEnded())


def test_a_pipe_and_systemd_hear_of_a_night(status: Said, capsys: pytest.CaptureFixture[str]) -> None:
    a_night(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["backing up 2 hosts", "web: started", "mail: started", r"note: the catalogue\x1b was mended"]
    assert lines[4].startswith("[1/2] web: complete; 3 files")
    assert lines[5] == "[2/2] mail: failed; no route"
    assert lines[6].startswith("1 complete, 1 failed; 2 B new in ")
    assert [line.removeprefix("STATUS=") for line in status()[:-1]] == [
        "backing up 2 hosts",
        "0 of 2 hosts done, running: web",
        "0 of 2 hosts done, running: web, mail",
        "1 of 2 hosts done, running: mail",
        "2 of 2 hosts done, 1 not complete",
    ]


def test_with_json_only_notices_are_said_and_on_standard_error(status: Said, capsys: pytest.CaptureFixture[str]) -> None:
    a_night(as_json=True)
    assert capsys.readouterr() == ("", "note: the catalogue\\x1b was mended\n")
    assert len(status()) == 6


def test_a_pipe_and_systemd_hear_of_an_expiry(status: Said, capsys: pytest.CaptureFixture[str]) -> None:
    step = ExpiryStep("2026-11-20T220003Z", (), datetime(2026, 11, 22, tzinfo=UTC))
    skipped_hosts: dict[str, DeletedShare | UnreadableHost] = {
        "mail": DeletedShare(24, 34),
        "ns": UnreadableHost("notes.json cannot be read"),
    }
    tell = expiry_sinks(as_json=False)
    tell(Plan((HostPlan("web", 9, delete=(step,)),), skipped_hosts, None, 43))
    tell(ExpiryProgress(0, 1, 7, 100, None, None, Pause.BACKUPS))
    tell(ExpiryProgress(1, 1, 8, 100, 2.0, 4.0, batch=True))
    tell(Summary(planned=1, deleted=1, skipped_hosts=dict(skipped_hosts), seconds=2.0))
    force = "`backupd expire --force mail`"
    limit = f"24 of 34 backups would be deleted at once, more than 30% and more than 10; if that is intended: {force}"
    assert capsys.readouterr().out.splitlines() == [
        f"note: mail is skipped: {limit}",
        "note: ns is skipped: notes.json cannot be read",
        "deleting 1 backup",
        "1 of 1 deleted, 8 of at most 100 waiting for the cleaner, 2/s, about 4.0s left",
        "0 marked as expired, 1 deleted, 0 waiting for their grace to end, 2 hosts skipped in 2.0s",
    ]
    assert status() == ["STATUS=1 backup to delete, 0 to mark as expired", "STATUS=partial: 1 deleted in 2.0s"]
