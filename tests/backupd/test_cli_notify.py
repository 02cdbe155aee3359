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
from btrkeep.pool.marker import MARKER
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
def site(nights: Nights, server: Web) -> Nights:
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


def test_a_failure_is_told_once_and_so_is_its_end(site: Nights, server: Web) -> None:
    site.night("web1")
    assert notify(site)["messages"] == []
    breaks(site)
    site.night("web1")
    answer = notify(site)
    assert [(row["what"], row["subject"]) for row in answer["alarms"]] == [("failure", "host web1")]
    assert answer["services"] == [{"number": 1, "service": "JSON", "arrived": True, "reason": ""}]
    for _ in range(3):
        assert notify(site)["messages"] == []
    site.night("web1")  # and it fails once more
    assert len(notify(site)["standing"]) == 1
    site.host("web1", site.source)
    site.night("web1")
    assert [row["subject"] for row in notify(site)["recoveries"]] == ["host web1"]
    assert notify(site)["messages"] == []
    assert [message["type"] for message in server.json()] == ["failure", "success"]
    first, last = server.json()
    assert "/\u2039b\u203agone" in first["message"]
    assert last["title"].startswith("btrkeep main: resolved: web1: ")


def test_what_could_not_be_sent_is_sent_by_a_later_look_and_the_log_says_it_once(site: Nights, server: Web) -> None:
    breaks(site)
    site.night("web1")
    server.status = 500
    complaints = [site.backupd("notify", check=False) for _ in range(2)]
    assert [done.returncode for done in complaints] == [1, 1]
    assert complaints[0].stderr == "WARNING: JSON (number 1 of notify.urls) does not work: it answers with status 500\n"
    assert complaints[1].stderr == ""
    assert ("failure", "host web1", 0, 0) in alarm_rows(site)
    server.status = 200
    assert "JSON (number 1 of notify.urls) works again" in site.backupd("notify").stderr
    assert ("failure", "host web1", 1, 0) in alarm_rows(site)
    assert notify(site)["messages"] == []


def test_the_other_services_are_told_once_of_one_that_does_not_work(site: Nights, server: Web) -> None:
    site.tables["notify"]["urls"] = [*site.tables["notify"]["urls"], "slack://nothing"]
    site.write()
    breaks(site)
    site.night("web1")
    site.backupd("notify", check=False)
    first, second = server.json()
    assert "web1" in first["message"]
    assert second["title"].startswith("btrkeep main: slack (number 2 of notify.urls) does not work: ")
    assert "`backupd notify --test`" in second["message"]
    site.host("web1", site.source)
    site.night("web1")
    site.backupd("notify", check=False)
    assert [message["type"] for message in server.json()] == ["failure", "warning", "success"]


def test_a_service_that_is_no_longer_configured_is_no_alarm(site: Nights, server: Web) -> None:
    urls = site.tables["notify"]["urls"]
    site.tables["notify"]["urls"] = [*urls, f"json://127.0.0.1:{server.port}/", "slack://nothing"]
    site.write()
    breaks(site)
    site.night("web1")
    notify(site)
    assert ("service", "slack (number 3 of notify.urls)", 1, 0) in alarm_rows(site)
    notify(site)
    assert ("service", "slack (number 3 of notify.urls)", 1, 0) in alarm_rows(site)  # nothing was sent since
    site.tables["notify"]["urls"] = urls
    site.write()
    notify(site)
    assert [row for row in alarm_rows(site) if row[0] == "service"] == []


def test_a_dry_run_sends_and_remembers_nothing(site: Nights, server: Web) -> None:
    breaks(site)
    site.night("web1")
    answer = notify(site, "--dry-run")
    assert (len(answer["alarms"]), answer["services"], answer["dry_run"]) == (1, [], True)
    assert "the backup failed" in site.backupd("notify", "--dry-run").stdout
    assert (server.got, alarm_rows(site)) == ([], [])
    assert len(notify(site)["alarms"]) == 1


def test_the_digest_comes_once_a_day_and_whenever_it_is_asked_for(site: Nights, mailbox: Mail) -> None:
    site.night("web1")
    url = f"mailto://127.0.0.1:{mailbox.port}?from=backup@example.org&to=admin@example.org"
    site.settings("notify", urls=[url], digest="00:00")
    assert [notify(site)["digest"] for _ in range(2)] == [True, False]
    assert notify(site, "--digest")["digest"]
    assert [message["Subject"] for message in mailbox.got] == ["btrkeep main: 1 of 1 hosts ok"] * 2
    lines = mailbox.got[0].get_content().splitlines()
    assert lines[0] == "1 host: 1 ok."
    assert "- backups: 1 complete; 1 B of new data" in lines


def test_a_pool_that_is_gone_is_told_and_what_is_not_known_is_not_taken_for_well(site: Nights, server: Web) -> None:
    site.settings("notify", used_limit="0%")
    assert [row["what"] for row in notify(site)["alarms"]] == ["room"]
    site.settings("pool", path=str(site.top / "elsewhere"))
    assert [(row["what"], row["subject"]) for row in notify(site)["alarms"]] == [("failure", "pool")]
    site.settings("pool", path=str(site.pool))
    assert [(row["what"], row["subject"]) for row in notify(site)["recoveries"]] == [("failure", "pool")]
    assert len(server.got) == 3


def test_the_test_says_which_work_and_which_do_not(site: Nights, server: Web) -> None:
    urls = [*site.tables["notify"]["urls"], "slack://hunter2", "mailto://u:hunter2@127.0.0.1:1?from=a@b.de"]
    site.settings("notify", urls=urls)
    done = site.backupd("-vv", "notify", "--test", check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "JSON (number 1 of notify.urls): works",
        "slack (number 2 of notify.urls): does not work: apprise does not support this URL",
        "E-Mail (number 3 of notify.urls): does not work: connection refused",
    ]
    assert "hunter2" not in done.stdout + done.stderr
    assert server.json()[0]["title"] == "btrkeep main: a test"
    assert not site.state.exists()


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


def test_a_unit_that_failed_is_told_with_its_last_lines_and_its_end_by_a_later_look(site: Nights, server: Web) -> None:
    env = systemd(site, FAILED, "error: pool gone \x1b[2J\n<script>")
    for _ in range(2):  # systemd reports it every night
        site.backupd("notify", "--failed", UNIT, env=env)
    site.backupd("notify", env=env)
    site.backupd("notify", env=systemd(site, "ActiveState=activating\nResult=success\nExecMainStatus=0"))
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
    site.backupd("notify", "--failed", UNIT, env=systemd(site, FAILED.replace("=4", "=1")))
    assert len(server.got) == 1
    site.backupd("notify", "--failed", UNIT, env=systemd(site, FAILED.replace("=4", "=203")))
    assert "exit status 203" in server.json()[-1]["message"]  # worse than what people know of
    site.backupd("notify", env=systemd(site, "ActiveState=inactive\nResult=success\nExecMainStatus=0"))
    assert [message["type"] for message in server.json()] == ["failure", "failure", "success"]
    called = (site.top / "systemd" / "calls").read_text()
    assert f"journalctl --unit={UNIT} --lines=15 --output=cat --no-pager --quiet\n" in called


def test_a_unit_is_told_of_without_systemd_and_with_a_damaged_catalogue(site: Nights, server: Web) -> None:
    site.backupd("status")
    (site.state / "catalogue.sqlite").write_bytes(b"nonsense" * 4096)
    empty = site.top / "empty"
    empty.mkdir()
    done = site.backupd("notify", "--failed", UNIT, env={"PATH": str(empty)})
    assert "is damaged" in done.stderr
    assert "journalctl is not installed" in server.json()[0]["message"]


def test_a_look_without_any_capability_takes_no_pool_for_gone(site: Nights, server: Web) -> None:
    site.night("web1")
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", readable().python, "-m", "backupd", "--config", site.config)
    assert work(*bare, "notify", cwd=readable().top).stdout == "nothing new; 0 open alarms\n"
    assert 'btrkeep_pool_usable{pool="main"} 1.0' in work(*bare, "metrics", cwd=readable().top).stdout
    assert server.got == []


@pytest.mark.parametrize("words", [("--failed", "--help"), ("--failed", "a b"), ("--failed", "x.service", "--digest")])
def test_words_that_are_no_unit_or_do_not_go_together_are_refused(site: Nights, words: tuple[str, ...]) -> None:
    assert site.backupd("notify", *words, check=False).returncode == 2


def test_without_urls_alarms_are_kept_and_told_as_new_once_there_are_some(site: Nights, server: Web) -> None:
    urls = site.tables["notify"]["urls"]
    breaks(site)
    site.night("web1")
    site.settings("notify", urls=[], used_limit="0%")
    first, second = (site.backupd("notify").stdout.splitlines() for _ in range(2))
    assert [line.split(":")[0] for line in first] == ["alarm", "alarm", "recorded, but not sent"]
    assert second == ["nothing new; 2 open alarms"]
    assert site.backupd("notify", "--failed", UNIT, env=systemd(site, FAILED)).returncode == 0
    kept = [("failure", "host web1", 0, 0), ("failure", f"unit {UNIT}", 0, 0), ("room", "used", 0, 0)]
    assert sorted(row for row in alarm_rows(site) if row[0] != "silent") == kept  # web1 is waited for besides
    metrics = site.backupd("metrics").stdout
    assert 'btrkeep_alarms{event="failure",pool="main"} 2.0' in metrics
    assert 'btrkeep_alarms{event="room",pool="main"} 1.0' in metrics
    site.settings("notify", urls=[], used_limit="100%")
    notify(site)  # a problem that ended before it was sent is forgotten
    site.settings("notify", urls=urls)
    site.backupd("notify", env=systemd(site, FAILED))
    assert [message["title"] for message in server.json()] == ["btrkeep main: 2 alarms"]
    rows = sorted(row for row in alarm_rows(site) if row[0] != "silent")
    assert rows == [(name, subject, 1, 0) for name, subject, *_ in kept[:2]]
    assert site.backupd("notify", env=systemd(site, FAILED)).stdout == "nothing new; 2 open alarms\n"
    assert len(server.got) == 1


def test_what_people_know_stays_true_while_there_are_no_urls(site: Nights, server: Web) -> None:
    urls = site.tables["notify"]["urls"]
    site.settings("notify", used_limit="0%")
    assert len(notify(site)["alarms"]) == 1
    site.settings("notify", urls=[], used_limit="100%")
    notify(site)
    assert ("room", "used", 1, 1) in alarm_rows(site), "they still believe that it is full"
    site.settings("notify", urls=urls)
    assert [row["subject"] for row in notify(site)["recoveries"]] == ["used"]
    assert [message["type"] for message in server.json()] == ["warning", "success"]


def test_without_urls_there_is_no_digest_no_test_and_a_unit_says_nothing_in_its_journal(site: Nights) -> None:
    site.settings("notify", urls=[], digest="00:00")
    for words in ("--test", "--digest"):
        assert site.backupd("notify", words, check=False).returncode == 2
    place = site.state.parent / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd_listens:
        systemd_listens.bind(str(place))
        done = site.backupd("notify", env={"NOTIFY_SOCKET": str(place)})
        assert (done.stdout, done.stderr) == ("", "")
        assert systemd_listens.recv(1000) == b"STATUS=nothing new; 0 open alarms"
    assert 'btrkeep_alarms{event="room",pool="main"} 0.0' in site.backupd("metrics").stdout


def test_alarms_are_zero_only_after_the_first_check(site: Nights) -> None:
    site.settings("notify", urls=[])
    before = site.backupd("metrics").stdout
    assert "btrkeep_alarms{" not in before
    assert "btrkeep_alarms_timestamp_seconds{" not in before
    notify(site)
    assert "btrkeep_alarms_timestamp_seconds{" in site.backupd("metrics").stdout
    assert 'btrkeep_alarms{event="silent",pool="main"} 0.0' in site.backupd("metrics").stdout, "web1 is only waited for"


def test_the_alarms_of_another_pools_catalogue_are_left_alone(site: Nights, server: Web) -> None:
    breaks(site)
    site.night("web1")
    notify(site)
    with closing(sqlite3.connect(site.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO about (name, value) VALUES ('pool_id', 'another')")
    rows = alarm_rows(site)
    site.host("web1", site.source)
    done = site.backupd("notify", check=False)
    assert (done.returncode, "belongs to another pool (another)" in done.stderr) == (1, True)
    site.backupd("notify", "--failed", UNIT, env=systemd(site, FAILED))
    assert alarm_rows(site) == rows
    assert server.json()[-1]["title"].endswith(f"{UNIT} failed")


def test_check_warns_of_a_readable_file_with_secrets_and_of_unknown_urls(site: Nights) -> None:
    def findings() -> list[tuple[str, str]]:
        done = site.backupd("check", "--json", check=False)
        assert "hunter2" not in done.stdout + done.stderr
        return [(row["level"], row["hint"] or row["message"]) for row in json.loads(done.stdout) if row["subject"] == "notify"]

    drop_in = site.config.with_suffix(".d") / "notify.toml"
    site.config.chmod(0o600)
    assert findings() == [("ok", "1 URL; `backupd notify --test` tries them")]
    drop_in.parent.mkdir()
    drop_in.write_text('[notify]\nping = "https://hc-ping.com/hunter2"\n')
    drop_in.chmod(0o640)
    assert findings()[0] == ("warning", f"`chmod 600 {drop_in}`")
    drop_in.write_text('[notify]\nsilent = "2d"\nurls = ["slack://hunter2"]\n')
    drop_in.chmod(0o600)
    assert [level for level, _ in findings()] == ["error"]
    del site.tables["notify"]
    site.write()
    drop_in.unlink()
    assert [level for level, _ in findings()] == ["note"]


def pinged(nights: Nights, server: Web, *words: str) -> list[str]:
    nights.settings("notify", ping=f"http://127.0.0.1:{server.port}/ping/uuid")
    nights.backupd("run", *words, check=False)
    return server.paths


def test_a_night_that_met_its_goal_is_reported(site: Nights, server: Web) -> None:
    assert pinged(site, server) == ["/ping/uuid/start", "/ping/uuid"]
    assert server.got[1][2] == b"1 of 1 hosts are ok, the goal is 100%"
    assert pinged(site, server)[2:] == ["/ping/uuid/start", "/ping/uuid"]  # nothing was due: all are well


def test_a_night_that_did_not_says_who_is_not_well(site: Nights, server: Web) -> None:
    breaks(site)
    assert pinged(site, server) == ["/ping/uuid/start", "/ping/uuid/fail"]
    assert b"web1: never: " in server.got[1][2]
    site.settings("notify", ping_goal="0%")
    assert pinged(site, server)[2:] == ["/ping/uuid/start", "/ping/uuid"]


@pytest.mark.parametrize("words", [("web1",), ("--dry-run",)])
def test_runs_that_are_no_night_report_nothing(site: Nights, server: Web, words: tuple[str, ...]) -> None:
    assert pinged(site, server, *words) == []


def test_a_night_whose_lock_is_held_or_whose_pool_is_full_is_no_success(site: Nights, server: Web) -> None:
    site.settings("pool", min_free="100%")
    assert pinged(site, server) == ["/ping/uuid/start", "/ping/uuid/fail"]
    assert b"the night ended early: the pool has too little free space" in server.got[1][2]


def test_a_night_that_cannot_start_is_reported_as_failed_with_its_reason(site: Nights, server: Web) -> None:
    """Without this the service waits for the next ping, for hours: the disk may be missing for that long."""
    assert pinged(site, server) == ["/ping/uuid/start", "/ping/uuid"]
    marker, away = site.pool / MARKER, site.pool / "away"
    marker.rename(away)  # as if the disk was not mounted
    for words in (("web1",), ("--dry-run",)):
        assert pinged(site, server, *words)[2:] == []
    assert pinged(site, server)[2:] == ["/ping/uuid/start", "/ping/uuid/fail"]
    away.rename(marker)
    site.config.write_text(site.config.read_text() + "[pool\n")  # the last valid configuration has the URL
    assert site.backupd("run", check=False).returncode == 2
    assert server.paths[4:] == ["/ping/uuid/start", "/ping/uuid/fail"]
    without_pool, without_configuration = (server.got[number][2].decode() for number in (3, 5))
    assert without_pool.startswith(f"the night could not start: {site.pool}")
    assert without_configuration.startswith(f"the night could not start: {site.config}")


def test_a_service_that_hangs_or_is_away_does_not_change_the_night(site: Nights, server: Web) -> None:
    server.hang = Event()
    site.settings("notify", ping=f"http://127.0.0.1:{server.port}/hunter2")
    done = site.backupd("run")
    assert done.returncode == 0
    assert site.names("web1")
    assert "no answer in time" in done.stderr
    assert "hunter2" not in done.stderr
    site.settings("notify", ping="http://127.0.0.1:1/hunter2")
    away = site.backupd("run")
    assert "WARNING: the ping /start to 127.0.0.1 failed: Connection refused" in away.stderr


def test_two_that_look_at_once_tell_it_once(site: Nights, server: Web, backupd_running: Any) -> None:
    breaks(site)
    site.night("web1")
    both = [backupd_running("--config", site.config, "notify") for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [0, 0]
    assert len(server.got) == 1


def test_alarms_are_not_sent_again_because_the_catalogue_was_locked_while_they_were_sent(site: Nights, server: Web) -> None:
    """Another service does not work: that is recorded, too, and its failure came before the alarms were remembered."""
    site.night("web1")
    site.tables["notify"]["urls"].append("json://127.0.0.1:1/")
    breaks(site)
    site.night("web1")
    server.hang = Event()
    impatient = str(TOP / "tests/beds/impatient.py")
    words = [sys.executable, "-P", impatient, "--config", str(site.config), "notify", "--json"]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(TOP)}, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(server.got))
        with closing(sqlite3.connect(site.state / "catalogue.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            server.hang.set()
            out = process.communicate(timeout=60)[0]
        assert process.returncode == 1
    sent = [alarm["subject"] for alarm in json.loads(out)["alarms"]]
    assert "web1" in str(sent)
    assert notify(site)["alarms"] == []
    assert notify(site)["alarms"] == []
