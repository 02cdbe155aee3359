"""`backupd notify` and the pings of a night: real backups, real receivers, whole commands."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner

from backupd.cli import group
from tests.beds import TOP, work
from tests.beds.anyone import readable
from tests.beds.nights import Nights
from tests.beds.receivers import Mail, Web, mail, web
from tests.beds.watch import wait_for

pytestmark = pytest.mark.btrfs


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as result:
        yield result


@pytest.fixture
def mailbox() -> Iterator[Mail]:
    with mail() as result:
        yield result


@pytest.fixture
def told(nights: Nights, server: Web) -> Nights:
    """A site with one host, whose webhook is `server`."""
    (nights.source / "file").write_text("x")
    nights.host("web1", nights.source)
    nights.tables["notify"] = {"urls": [f"json://:hunter2@127.0.0.1:{server.port}/hunter2"], "digest": "none"}
    nights.write()
    return nights


def breaks(nights: Nights) -> None:
    """A source path is gone; its name comes along with the error."""
    nights.host("web1", nights.source, nights.top / "<b>gone")


def notify(nights: Nights, *words: str, status: int = 0) -> dict[str, Any]:
    """The command within this process: a whole one takes half a second to load."""
    done = CliRunner().invoke(group, ["--config", str(nights.config), "notify", "--json", *words], standalone_mode=False)
    if done.exception:
        raise done.exception
    assert done.return_value == status, done.output
    assert "hunter2" not in done.output
    return dict(json.loads(done.stdout))


def alarm_rows(nights: Nights) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        return connection.execute("SELECT what, subject, told IS NOT NULL, recovered IS NOT NULL FROM alarm").fetchall()


def test_a_failure_is_told_once_and_so_is_its_end(told: Nights, server: Web) -> None:
    told.night("web1")
    assert notify(told)["messages"] == []
    breaks(told)
    told.night("web1")
    answer = notify(told)
    assert [(row["what"], row["subject"]) for row in answer["alarms"]] == [("failure", "host web1")]
    assert answer["services"] == [{"number": 1, "service": "JSON", "arrived": True, "reason": ""}]
    for _ in range(3):
        assert notify(told)["messages"] == []
    told.night("web1")  # and it fails once more
    assert len(notify(told)["standing"]) == 1
    told.host("web1", told.source)
    told.night("web1")
    assert [row["subject"] for row in notify(told)["recoveries"]] == ["host web1"]
    assert notify(told)["messages"] == []
    assert [message["type"] for message in server.json()] == ["failure", "success"]
    first, last = server.json()
    assert "/\u2039b\u203agone" in first["message"]
    assert last["title"].startswith("btrkeep main: resolved: web1: ")


def test_what_could_not_be_sent_is_sent_by_a_later_look_and_the_log_says_it_once(told: Nights, server: Web) -> None:
    breaks(told)
    told.night("web1")
    server.status = 500
    complaints = [told.backupd("notify", check=False) for _ in range(2)]
    assert [done.returncode for done in complaints] == [1, 1]
    assert complaints[0].stderr == "WARNING: JSON (number 1 of notify.urls) does not work: it answers with status 500\n"
    assert complaints[1].stderr == ""
    assert ("failure", "host web1", 0, 0) in alarm_rows(told)
    server.status = 200
    assert "JSON (number 1 of notify.urls) works again" in told.backupd("notify").stderr
    assert ("failure", "host web1", 1, 0) in alarm_rows(told)
    assert notify(told)["messages"] == []


def test_the_other_services_are_told_once_of_one_that_does_not_work(told: Nights, server: Web) -> None:
    told.tables["notify"]["urls"] = [*told.tables["notify"]["urls"], "slack://nothing"]
    told.write()
    breaks(told)
    told.night("web1")
    told.backupd("notify", check=False)
    first, second = server.json()
    assert "web1" in first["message"]
    assert second["title"].startswith("btrkeep main: slack (number 2 of notify.urls) does not work: ")
    assert "`backupd notify --test`" in second["message"]
    told.host("web1", told.source)
    told.night("web1")
    told.backupd("notify", check=False)
    assert [message["type"] for message in server.json()] == ["failure", "warning", "success"]


def test_a_service_that_is_no_longer_configured_is_no_alarm(told: Nights, server: Web) -> None:
    urls = told.tables["notify"]["urls"]
    told.tables["notify"]["urls"] = [*urls, f"json://127.0.0.1:{server.port}/", "slack://nothing"]
    told.write()
    breaks(told)
    told.night("web1")
    notify(told)
    assert ("service", "slack (number 3 of notify.urls)", 1, 0) in alarm_rows(told)
    notify(told)
    assert ("service", "slack (number 3 of notify.urls)", 1, 0) in alarm_rows(told)  # nothing was sent since
    told.tables["notify"]["urls"] = urls
    told.write()
    notify(told)
    assert [row for row in alarm_rows(told) if row[0] == "service"] == []


def test_a_dry_run_sends_and_remembers_nothing(told: Nights, server: Web) -> None:
    breaks(told)
    told.night("web1")
    answer = notify(told, "--dry-run")
    assert (len(answer["alarms"]), answer["services"], answer["dry_run"]) == (1, [], True)
    assert "the backup failed" in told.backupd("notify", "--dry-run").stdout
    assert (server.got, alarm_rows(told)) == ([], [])
    assert len(notify(told)["alarms"]) == 1


def test_the_digest_comes_once_a_day_and_whenever_it_is_asked_for(told: Nights, mailbox: Mail) -> None:
    told.night("web1")
    url = f"mailto://127.0.0.1:{mailbox.port}?from=backup@example.org&to=admin@example.org"
    told.settings("notify", urls=[url], digest="00:00")
    assert [notify(told)["digest"] for _ in range(2)] == [True, False]
    assert notify(told, "--digest")["digest"]
    assert [message["Subject"] for message in mailbox.got] == ["btrkeep main: 1 of 1 hosts ok"] * 2
    lines = mailbox.got[0].get_content().splitlines()
    assert lines[0] == "1 host: 1 ok."
    assert "- backups: 1 complete; 1 B of new data" in lines


def test_a_pool_that_is_gone_is_told_and_what_is_not_known_is_not_taken_for_well(told: Nights, server: Web) -> None:
    told.settings("notify", used_limit="0%")
    assert [row["what"] for row in notify(told)["alarms"]] == ["room"]
    told.settings("pool", path=str(told.top / "elsewhere"))
    assert [(row["what"], row["subject"]) for row in notify(told)["alarms"]] == [("failure", "pool")]
    told.settings("pool", path=str(told.pool))
    assert [(row["what"], row["subject"]) for row in notify(told)["recoveries"]] == [("failure", "pool")]
    assert len(server.got) == 3


def test_the_test_says_which_work_and_which_do_not(told: Nights, server: Web) -> None:
    urls = [*told.tables["notify"]["urls"], "slack://hunter2", "mailto://u:hunter2@127.0.0.1:1?from=a@b.de"]
    told.settings("notify", urls=urls)
    done = told.backupd("-vv", "notify", "--test", check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "JSON (number 1 of notify.urls): works",
        "slack (number 2 of notify.urls): does not work: it is not a URL that apprise understands",
        "E-Mail (number 3 of notify.urls): does not work: connection refused",
    ]
    assert "hunter2" not in done.stdout + done.stderr
    assert server.json()[0]["title"] == "btrkeep main: a test"
    assert not told.state.exists()


def systemd(nights: Nights, state: str, lines: str = "") -> dict[str, str]:
    """journalctl and systemctl of our own, which write down how they were called: no systemd runs here."""
    folder = nights.top / "systemd"
    folder.mkdir(exist_ok=True)
    for name, says in (("journalctl", lines), ("systemctl", state)):
        (folder / name).write_text(f"#!/bin/sh\necho {name} \"$@\" >>{folder}/calls\ncat <<'END'\n{says}\nEND\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


FAILED = "ActiveState=failed\nResult=exit-code\nExecMainStatus=4"
UNIT = "btrkeep-backup@main.service"


def test_a_unit_that_failed_is_told_with_its_last_lines_and_its_end_by_a_later_look(told: Nights, server: Web) -> None:
    env = systemd(told, FAILED, "error: pool gone \x1b[2J\n<script>")
    for _ in range(2):  # systemd reports it every night
        told.backupd("notify", "--failed", UNIT, env=env)
    told.backupd("notify", env=env)
    told.backupd("notify", env=systemd(told, "ActiveState=activating\nResult=success\nExecMainStatus=0"))
    assert len(server.got) == 1
    (message,) = server.json()
    assert message["title"] == f"btrkeep main: {UNIT} failed"
    assert message["message"].splitlines()[:5] == [
        f"{UNIT} failed: exit-code, exit status 4.",
        "",
        "Its last messages:",
        "    error: pool gone \\x1b[2J",
        "    \u2039script\u203a",
    ]
    told.backupd("notify", "--failed", UNIT, env=systemd(told, FAILED.replace("=4", "=1")))
    assert len(server.got) == 1
    told.backupd("notify", "--failed", UNIT, env=systemd(told, FAILED.replace("=4", "=203")))
    assert "exit status 203" in server.json()[-1]["message"]  # worse than what people know of
    told.backupd("notify", env=systemd(told, "ActiveState=inactive\nResult=success\nExecMainStatus=0"))
    assert [message["type"] for message in server.json()] == ["failure", "failure", "success"]
    called = (told.top / "systemd" / "calls").read_text()
    assert f"journalctl --unit={UNIT} --lines=15 --output=cat --no-pager --quiet\n" in called


def test_a_unit_is_told_of_without_systemd_and_with_a_damaged_catalogue(told: Nights, server: Web) -> None:
    told.backupd("status")
    (told.state / "catalogue.sqlite").write_bytes(b"nonsense" * 4096)
    empty = told.top / "empty"
    empty.mkdir()
    done = told.backupd("notify", "--failed", UNIT, env={"PATH": str(empty)})
    assert "is damaged" in done.stderr
    assert "journalctl is not installed" in server.json()[0]["message"]


def test_a_look_without_any_capability_takes_no_pool_for_gone(told: Nights, server: Web) -> None:
    told.night("web1")
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", readable().python, "-m", "backupd", "--config", told.config)
    assert work(*bare, "notify", cwd=readable().top).stdout == "nothing new; 0 open alarms\n"
    assert 'btrkeep_pool_usable{pool="main"} 1.0' in work(*bare, "metrics", cwd=readable().top).stdout
    assert server.got == []


@pytest.mark.parametrize("words", [("--failed", "--help"), ("--failed", "a b"), ("--failed", "x.service", "--digest")])
def test_words_that_are_no_unit_or_do_not_go_together_are_refused(told: Nights, words: tuple[str, ...]) -> None:
    assert told.backupd("notify", *words, check=False).returncode == 2


def test_without_urls_alarms_are_kept_and_told_as_new_once_there_are_some(told: Nights, server: Web) -> None:
    urls = told.tables["notify"]["urls"]
    breaks(told)
    told.night("web1")
    told.settings("notify", urls=[], used_limit="0%")
    first, second = (told.backupd("notify").stdout.splitlines() for _ in range(2))
    assert [line.split(":")[0] for line in first] == ["alarm", "alarm", "recorded, but not sent"]
    assert second == ["nothing new; 2 open alarms"]
    assert told.backupd("notify", "--failed", UNIT, env=systemd(told, FAILED)).returncode == 0
    kept = [("failure", "host web1", 0, 0), ("failure", f"unit {UNIT}", 0, 0), ("room", "used", 0, 0)]
    assert sorted(row for row in alarm_rows(told) if row[0] != "silent") == kept  # web1 is waited for besides
    metrics = told.backupd("metrics").stdout
    assert 'btrkeep_alarms{event="failure",pool="main"} 2.0' in metrics
    assert 'btrkeep_alarms{event="room",pool="main"} 1.0' in metrics
    told.settings("notify", urls=[], used_limit="100%")
    notify(told)  # what is over before anybody could hear of it is forgotten
    told.settings("notify", urls=urls)
    told.backupd("notify", env=systemd(told, FAILED))
    assert [message["title"] for message in server.json()] == ["btrkeep main: 2 alarms"]
    rows = sorted(row for row in alarm_rows(told) if row[0] != "silent")
    assert rows == [(name, subject, 1, 0) for name, subject, *_ in kept[:2]]
    assert told.backupd("notify", env=systemd(told, FAILED)).stdout == "nothing new; 2 open alarms\n"
    assert len(server.got) == 1


def test_what_people_know_stays_true_while_there_are_no_urls(told: Nights, server: Web) -> None:
    urls = told.tables["notify"]["urls"]
    told.settings("notify", used_limit="0%")
    assert len(notify(told)["alarms"]) == 1
    told.settings("notify", urls=[], used_limit="100%")
    notify(told)
    assert ("room", "used", 1, 1) in alarm_rows(told), "they still believe that it is full"
    told.settings("notify", urls=urls)
    assert [row["subject"] for row in notify(told)["recoveries"]] == ["used"]
    assert [message["type"] for message in server.json()] == ["warning", "success"]


def test_without_urls_there_is_no_digest_no_test_and_a_unit_says_nothing_in_its_journal(told: Nights) -> None:
    told.settings("notify", urls=[], digest="00:00")
    for words in ("--test", "--digest"):
        assert told.backupd("notify", words, check=False).returncode == 2
    place = told.state.parent / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd_listens:
        systemd_listens.bind(str(place))
        done = told.backupd("notify", env={"NOTIFY_SOCKET": str(place)})
        assert (done.stdout, done.stderr) == ("", "")
        assert systemd_listens.recv(1000) == b"STATUS=nothing new; 0 open alarms"
    assert 'btrkeep_alarms{event="room",pool="main"} 0.0' in told.backupd("metrics").stdout


def test_alarms_are_zero_only_once_somebody_has_looked(told: Nights) -> None:
    told.settings("notify", urls=[])
    before = told.backupd("metrics").stdout
    assert "btrkeep_alarms{" not in before
    assert "btrkeep_alarms_timestamp_seconds{" not in before
    notify(told)
    assert "btrkeep_alarms_timestamp_seconds{" in told.backupd("metrics").stdout
    assert 'btrkeep_alarms{event="silent",pool="main"} 0.0' in told.backupd("metrics").stdout, "web1 is only waited for"


def test_the_alarms_of_another_pools_catalogue_are_left_alone(told: Nights, server: Web) -> None:
    breaks(told)
    told.night("web1")
    notify(told)
    with closing(sqlite3.connect(told.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO about (name, value) VALUES ('pool_id', 'another')")
    rows = alarm_rows(told)
    told.host("web1", told.source)
    done = told.backupd("notify", check=False)
    assert (done.returncode, "belongs to another pool (another)" in done.stderr) == (1, True)
    told.backupd("notify", "--failed", UNIT, env=systemd(told, FAILED))
    assert alarm_rows(told) == rows
    assert server.json()[-1]["title"].endswith(f"{UNIT} failed")


def test_check_warns_of_a_file_with_secrets_that_others_may_read_and_of_urls_that_nobody_understands(told: Nights) -> None:
    def found() -> list[tuple[str, str]]:
        done = told.backupd("check", "--json", check=False)
        assert "hunter2" not in done.stdout + done.stderr
        return [(row["level"], row["hint"] or row["message"]) for row in json.loads(done.stdout) if row["subject"] == "notify"]

    drop_in = told.config.with_suffix(".d") / "notify.toml"
    told.config.chmod(0o600)
    assert found() == [("ok", "1 URL; `backupd notify --test` tries them")]
    drop_in.parent.mkdir()
    drop_in.write_text('[notify]\nping = "https://hc-ping.com/hunter2"\n')
    drop_in.chmod(0o640)
    assert found()[0] == ("warning", f"`chmod 600 {drop_in}`")
    drop_in.write_text('[notify]\nsilent = "2d"\nurls = ["slack://hunter2"]\n')
    drop_in.chmod(0o600)
    assert [level for level, _ in found()] == ["error"]
    del told.tables["notify"]
    told.write()
    drop_in.unlink()
    assert [level for level, _ in found()] == ["note"]


def pinged(nights: Nights, server: Web, *words: str) -> list[str]:
    nights.settings("notify", ping=f"http://127.0.0.1:{server.port}/ping/uuid")
    nights.backupd("run", *words, check=False)
    return server.paths


def test_a_night_that_met_its_goal_is_reported(told: Nights, server: Web) -> None:
    assert pinged(told, server) == ["/ping/uuid/start", "/ping/uuid"]
    assert server.got[1][2] == b"1 of 1 hosts are ok, the goal is 100%"
    assert pinged(told, server)[2:] == ["/ping/uuid/start", "/ping/uuid"]  # nothing was due: all are well


def test_a_night_that_did_not_says_who_is_not_well(told: Nights, server: Web) -> None:
    breaks(told)
    assert pinged(told, server) == ["/ping/uuid/start", "/ping/uuid/fail"]
    assert b"web1: never: " in server.got[1][2]
    told.settings("notify", ping_goal="0%")
    assert pinged(told, server)[2:] == ["/ping/uuid/start", "/ping/uuid"]


@pytest.mark.parametrize("words", [("web1",), ("--dry-run",)])
def test_runs_that_are_no_night_report_nothing(told: Nights, server: Web, words: tuple[str, ...]) -> None:
    assert pinged(told, server, *words) == []


def test_a_night_whose_lock_is_held_or_whose_pool_is_full_is_no_success(told: Nights, server: Web) -> None:
    told.settings("pool", min_free="100%")
    assert pinged(told, server) == ["/ping/uuid/start", "/ping/uuid/fail"]
    assert b"the night ended early: the pool has too little free space" in server.got[1][2]


def test_a_service_that_hangs_or_is_away_does_not_change_the_night(told: Nights, server: Web) -> None:
    server.hang = Event()
    told.settings("notify", ping=f"http://127.0.0.1:{server.port}/hunter2")
    done = told.backupd("run")
    assert done.returncode == 0
    assert told.names("web1")
    assert "no answer in time" in done.stderr
    assert "hunter2" not in done.stderr
    told.settings("notify", ping="http://127.0.0.1:1/hunter2")
    away = told.backupd("run")
    assert "WARNING: the ping /start to 127.0.0.1 failed: Connection refused" in away.stderr


def test_two_that_look_at_once_tell_it_once(told: Nights, server: Web, backupd_running: Any) -> None:
    breaks(told)
    told.night("web1")
    both = [backupd_running("--config", told.config, "notify") for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [0, 0]
    assert len(server.got) == 1


def test_alarms_are_not_sent_again_because_the_catalogue_was_locked_while_they_were_sent(told: Nights, server: Web) -> None:
    """Another service does not work: that is recorded, too, and its failure came before the alarms were remembered."""
    told.night("web1")
    told.tables["notify"]["urls"].append("json://127.0.0.1:1/")
    breaks(told)
    told.night("web1")
    server.hang = Event()
    impatient = str(TOP / "tests/beds/impatient.py")
    words = [sys.executable, "-P", impatient, "--config", str(told.config), "notify", "--json"]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(TOP)}, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(server.got))
        with closing(sqlite3.connect(told.state / "catalogue.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            server.hang.set()
            out = process.communicate(timeout=60)[0]
        assert process.returncode == 1
    sent = [alarm["subject"] for alarm in json.loads(out)["alarms"]]
    assert "web1" in str(sent)
    assert notify(told)["alarms"] == []
    assert notify(told)["alarms"] == []
