"""Faults are reported without the faulty part: broken configuration, catalogue, state folder, pool. Whole commands."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backupd.expire.trust import keep_clocks
from btrkeep.catalogue import Catalogue
from btrkeep.catalogue.tables import SCHEMA_VERSION
from btrkeep.decisions.safety_limits import ClockFact, ClockPast
from tests.beds import work
from tests.beds.cli import command
from tests.beds.nights import Nights
from tests.beds.receivers import Web, web

pytestmark = pytest.mark.btrfs
UNIT = "btrkeep-backup@main.service"


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as result:
        yield result


@pytest.fixture
def site(nights: Nights, server: Web) -> Nights:
    """Two hosts with a complete backup each; `notify` has run once, and has kept the valid configuration."""
    (nights.source / "file").write_text("x")
    nights.tables["notify"] = {
        "urls": [f"json://127.0.0.1:{server.port}/"],
        "ping": f"http://127.0.0.1:{server.port}/ping",
        "digest": "none",
    }
    nights.host("web1", nights.source)
    nights.host("web2", nights.source)
    nights.night()
    assert nights.backupd("notify").stdout == "nothing new; 0 open alarms\n"
    return nights


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def messages(server: Web) -> list[dict[str, Any]]:
    return [json.loads(body) for _, path, body in server.got if not path.startswith("/ping")]


def test_a_broken_configuration_is_reported_first_and_once_by_all_that_reports(site: Nights, server: Web) -> None:
    good = site.config.read_text()
    site.config.write_text(f"{good}[retention]\nweekly = 'x'\n")
    fault = f'{site.config}:{len(good.splitlines()) + 2}: retention.weekly = "x": expected a whole number'
    process = site.backupd("notify")
    assert fault in process.stderr
    (message,) = messages(server)
    assert fault in message["message"].splitlines()[1]
    assert site.backupd("notify").stdout == "nothing new; 1 open alarm\n"
    assert len(messages(server)) == 1
    site.backupd("notify", "--failed", UNIT)
    assert messages(server)[-1]["message"].startswith("The configuration is wrong:\n- " + fault[:40])
    site.backupd("notify", "--digest")
    assert messages(server)[-1]["title"] == "btrkeep main: the configuration is wrong, 2 of 2 hosts ok, 2 alarms"
    assert fault in messages(server)[-1]["message"].splitlines()[1]
    metrics = site.backupd("metrics", check=False)
    assert (metrics.returncode, 'btrkeep_config_faults{pool="main"} 1.0' in metrics.stdout) == (1, True)
    assert 'btrkeep_host_state{host="web1",pool="main",state="ok"} 1.0' in metrics.stdout
    status = site.backupd("status", check=False)
    assert (status.returncode, plain(status.stdout).startswith(f"configuration: {fault}")) == (2, True)
    assert "2 hosts: 2 ok" in status.stdout
    assert json.loads(site.backupd("status", "--json", check=False).stdout)["looked"]["faults"][0].startswith(fault)
    before = len(server.got)
    for words in (("run",), ("check",)):
        stopped = site.backupd(*words, check=False)
        assert (stopped.returncode, fault in stopped.stderr) == (2, True), stopped
    assert server.paths[before:] == ["/ping/start", "/ping/fail"]
    assert fault.encode() in server.got[-1][2]
    site.config.write_text(good)
    assert "resolved" in site.backupd("notify").stdout


def test_one_hosts_mistake_leaves_it_out_and_its_backups_stay(site: Nights, server: Web) -> None:
    site.host("web2", site.source, group="debian")
    line = site.config.read_text().splitlines().index('group = "debian"') + 1
    fault = f'{site.config}:{line}: host.web2.group = "debian": there is no such group'
    ran = site.backupd("run", "--all", "--json", check=False)
    assert (ran.returncode, [result["host"] for result in json.loads(ran.stdout)]) == (1, ["web1"])
    assert fault in ran.stderr
    for words in (("retention", "explain", "web2"), ("restore", "web2", "/", "--to-host")):
        refused = site.backupd(*words, check=False)
        assert (refused.returncode, refused.stderr.count(fault) >= 1, "correct that line" in refused.stderr) == (2, True, True), (
            words
        )
    named = site.backupd("run", "web2", check=False)
    assert (named.returncode, fault in named.stderr) == (2, True)
    status = site.backupd("status", check=False)
    assert (status.returncode, plain(status.stdout).splitlines()[0]) == (1, f"configuration: {fault}")
    assert "not configured" not in status.stdout
    assert re.search(r"web2 +failing", plain(status.stdout))
    assert fault in site.backupd("check", check=False).stdout.replace("\n", " ")
    forgot = site.backupd("forget", "web2", "--yes", check=False)
    assert (forgot.returncode, fault in forgot.stderr) == (2, True)
    expired = site.backupd("expire", check=False)
    assert (expired.returncode, "web2" in expired.stdout + expired.stderr) == (1, True)
    site.backupd("notify")
    assert fault in messages(server)[-1]["message"]
    assert len(list((site.pool / "hosts" / "web2").glob("2*"))) == 1
    site.host("web2", site.source)
    assert set(site.run()) == {"web1", "web2"}


def test_where_every_host_is_left_out_they_are_still_configured_and_nothing_is_called_done(nights: Nights) -> None:
    nights.host("web1", nights.source, group="debian")
    ran = nights.backupd("run", check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (1, "no host was backed up")
    assert "no host is configured" not in nights.backupd("check", check=False).stdout.replace("\n", " ")


@contextmanager
def damaged(site: Nights) -> Iterator[None]:
    file = site.state / "catalogue.sqlite"
    content = file.read_bytes()
    file.write_bytes(b"nonsense" * 4096)
    yield
    file.write_bytes(content)


@contextmanager
def newer(site: Nights) -> Iterator[None]:
    def set_schema(version: int) -> None:
        with closing(sqlite3.connect(site.state / "catalogue.sqlite")) as connection, connection:
            connection.execute(f"PRAGMA user_version = {version}")

    set_schema(9999)
    yield
    set_schema(SCHEMA_VERSION)


@contextmanager
def read_only(site: Nights) -> Iterator[None]:
    work("mount", "--bind", site.state, site.state)
    work("mount", "-o", "remount,ro,bind", site.state)
    try:
        yield
    finally:
        work("umount", site.state)


@contextmanager
def without_state_folder(site: Nights) -> Iterator[None]:
    site.state.rename(site.state.with_name("away"))
    site.state.write_text("a file in its place")
    yield
    site.state.unlink()
    site.state.with_name("away").rename(site.state)


@pytest.mark.parametrize("fault", [damaged, newer, read_only, without_state_folder])
def test_an_unusable_catalogue_is_reported_once_and_so_is_its_end(
    site: Nights, server: Web, fault: Callable[[Nights], Any]
) -> None:
    with fault(site):
        assert site.backupd("notify", check=False).returncode == 1
        (message,) = messages(server)
        assert "catalogue" in message["message"]
        for _ in range(2):
            site.backupd("notify", check=False)
        assert len(messages(server)) == 1, "what was sent is not sent again"
        site.backupd("notify", "--failed", UNIT)
        site.backupd("notify", "--failed", UNIT)
        assert len(messages(server)) == 2
        metrics = site.backupd("metrics", check=False).stdout
        assert 'btrkeep_pool_usable{pool="main"} 1.0' in metrics
        assert ('btrkeep_catalogue_usable{pool="main"} 0.0' in metrics) == (fault is not read_only)
        status = site.backupd("status", check=False)
        assert (status.returncode, plain(status.stdout).startswith("unknown: ")) == (1, True)
    process = site.backupd("notify", check=False)
    assert process.returncode == 0, process.stderr
    assert [row["type"] for row in messages(server)] == ["failure", "failure", "success"]
    assert site.backupd("notify").stdout.startswith("nothing new")


def test_the_digest_is_sent_without_a_catalogue_and_says_so(site: Nights, server: Web) -> None:
    site.tables["notify"]["digest"] = "00:00"
    site.write()
    with damaged(site):
        for _ in range(2):
            site.backupd("notify", check=False)
    titles = [message["title"] for message in messages(server)]
    (digest,) = [message for message in messages(server) if "the state of the hosts is unknown" in message["title"]]
    assert len(titles) == 2, titles
    assert "backups: unknown: the catalogue" in digest["message"]
    assert "no backup was attempted" not in digest["message"]


def test_a_mistake_in_who_may_do_what_stops_the_dashboard_and_no_backup(site: Nights) -> None:
    site.backupd("check", check=False)
    good = site.config.read_text()
    site.config.write_text(f'{good}[serve]\nno_downloads = "yes"\n')
    fault = f"{site.config}:{len(good.splitlines()) + 2}: serve.no_downloads"
    ran = site.backupd("run", "--all", "--json", check=False)
    assert (ran.returncode, {result["outcome"] for result in json.loads(ran.stdout)}) == (1, {"complete"})
    assert ran.stderr.startswith(f"error: {fault}")
    served = site.backupd("serve", "--socket", site.top / "socket", check=False)
    assert (served.returncode, fault in served.stderr) == (2, True)
    dashboard = command("web", "--state", site.state, "--data", site.top / "data", "serve", "--listen", "127.0.0.1:0", check=False)
    assert (dashboard.returncode, "leaves it unclear who may use the dashboard" in dashboard.stderr) == (1, True)


def test_a_full_state_folder_is_reported_once(site: Nights, server: Web) -> None:
    content = {path.name: path.read_bytes() for path in site.state.iterdir()}
    work("mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", site.state)
    try:
        for name, data in content.items():
            (site.state / name).write_bytes(data)
        work("sh", "-c", 'cat /dev/zero > "$1"', "sh", site.state / "filler", check=False)
        for _ in range(2):
            site.backupd("notify", check=False)
        (message,) = messages(server)
        assert "no free space for the catalogue" in message["message"]
        assert "alarms.json" in [path.name for path in site.memory.iterdir()]
    finally:
        work("umount", "-l", site.state)  # another program may look at all mounts
    site.backupd("notify")
    assert not site.memory.exists()


def test_a_locked_catalogue_is_reported_when_it_stays_locked(site: Nights, server: Web) -> None:
    with closing(sqlite3.connect(site.state / "catalogue.sqlite", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        done = site.backupd("notify", check=False)
        assert (done.returncode, messages(server)) == (1, [])
        kept = json.loads((site.state / "alarms.json").read_text())
        (row,) = [row for row in kept["rows"] if row["subject"] == "catalogue"]
        row["since"] = "2020-01-01T00:00:00+00:00"
        (site.state / "alarms.json").write_text(json.dumps(kept))
        site.backupd("notify", check=False)
        assert len(messages(server)) == 1


def test_without_a_network_the_message_is_sent_later_also_without_a_catalogue(site: Nights, server: Web) -> None:
    with damaged(site):
        server.status = 500
        site.backupd("notify", "--failed", UNIT, check=False)
        site.backupd("notify", check=False)
        server.status = 200
        before = len(server.got)
        site.backupd("notify", check=False)
        site.backupd("notify", check=False)
        assert len(server.got) == before + 1


def test_a_pool_that_is_away_is_unknown_first(site: Nights, server: Web) -> None:
    site.pool.rename(site.top / "elsewhere")
    site.pool.mkdir()
    site.backupd("notify")
    status = site.backupd("status", check=False)
    first, *others = plain(status.stdout).splitlines()
    assert (status.returncode, first.startswith("unknown: "), "was last readable 20" in first) == (4, True, True)
    assert any("2 ok" in line for line in others)
    site.backupd("notify", "--digest")
    assert messages(server)[-1]["title"].startswith("btrkeep main: the state of the pool is unknown, 2 of 2 hosts ok")
    assert messages(server)[-1]["message"].startswith("The pool cannot be read: ")
    before = len(server.got)
    assert site.backupd("run", check=False).returncode == 4
    assert server.paths[before:] == ["/ping/start", "/ping/fail"]


def test_alarms_that_were_not_checked_for_an_hour_are_unknown_first(site: Nights) -> None:
    with closing(sqlite3.connect(site.state / "catalogue.sqlite")) as connection, connection:
        (text,) = connection.execute("SELECT value FROM about WHERE name = 'health'").fetchone()
        old = json.dumps({**json.loads(text), "looked": "2026-01-01T00:00:00Z"})
        connection.execute("UPDATE about SET value = ? WHERE name = 'health'", (old,))
    status = site.backupd("status", check=False)
    first = plain(status.stdout).splitlines()[0]
    assert (status.returncode, first.startswith("unknown: alarms were last checked 2026-01-01")) == (1, True)
    assert site.backupd("notify").returncode == 0
    after = site.backupd("status").stdout.splitlines()
    assert after[-1].startswith("alarms were last checked 20")


def test_a_clock_that_went_backwards_is_an_alarm(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")
    later = datetime.now(UTC) + timedelta(days=3)
    with Catalogue.open(nights.state) as catalogue:
        keep_clocks(catalogue, ClockPast(ClockFact(later, 0.0, "another boot")))
    assert "the clock went back" in nights.json("status")["clock"]
    report = json.loads(nights.backupd("notify", "--json", check=False).stdout)
    assert [(alarm["subject"], "the clock went back" in alarm["text"]) for alarm in report["standing"]] == [("clock", True)]
    assert 'btrkeep_alarms{event="failure",pool="main"} 1.0' in nights.backupd("metrics").stdout
    with Catalogue.open(nights.state) as catalogue:
        keep_clocks(catalogue, ClockPast())
    assert json.loads(nights.backupd("notify", "--json").stdout)["standing"] == []
