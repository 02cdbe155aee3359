"""Which texts of a run a user limited to some hosts sees: this depends on their author, not on names in the texts."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask, g

from backupd.rsync.messages import Messages
from backupd.run.verdict import PathEvidence, SuspectLimits, judge_path
from backupd.serve.jobs import FAILED, RUNNING, ServeJob, job_object, with_actual_state
from btrkeep.backup_states import FACTS, Cause, CauseCode
from btrkeep.catalogue import HostFacts, StoredAlarm
from btrkeep.catalogue.model_alarm import HOST, KINDS, AlarmSubject, SubjectKind
from btrkeep.config import HostConfig
from btrkeep.decisions import cause_words as words
from btrkeep.decisions.cause_words import cause_words
from btrkeep.serving.viewer import Viewer
from web import redaction as telling
from web.hosts import data as hosts
from web.redaction import WITHHELD, redacted_cause_words, without_server_paths

NAMES = ("db1", "nothing-of-that-name")
LINE = 'rsync: opendir "/srv/{}" failed: Permission denied (13)'
FACTS_OF_KIND = {str: "db1", int: 12, float: 0.5}


def any_cause(code: CauseCode) -> Cause:
    return Cause(code, "/srv", {name: FACTS_OF_KIND[kind] for name, kind in FACTS.get(code, {}).items()})


@pytest.mark.parametrize("exit_code", [-9, 1, 2, 5, 11, 12, 23, 30, 77, 125, 126, 127, 137, 255])
def test_a_verdict_of_numbers_is_told(exit_code: int) -> None:
    result = judge_path(
        PathEvidence("/srv/data", exit_code, Messages(), {"files": 1000, "regular": 900}, None, SuspectLimits(0.5, 0.1), 1.0)
    )
    assert result.reason.startswith("/srv/data: ")
    assert redacted_cause_words(result.cause, "lab") == result.reason


@pytest.mark.parametrize(
    "numbers", [{"files": 9, "regular": 8, "bytes": 7000}, {"files": 9, "regular": 0}, {"files": 100, "bytes": 9}]
)
def test_a_backup_that_shrank_is_told(numbers: dict[str, int]) -> None:
    base = {"files": 100, "regular": 90, "bytes": 5_000_000}
    result = judge_path(PathEvidence("/srv", 0, Messages(), numbers, base, SuspectLimits(0.5, 0.1), 1.0))
    assert "less, the limit is 50%" in result.reason or "files is left" in result.reason
    assert redacted_cause_words(result.cause, "lab") == result.reason


@pytest.mark.parametrize("code", CauseCode)
def test_every_cause_but_the_machines_own_is_told_whatever_its_words_are(code: CauseCode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert redacted_cause_words(any_cause(code), "lab") == (WITHHELD if code is CauseCode.POOL else cause_words(any_cause(code)))
    monkeypatch.setitem(words._WORDS, code, "said in another way")
    assert redacted_cause_words(any_cause(code), "lab") == (WITHHELD if code is CauseCode.POOL else "/srv: said in another way")


@pytest.mark.parametrize("name", NAMES)
def test_a_line_of_the_host_is_told_and_without_the_place_of_the_pool(name: str) -> None:
    results = redacted_cause_words(Cause(CauseCode.NOTHING_READ, "/srv", {"line": LINE.format(name)}), "lab")
    assert results == f"/srv: nothing could be read: {LINE.format(name)}"
    ours = Cause(
        CauseCode.SERVER_FAULT, "/srv", {"line": 'rsync: [receiver] mkstemp "/pool/hosts/lab/.working/x" failed: No space left'}
    )
    assert (
        redacted_cause_words(ours, "lab")
        == '/srv: this server could not write: rsync: [receiver] mkstemp ".working/x" failed: No space left'
    )


def told_to_limited(catalogue: object, text: str, cause: Cause | None) -> str | None:
    with Flask(__name__).test_request_context():
        g.viewer, g.source = Viewer("carol", "viewer", ("lab",)), catalogue
        return telling.host_error(text, cause, "lab")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_hook_or_this_machine_said_is_withheld_whatever_it_names(name: str) -> None:
    source = SimpleNamespace(config=SimpleNamespace(path=Path("/pool")))
    for text in (f"before: {name} is not frozen", "/srv: the deadline has passed", f"lab is locked by {name}"):
        assert told_to_limited(source, text, None) == WITHHELD, "words alone"
    assert told_to_limited(source, "anything", Cause(CauseCode.DEADLINE, "/srv")) == "/srv: the deadline has passed"


def test_who_sees_all_hosts_is_told_every_word() -> None:
    with Flask(__name__).test_request_context():
        g.viewer = Viewer("alice", "admin")
        assert telling.host_error("before: db1 is not frozen", None, "lab") == "before: db1 is not frozen"
        assert telling.host_error("disk sdx", Cause(CauseCode.POOL, facts={"text": "sdx is full"}), "lab") == "sdx is full"


def test_the_alarm_of_a_host_is_made_of_its_cause_and_silence_is_told() -> None:
    moment = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    alarm = StoredAlarm(
        "failure",
        str(AlarmSubject(HOST, "lab")),
        "lab: the backup failed: before: db1 is not frozen",
        0,
        moment,
        1,
        None,
        None,
        None,
    )
    ended = {"last_run": 1, "last_run_started": moment, "last_run_outcome": "failed", "last_run_error": alarm.text}
    others: dict[str, Any] = dict.fromkeys(field.name for field in fields(HostFacts)) | {"newest_warnings": ()}
    for cause, shown in ((None, WITHHELD), (Cause(CauseCode.STALLED, "/srv", {"seconds": 300.0}), "/srv: no progress for 5m")):
        facts = {"lab": HostFacts(**{**others, **ended, "last_run_cause": cause})}
        source = SimpleNamespace(config=SimpleNamespace(path=Path("/pool")), cached=lambda _key, _compute, facts=facts: facts)
        with Flask(__name__).test_request_context():
            g.viewer, g.source = Viewer("carol", "viewer", ("lab",)), source
            assert telling.host_alarm(alarm, "lab") == f"lab: the backup failed: {shown}"
            for reason in ("", ": before: db1 is not frozen"):
                silent = replace(alarm, what="silent", text=f"lab: no complete backup for 3d 2h{reason}")
                assert telling.host_alarm(silent, "lab") == "lab: no complete backup for 3d 2h"


@pytest.mark.parametrize(
    ("subject", "facts"),
    [
        ("failure", {"last_run_outcome": "complete"}),
        ("failure", {"last_run_outcome": "skipped"}),
        ("failure", {"last_run_outcome": "suspect", "last_run_cause": Cause(CauseCode.NO_FILE_LEFT, "/srv", {"before": 9})}),
        ("suspect", {"newest_state": "complete"}),
        ("suspect", {"newest_state": "failed", "newest_cause": Cause(CauseCode.STALLED, "/srv", {"seconds": 300.0})}),
    ],
)
def test_an_alarm_that_has_outlived_its_reason_is_not_told_with_that_of_something_else(subject: str, facts: dict[str, Any]) -> None:
    alarm = StoredAlarm(subject, "host lab", "words", 0, datetime(2026, 11, 20, 22, 0, tzinfo=UTC), 1, None, None, None)
    others: dict[str, Any] = dict.fromkeys(field.name for field in fields(HostFacts)) | {"newest_warnings": ()}
    of_hosts = {"lab": HostFacts(**{**others, **facts})}
    source = SimpleNamespace(config=SimpleNamespace(path=Path("/pool")), cached=lambda _key, _compute: of_hosts)
    with Flask(__name__).test_request_context():
        g.viewer, g.source = Viewer("carol", "viewer", ("lab",)), source
        output = {"failure": "the backup failed", "suspect": "the newest backup is suspect"}[subject]
        assert telling.host_alarm(alarm, "lab") == f"lab: {output}: {WITHHELD}"


def test_the_reason_of_a_skipped_run_is_withheld_from_limited_viewers_like_an_error() -> None:
    moment = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    others: dict[str, Any] = dict.fromkeys(field.name for field in fields(HostFacts)) | {"newest_warnings": (), "lasting": ()}
    ended = {"last_run_started": moment, "last_run_outcome": "skipped", "last_run_error": "before: /root/check db1 exited with 75"}
    facts = HostFacts(**{**others, "last_complete": moment - timedelta(days=1), **ended})
    host = HostConfig("lab", optional=True)
    row = hosts.row_of("lab", host, facts, 1, ZoneInfo("UTC"), moment, None)
    source = SimpleNamespace(config=SimpleNamespace(path=Path("/pool")))
    for allowed, reason in ((("lab",), WITHHELD), (None, ended["last_run_error"])):
        with Flask(__name__).test_request_context():
            g.viewer, g.source = Viewer("carol", "viewer", allowed), source
            assert hosts._visible_message(row, host, facts) == f"the last run skipped it: {reason}"


def test_the_alarm_of_a_kind_without_a_general_sentence_is_withheld_and_not_called_a_failed_backup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KINDS, "new kind", SubjectKind(named=True, of_host=True))
    alarm = StoredAlarm("failure", "new kind lab", "db1 and lab", 0, datetime(2026, 11, 20, 22, 0, tzinfo=UTC), 1, None, None, None)
    others: dict[str, Any] = dict.fromkeys(field.name for field in fields(HostFacts)) | {"newest_warnings": ()}
    of_hosts = {"lab": HostFacts(**{**others, "last_run_outcome": "complete"})}
    source = SimpleNamespace(config=SimpleNamespace(path=Path("/pool")), cached=lambda _key, _compute: of_hosts)
    with Flask(__name__).test_request_context():
        g.viewer, g.source = Viewer("carol", "viewer", ("lab",)), source
        assert telling.host_alarm(alarm, "lab") == f"lab: {WITHHELD}"


@pytest.mark.parametrize("name", NAMES)
def test_a_host_may_say_any_name(name: str) -> None:
    assert without_server_paths(f"{name}: hello", "lab") == f"{name}: hello"


@pytest.mark.parametrize("pool", ["/srv/pool", "/srv/our pool", "/guess"])
def test_a_path_below_the_hosts_folder_is_told_from_there_on(pool: str) -> None:
    line = f'rsync: [receiver] mkstemp "{pool}/hosts/lab/.working/x" failed: No space left'
    assert without_server_paths(line, "lab", Path(pool)) == 'rsync: [receiver] mkstemp ".working/x" failed: No space left'


def test_what_the_root_service_says_of_a_job_is_told_and_what_its_command_said_is_withheld() -> None:
    asked, moment = datetime(2026, 11, 20, 22, 0, tzinfo=UTC), "2026-11-20T22:00:00+00:00"
    job = ServeJob("20261120T220000Z-00000000", "run", "lab", "carol", "2026-11-20T22:00:00Z", {})
    ended = [
        with_actual_state(variant, asked + timedelta(hours=25))
        for variant in (job, replace(job, called=moment), replace(job, state=RUNNING))
    ]
    output = [job_object(job) for job in ended]
    with Flask(__name__).app_context():
        g.viewer = Viewer("carol", "viewer", ("lab",))
        assert [telling.redact_answer("job", task)["error"] for task in output] == [task["error"] for task in output]
        assert [task["error"] for task in telling.redact_answer("jobs", output)] == [task["error"] for task in output]
        for name in NAMES:
            result = telling.redact_answer("job", job_object(replace(job, state=FAILED, exit=4, error=f"{name} is not there")))
            assert result["error"].startswith("the pool could not be used; the administrator can see why")
