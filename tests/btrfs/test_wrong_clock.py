"""One night has a clock that is years ahead; then the clock is right again, and only the backups before and since count."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.beds.cli import TOP
from tests.beds.expiries import Expiries
from tests.beds.history import every, make_history
from tests.beds.nights import Nights
from tests.beds.receivers import web
from tests.beds.work import work

DAY = timedelta(days=1)
SHIFTED = TOP / "tests" / "beds" / "shifted.py"


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    """A pool whose clock is the machine's, with three good nights, an expiry, and a night stamped years ahead."""
    pool = Expiries.__new__(Expiries)
    Nights.__init__(pool, shared_btrfs)
    pool.tables["retention"] = {"daily": 14, "min_keep": 1, "grace": "1s"}
    pool.settings("pool", zone="UTC")
    (pool.source / "file").write_text("it")
    pool.host("web1", pool.source)
    make_history(pool, "web1", every(1, 3, datetime.now(UTC).replace(microsecond=0) - DAY))
    assert pool.backupd("expire").returncode == 0
    (result,) = pool.night("web1", now=datetime.now(UTC) + 1800 * DAY)
    assert result.outcome == "complete"
    return pool


def fails(pool: Expiries) -> None:
    """Runs a night with the right clock in which the source is missing."""
    pool.host("web1", pool.source / "missing")
    pool.run("web1", status=1)


def test_status_and_alarms_go_by_the_nights_with_a_right_clock_and_name_the_other(pool: Expiries) -> None:
    good, ahead = pool.names("web1")[2], pool.names("web1")[3]
    fails(pool)
    answer = pool.status("web1")
    stamp = datetime.strptime(good, "%Y-%m-%dT%H%M%SZ").replace(tzinfo=UTC)
    assert answer["state"] == "failing"
    assert datetime.fromisoformat(answer["last_complete"]) == stamp
    assert 86400 <= answer["age"] < 2 * 86400
    assert f"the time of a backup, {ahead[:4]}" in answer["warnings"][0]
    (line,) = (line for line in pool.backupd("status").stdout.splitlines() if line.startswith("web1"))
    assert answer["error"] in line
    assert answer["warnings"][0] in line
    document = json.loads(pool.backupd("notify", "--dry-run", "--json", check=False).stdout)
    assert [alarm["subject"] for alarm in document["alarms"] if alarm["what"] == "failure"] == ["host web1"]
    listed = pool.backupd("list", "web1").stdout.splitlines()
    assert ["its time is in the future" in line for line in listed if ahead in line] == [True]
    assert ahead not in pool.backupd("list").stdout


def test_expiry_goes_on_every_morning_and_keeps_the_one_from_the_future(pool: Expiries) -> None:
    ahead = pool.names("web1")[3]
    for _ in range(2):
        done = pool.backupd("expire", "--json", check=False)
        assert (done.returncode, json.loads(done.stdout)["stop"]) == (0, None), done.stdout
    assert ahead in pool.left("web1")
    work("btrfs", "subvolume", "delete", pool.backup("web1", ahead))  # as docs/retention.rst recommends
    assert pool.backupd("expire").returncode == 0
    assert pool.status("web1")["warnings"] == []


def test_what_is_restored_without_a_name_and_what_the_next_night_grows_from_is_the_newest_that_is_not_ahead(pool: Expiries) -> None:
    good, ahead = pool.names("web1")[2], pool.names("web1")[3]

    def browsed(which: str) -> str:
        return str(json.loads(pool.backupd("browse", which, "/", "--json").stdout)["backup"]["name"])

    assert browsed("web1") == good
    assert browsed(f"web1@{ahead}") == ahead
    pool.backupd("hold", "web1", "latest")
    assert [name for name, note in pool.notes("web1")["backups"].items() if "hold" in note] == [good]
    pool.run("web1")
    newest = max(set(pool.names("web1")) - {ahead})
    assert newest > good
    assert pool.record("web1", newest)["base"] == good
    assert browsed("web1") == newest


def test_a_host_that_has_nothing_but_a_backup_from_the_future_is_restored_from_that(pool: Expiries) -> None:
    *good, ahead = pool.names("web1")
    for name in good:
        work("btrfs", "subvolume", "delete", pool.backup("web1", name))
    assert ahead in pool.backupd("browse", "web1", "/", "--json").stdout
    assert subprocess.run(["test", "-e", pool.data("web1", pool.source, ahead) / "file"], check=False).returncode == 0


def test_a_night_before_the_clock_was_set_copies_nothing_anew_and_ends_no_backup(pool: Expiries) -> None:
    """A machine without a battery for its clock begins in 1970, and its network comes up later."""
    good = pool.names("web1")[:3]
    (result,) = pool.night("web1", now=datetime(1970, 1, 1, 0, 3, tzinfo=UTC))
    assert result.outcome == "complete"
    early = pool.names("web1")[0]
    assert early.startswith("1970")
    assert pool.record("web1", early)["base"] in pool.names("web1")[1:]
    assert pool.record("web1", early)["paths"][0]["numbers"]["literal"] == 0
    pool.run("web1")
    newest = pool.names("web1")[4]
    assert pool.record("web1", newest)["base"] == good[-1]
    done = pool.backupd("expire", "--json", check=False)
    assert (done.returncode, json.loads(done.stdout)["stop"]) == (0, None), done.stdout
    assert set(good) <= set(pool.left("web1"))


def test_a_clock_far_ahead_or_far_behind_is_reported_once_and_so_is_its_end(shared_btrfs: Path) -> None:
    """The clock is wrong by five years in both directions, and right in between; real messages are sent."""
    nights = Nights(shared_btrfs)
    (nights.source / "file").write_text("it")
    nights.host("web1", nights.source)

    def notified(shift: timedelta) -> list[str]:
        before = len(server.got)
        seconds = str(shift.total_seconds())
        work(
            sys.executable, "-P", SHIFTED, seconds, "--config", nights.config, "notify", env={**os.environ, "PYTHONPATH": str(TOP)}
        )
        return [message["message"] for message in server.json()[before:]]

    def reported(shift: timedelta, text: str) -> None:
        """Checks that `status` and `check` report the alarm, and that `metrics` counts it."""
        for command, words in (("status", text), ("check", text), ("metrics", 'btrkeep_alarms{event="failure",pool="main"} 1.0')):
            seconds = str(shift.total_seconds())
            env = {**os.environ, "PYTHONPATH": str(TOP)}
            done = work(sys.executable, "-P", SHIFTED, seconds, "--config", nights.config, command, env=env, check=False)
            assert words in " ".join(done.stdout.split()), (command, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr, done.stderr

    with web() as server:
        nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}/"], "digest": "none"}
        nights.write()
        nights.run("web1")
        assert notified(timedelta()) == []
        (ahead,) = notified(1800 * DAY)
        assert "the clock went ahead by 1800d" in ahead
        reported(1800 * DAY, "the clock went ahead by 1800d")
        assert notified(1800 * DAY) == []
        (over,) = notified(timedelta())
        assert over.startswith("Resolved:")
        (behind,) = notified(-1800 * DAY)
        assert "the clock went back from" in behind
        reported(-1800 * DAY, "the clock went back from")
        assert notified(-1800 * DAY) == []
        status = nights.backupd("status", check=False).stdout  # its first line: alarms were last checked five years ago
        (line,) = (line for line in status.splitlines() if line.startswith("web1"))
        assert " ok " in line


def without_catalogue(pool: Expiries) -> None:
    """Damages the live catalogue, but not its copy."""
    for file in pool.state.glob("catalogue.sqlite*"):
        file.unlink()
    (pool.state / "catalogue.sqlite").write_bytes(b"no database at all" * 400)


@pytest.mark.parametrize("has_copy", [True, False])
def test_without_a_catalogue_the_clock_is_compared_too(pool: Expiries, has_copy: bool) -> None:
    """The clock is compared with the times of earlier expiries, which the dashboard's copy has; without the copy, with the newest
    backup.
    """
    good = pool.names("web1")[:3]
    pool.tables["retention"] = {"daily": 1, "min_keep": 1, "grace": "30d"}
    pool.write()
    assert json.loads(pool.backupd("expire", "--json", check=False).stdout)["marked"]
    without_catalogue(pool)
    if not has_copy:
        (pool.state / "dashboard.sqlite").unlink()
        work("btrfs", "subvolume", "delete", pool.backup("web1", pool.names("web1")[3]))
    done = pool.backupd("expire", "--json", check=False)
    assert json.loads(done.stdout)["stop"] is None, done.stdout
    ahead = work(
        *(sys.executable, "-P", SHIFTED, str(1800 * 86400.0), "--config", pool.config, "expire", "--json"),
        env={**os.environ, "PYTHONPATH": str(TOP)},
        check=False,
    )
    assert json.loads(ahead.stdout)["deleted"] == 0, ahead.stdout
    assert pool.left("web1")[:3] == good
