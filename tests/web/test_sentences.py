"""What of a run is told to whoever sees some hosts only: by whose words they are, whatever names are in them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flask import Flask, g

from backupd.alarms import words
from backupd.rsync.messages import Messages
from backupd.run.verdict import SuspectLimits, judge
from backupd.serve.jobs import FAILED, RUNNING, ServeJob, as_it_is, job_object
from web import redaction as telling
from web.access import Viewer
from web.sentences import WITHHELD, of_alarm, of_error, of_host_itself

PATHS = ("/srv", "/srv/data")
NAMES = ("db1", "nothing-of-that-name")


@pytest.mark.parametrize("exit_code", [-9, 1, 2, 5, 11, 12, 23, 30, 77, 125, 126, 127, 137, 255])
def test_a_verdict_of_numbers_is_told(exit_code: int) -> None:
    result = judge("/srv/data", exit_code, Messages(), {"files": 1000, "regular": 900}, None, SuspectLimits(0.5, 0.1), 1.0)
    assert result.reason
    assert of_error(result.reason, "lab", PATHS) == result.reason


@pytest.mark.parametrize(
    "numbers", [{"files": 9, "regular": 8, "bytes": 7000}, {"files": 9, "regular": 0}, {"files": 100, "bytes": 9}]
)
def test_a_backup_that_shrank_is_told(numbers: dict[str, int]) -> None:
    base = {"files": 100, "regular": 90, "bytes": 5_000_000}
    result = judge("/srv", 0, Messages(), numbers, base, SuspectLimits(0.5, 0.1), 1.0)
    assert "less, the limit is 50%" in result.reason or "no file is left" in result.reason
    assert of_error(result.reason, "lab", PATHS) == result.reason


@pytest.mark.parametrize(
    "text",
    [
        "/srv: no progress for 5m",
        "/srv: no progress for 1h 2m",
        "/srv: the deadline has passed",
        "/srv: the window 22:00-06:00 has closed",
        "the run was killed before it came to its end",
        "/srv: stopped by SIGTERM",
        '/srv: nothing could be read: rsync: opendir "/srv/db1" failed: Permission denied (13)',
    ],
)
def test_why_a_run_ended_is_told(text: str) -> None:
    assert of_error(text, "lab", PATHS) == text
    assert of_alarm(f"lab: the backup is partial: {text}", "lab", PATHS) == f"lab: the backup is partial: {text}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "before: {} is not frozen",
        "this server: [Errno 2] No such file or directory: '/srv/{}'",
        "{}: the deadline has passed",
        "/srv: the deadline has passed; {} besides",
        "nothing could be read: {}",
        "lab is locked by {}",
    ],
)
def test_what_a_hook_or_this_machine_said_is_withheld_whatever_it_names(text: str, name: str) -> None:
    said = text.format(name)
    assert of_error(said, "lab", PATHS) == WITHHELD
    assert of_alarm(words.failing("lab", "failed", said), "lab", PATHS) == f"lab: the backup is failed: {WITHHELD}"
    assert of_alarm(said, "lab", PATHS) == WITHHELD


@pytest.mark.parametrize("name", NAMES)
def test_a_host_may_say_any_name(name: str) -> None:
    assert of_host_itself(f"{name}: hello", "lab") == f"{name}: hello"


@pytest.mark.parametrize("pool", ["/srv/pool", "/srv/our pool", "/guess"])
def test_a_path_below_the_hosts_folder_is_told_from_there_on(pool: str) -> None:
    line = f'rsync: [receiver] mkstemp "{pool}/hosts/lab/.working/x" failed: No space left'
    assert of_host_itself(line, "lab", Path(pool)) == 'rsync: [receiver] mkstemp ".working/x" failed: No space left'


def test_silence_is_told() -> None:
    for text in ("lab: no complete backup for 3d 2h", "lab: no complete backup ever, 4d after it was first looked for"):
        assert of_alarm(text, "lab", PATHS) == text


def test_what_the_root_service_says_of_a_job_is_told_and_what_its_command_said_is_withheld() -> None:
    asked, moment = datetime(2026, 11, 20, 22, 0, tzinfo=UTC), "2026-11-20T22:00:00+00:00"
    job = ServeJob("20261120T220000Z-00000000", "run", "lab", "carol", "2026-11-20T22:00:00Z", {})
    ended = [as_it_is(one, asked + timedelta(hours=25)) for one in (job, replace(job, called=moment), replace(job, state=RUNNING))]
    said = [job_object(one) for one in ended]
    with Flask(__name__).app_context():
        g.viewer = Viewer("carol", "viewer", ("lab",))
        assert [telling.answer("job", one)["error"] for one in said] == [one["error"] for one in said]
        assert [one["error"] for one in telling.answer("jobs", said)] == [one["error"] for one in said]
        for name in NAMES:
            told = telling.answer("job", job_object(replace(job, state=FAILED, exit=4, error=f"{name} is not there")))
            assert told["error"].startswith("the pool could not be used; the administrator can see why")
