"""What a replication records, and whether the `status` based on it is true."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.faults import damage
from tests.beds.two_pools import TwoPools
from tests.beds.watch import ASLEEP, ended, wait_for

pytestmark = pytest.mark.btrfs
IN_A_STREAM = """
import os, sys, time
left = 600_000
while data := os.read(0, 65536):
    os.write(1, data)
    if 0 <= left < len(data):
        open(sys.argv[1], "w").close() if sys.argv[1:] else time.sleep(8)
    left -= len(data)
"""
"""Within the first stream it creates the given file, or pauses for some seconds."""


def of_replicas(two: TwoPools) -> list[tuple[str, str]]:
    """Returns level and text of the findings of `check` about replicas."""
    answer = json.loads(two.second.backupd("check", "--json", check=False).stdout)
    return [(row["level"], row["message"]) for row in answer if row["subject"].startswith("replica")]


def copies(two: TwoPools, now: str = "2026-03-20T12:30:00Z") -> dict[str, Any]:
    """Returns the `status` of each replica."""
    answer = json.loads(two.second.backupd("status", "--json", "--now", now).stdout)["copies"]
    return {row["replica"]: row for row in answer}


def test_a_replica_that_cannot_be_fetched_at_all_costs_the_next_one_nothing(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables = {**two.second.tables, "replica.itself": {"from": str(two.second.pool)}}
    two.second.tables["replica.office"] = two.second.tables.pop("replica.office")  # it comes last
    two.second.write()
    two.fetch(status=1)
    assert two.names(two.second.pool) == [first]
    actual_copies = copies(two)
    assert (actual_copies["itself"]["state"], actual_copies["itself"]["error"]) == ("failing", "the other pool is the same pool")
    assert actual_copies["office"]["state"] == "ok"


def test_a_replica_for_which_there_is_no_room_is_not_well(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.night("2026-03-02T22:00:00Z", "b")
    two.second.settings("pool", min_free="99%")
    two.fetch(status=4)
    office = copies(two)["office"]
    assert office["state"] == "failing"
    assert "min_free" in office["error"]


def asleep_in_a_stream(two: TwoPools, folder: Path, start: Callable[..., "subprocess.Popen[str]"]) -> dict[str, Any]:
    """Returns the output of a replication in a window that was suspended for nine hours in its first stream."""
    two.over_ssh(f'"$@" | {shlex.join([sys.executable, "-c", IN_A_STREAM, str(folder / "asleep")])}')
    two.second.tables["replica.office"]["window"] = "11:00-12:00"
    two.second.write()
    (folder / "sitecustomize.py").write_text(ASLEEP.format(flag=str(folder / "asleep"), hours=9))
    words = ("replicate", "--due", "--json", "--now", "2026-03-20T11:00:00Z")
    status, printed, _ = ended(start("--config", two.second.config, *words, env={"PYTHONPATH": f"{folder}:{TOP}"}), 60)
    assert status == 0
    (answer,) = json.loads(printed)
    return dict(answer)


def test_what_has_come_as_a_whole_after_the_end_of_its_window_is_fetched(
    two: TwoPools, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    (two.source / "large").write_bytes(bytes(range(256)) * 4000)
    two.night("2026-03-01T22:00:00Z", "a")
    answer = asleep_in_a_stream(two, tmp_path, backupd_running)
    assert (answer["planned"], len(answer["fetched"])) == (1, 1)
    assert copies(two)["office"]["state"] == "ok"


def test_a_window_that_ended_while_the_machine_was_asleep_begins_no_further_backup(
    two: TwoPools, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Suspended in the middle of the first one. (tests/systemd/test_vm.py suspends a real machine.)"""
    (two.source / "large").write_bytes(bytes(range(256)) * 4000)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.night("2026-03-02T22:00:00Z", "b")
    answer = asleep_in_a_stream(two, tmp_path, backupd_running)
    assert (answer["planned"], [each["backup"] for each in answer["fetched"]]) == (2, [first])


def test_a_pool_that_lists_no_host_is_not_well(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.over_ssh('exec "$@" --host "nobody*"')
    two.fetch(status=1)
    office = copies(two)["office"]
    assert (office["state"], round(office["age"], -2)) == ("failing", 1800)
    assert "lists no host" in office["error"]
    assert two.names(two.second.pool) == [first]


def test_one_that_failed_is_due_again_within_the_hour(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('exec "$@"')
    two.fetch()
    assert two.fetch("--due") == []
    two.over_ssh("echo 'no route to host' >&2; exit 255")
    two.fetch(status=1)
    two.over_ssh('exec "$@"')
    assert len(two.fetch("--due")) == 1
    assert copies(two)["office"]["state"] == "ok"


def test_what_a_server_that_was_taken_over_says_breaks_nothing(two: TwoPools) -> None:
    """Its holds and its errors contain terminal escapes, and bytes that are not UTF-8."""
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool words x")
    two.fetch()
    for words in (("list", "web1"), ("status",), ("retention", "explain", "web1"), ("replicate", "--dry-run")):
        done = two.second.backupd(*words, "--now", "2026-03-20T12:30:00Z") if words[0] != "list" else two.second.backupd(*words)
        assert "\x1b" not in done.stdout + done.stderr, words
    assert two.second.backupd("rebuild", "--json").returncode == 0
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool complains x")
    failed = two.second.backupd("replicate", "--now", "2026-03-20T13:00:00Z", check=False)
    shown = two.second.backupd("status", "--now", "2026-03-20T13:00:00Z").stdout
    assert failed.returncode == 1
    assert "\x1b" not in failed.stdout + failed.stderr + shown
    assert "no" in shown


def test_what_both_have_stays_here_though_the_session_was_killed(two: TwoPools) -> None:
    first, second = two.night("2026-03-01T22:00:00Z", "a"), two.night("2026-03-02T22:00:00Z", "b")
    words = ["die", "after", "backup row written", "2", "--config", str(two.second.config), "replicate"]
    killed = work(sys.executable, "-m", "tests.beds.kill_at", *words, "--now", "2026-03-20T12:00:00Z", check=False, cwd=TOP)
    assert killed.returncode == -signal.SIGKILL
    common = two.second.pool / ".btrkeep/common/office.json"
    assert json.loads(common.read_text())["hosts"] == {"web1": first}
    two.fetch()
    assert json.loads(common.read_text())["hosts"] == {"web1": second}


@pytest.mark.parametrize("how", ["unreadable", "another shape", "a folder"])
def test_what_is_noted_for_the_dashboard_alone_ends_no_replication(two: TwoPools, how: str) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copied = two.second.pool / ".btrkeep/copied/office.json"
    if how == "unreadable":
        text = json.dumps({"format": 1, "hosts": {f"old{n}": ["2026-01-01T220000Z"] for n in range(300)}})  # more than is inline
        copied.write_text(text)
        damage(two.second.top, text.encode()[:4096])
    elif how == "another shape":
        copied.write_text('{"format": 1, "hosts": {"web0": "2026-01-01T220000Z"}}')
    else:
        for pool in (two.first.pool, two.second.pool):
            (pool / ".btrkeep/copied/office.json").unlink()
            (pool / ".btrkeep/copied/office.json").mkdir()
    sampled = two.second.backupd("sample", check=False)
    assert (sampled.returncode, "Traceback" in sampled.stderr) == (0, False)

    newest = two.night("2026-03-02T22:00:00Z", "b")
    done = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    here = "could not record the common backups here" in done.stderr or "could not record here" in done.stderr
    assert (here, "the other pool could not record" in done.stderr) == (how == "a folder", False)
    for pool in (two.first.pool, two.second.pool):
        assert json.loads((pool / ".btrkeep/common/office.json").read_text())["hosts"] == {"web1": newest}
    if how != "a folder":
        assert json.loads(copied.read_text())["hosts"] == {"web1": two.names(two.second.pool)}


def test_a_host_that_is_not_listed_any_more_is_named_and_its_copies_stay(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    (two.first.source / "db1").mkdir()
    two.first.host("db1", two.first.source / "db1")
    two.first.backupd("run", "db1", "--now", "2026-03-02T23:00:00Z")
    (of_db1,) = two.names(two.first.pool, "db1")
    two.fetch()
    two.over_ssh('exec "$@" --host "db*"')
    two.fetch()
    common = json.loads((two.second.pool / ".btrkeep/common/office.json").read_text())["hosts"]
    assert common == {"web1": first, "db1": of_db1}
    office = copies(two)["office"]
    assert office["state"] == "ok"
    assert [(host_lag["host"], host_lag["newest"], host_lag["listed"]) for host_lag in office["lag"]] == [
        ("web1", first, False),
        ("db1", of_db1, True),
    ]
    assert [host_lag["age"] for host_lag in office["lag"]] == pytest.approx([18 * 86400 + 52200, 17 * 86400 + 48600], abs=60)
    assert f"web1: no longer listed by the other server; its newest copy is {first}" in two.second.backupd("status").stdout
    assert ("warning", "web1 is no longer listed by the other server; the copies here are kept") in of_replicas(two)
    doctor = json.loads(two.second.backupd("doctor", "--json", check=False).stdout)["findings"]
    texts = [row["what"] for row in doctor]
    assert "replica office: web1 is no longer listed by the other server; the copies here are kept" in texts
    two.second.backupd("forget", "web1", "--yes", "--now", "2026-03-20T13:00:00Z")
    two.fetch()
    assert "no longer listed" not in two.second.backupd("status").stdout


def test_check_says_what_has_no_room_for_as_much_again_what_is_stale_and_what_has_no_copy(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    for name in ("db1", "db2"):
        (two.first.source / name).mkdir()
        two.first.host(name, two.first.source / name)
    two.fetch()
    two.first.backupd("sample")
    answer = json.loads(two.first.backupd("check", "--json", check=False).stdout)
    assert [row["message"] for row in answer if row["subject"] == "copies"] == ["there is no copy of db1, db2"]
    assert ("warning", "fetched") not in [(level, text[:7]) for level, text in of_replicas(two)]
    two.second.tables["replica.office"] |= {"every": "5d", "max_age": "3000d"}
    two.second.write()
    assert not any("are free above min_free" in text for _, text in of_replicas(two))
    free = int(work("stat", "-f", "-c", "%a", two.second.pool).stdout) * 4096 - 2_000_000
    two.second.settings("pool", min_free=str(free))
    assert [level for level, text in of_replicas(two) if "are free above min_free" in text] == ["warning"]
    two.second.tables["replica.office"] |= {"every": "1d", "max_age": "10d"}
    two.second.write()
    assert copies(two)["office"]["state"] == "ok"
    stale = two.second.backupd("status", "--now", "2026-03-20T12:30:00Z").stdout
    assert "the newest copied backup began 2026-03-01T22:00:0" in stale


def test_a_request_for_a_missing_host_gets_an_error(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    assert "does not list the host web9" in two.fetch("office", "web9", status=2)


def test_a_signal_ends_the_whole_and_not_one_replica_of_it(two: TwoPools, backupd_running: Callable[..., Any]) -> None:
    (two.source / "large").write_bytes(bytes(range(256)) * 4000)
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh(f'"$@" | {shlex.join([sys.executable, "-c", IN_A_STREAM])}')
    two.second.tables["replica.third"] = {"from": str(two.first.pool.parent / "nowhere")}
    two.second.write()
    process = backupd_running("--config", two.second.config, "replicate", "--now", "2026-03-20T12:00:00Z")
    wait_for((two.second.pool / "hosts/web1/.receiving/backup").exists, 60, "no stream came")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert copies(two)["third"]["tried_at"] is None
