"""Transfers that would fill the pool: the fastest one is stopped in time, the others complete."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.pool.locks import take_lock
from tests.beds.btrfs import MIB
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, rows, wait_for

Make = Callable[..., Path]
# Of 18 MiB that must stay free: on a busy machine, more data arrives after a transfer was stopped.
NEVER_FULL = 2 * MIB


def large_tree(folder: Path, files: int) -> Path:
    """Random data, 32 MiB each time; on its own disk all of them are one."""
    folder.mkdir()
    (folder / "0").write_bytes(os.urandom(32 * MIB))
    for number in range(1, files):
        subprocess.run(["cp", "--reflink=always", folder / "0", folder / str(number)], check=True)
    return folder


@pytest.fixture
def tight(make_btrfs: Make, shared_btrfs: Path, tmp_path: Path) -> Nights:
    """A pool with room for 80 MiB, of which 18 are to stay; `greedy` has 192, and `modest` two megabytes that come later."""
    nights = Nights(make_btrfs(size="400M"))
    nights.config = tmp_path / "main.toml"
    nights.settings("pool", min_free="18%")
    nights.source = shared_btrfs / "source"
    nights.source.mkdir()
    # The 18 MiB are 1.5 seconds of transfer: on a busy machine it stops late.
    nights.host("greedy", large_tree(nights.source / "greedy", 6), bandwidth="12MB")
    with (nights.top / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, room(nights.top) - 80 * MIB)
    (nights.source / "modest").mkdir()
    (nights.source / "modest" / "file").write_bytes(os.urandom(2_000_000))
    nights.host("modest", nights.source / "modest", bandwidth="300KB")
    return nights


def run(nights: Nights, *names: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = nights.backupd("run", "--json", *names, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {result["host"]: result for result in json.loads(done.stdout)}, done.stderr


def room(point: Path) -> int:
    """Returns the result of df, after all data is written."""
    subprocess.run(["btrfs", "filesystem", "sync", point], check=True)
    statvfs_result = os.statvfs(point)
    return statvfs_result.f_bavail * statvfs_result.f_frsize


def test_the_transfer_that_grows_fastest_is_stopped_and_the_others_come_to_their_end(tight: Nights) -> None:
    tight.settings("backup", concurrency=2)
    tight.host("zzz", tight.source / "modest")
    with_all = ("greedy", "modest", "zzz")
    status, by_name, stderr = run(tight, *with_all)
    assert status == 4, stderr
    assert "greedy was stopped: the pool has too little free space" in stderr
    assert {host: by_name[host]["outcome"] for host in by_name} == {"greedy": "partial", "modest": "complete"}
    assert "the pool has too little free space" in by_name["greedy"]["error"]
    assert "it wrote " in by_name["greedy"]["error"]
    assert tight.differences("modest", tight.source / "modest") == []
    assert room(tight.top) > NEVER_FULL
    assert sum(path.stat().st_blocks * 512 for path in tight.working("greedy").rglob("*") if path.is_file()) > 30 * MIB
    assert rows(tight, "select outcome from run where host = 'greedy'") == [("partial",)]
    assert disagreements(tight) == []


def test_a_host_that_is_named_is_watched_too_and_goes_on_when_there_is_room(tight: Nights) -> None:
    status, by_name, _ = run(tight, "greedy")
    assert (status, by_name["greedy"]["outcome"]) == (4, "partial")
    answer = json.loads(tight.backupd("check", "--json", check=False).stdout)
    hints = [row["hint"] for row in answer if row["subject"] in ("room", "used", "unallocated") and row["level"] != "ok"]
    assert hints
    assert all("`backupd discard greedy` deletes it" in hint for hint in hints), hints
    doctor = json.loads(tight.backupd("doctor", "--json", check=False).stdout)["findings"]
    commands = [line for row in doctor if row["name"] in ("room", "used", "unallocated") for line in row["commands"]]
    assert any("discard greedy --dry-run" in line for line in commands)
    assert room(tight.top) > NEVER_FULL
    for number in range(1, 6):
        (tight.source / "greedy" / str(number)).unlink()
    tight.settings("pool", min_free="0%")
    tight.run("greedy")
    assert tight.differences("greedy", tight.source / "greedy") == []


def test_a_greedy_host_costs_the_others_no_later_night(tight: Nights) -> None:
    tight.settings("backup", concurrency=2)
    _, by_name, stderr = run(tight, "greedy", "modest")
    assert {host: by_name[host]["outcome"] for host in by_name} == {"greedy": "partial", "modest": "complete"}, stderr
    assert tight.working("greedy").exists()
    tight.settings("backup", concurrency=1)
    for night in (2, 3):
        (tight.source / "modest" / "new").write_text(f"night {night}")
        status, by_name, stderr = run(tight, "greedy", "modest")  # the greedy one is requested first
        assert status == 4, stderr
        assert [(host, by_name[host]["outcome"]) for host in by_name] == [("modest", "complete"), ("greedy", "partial")], stderr
        assert "greedy had an unfinished backup" in stderr
        assert tight.differences("modest", tight.source / "modest") == []
        assert disagreements(tight) == []
    assert len(tight.names("modest")) == 3
    assert tight.record("greedy", ".working")["stopped_for"] == "room"


def test_what_was_not_stopped_for_room_is_not_discarded_and_the_hint_names_it(tight: Nights) -> None:
    tight.settings("backup", concurrency=2)
    run(tight, "greedy", "modest")
    path = tight.backup("greedy", ".working") / "backup.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "stopped_for"}))
    status, by_name, stderr = run(tight, "modest")
    assert (status, by_name) == (4, {}), stderr
    assert tight.working("greedy").exists()
    assert "`backupd discard greedy` deletes it" in stderr
    tight.backupd("discard", "greedy", "--yes")  # as in the hint
    wait_for(lambda: room(tight.top) > 73 * MIB, 60)
    assert run(tight, "modest")[1]["modest"]["outcome"] == "complete"
    assert disagreements(tight) == []


def test_an_unfinished_backup_in_use_is_not_discarded(tight: Nights) -> None:
    tight.settings("backup", concurrency=2)
    run(tight, "greedy", "modest")
    with take_lock(tight.pool / ".btrkeep" / "locks" / "host-greedy", "test", "now"):
        status, by_name, stderr = run(tight, "modest")
    assert (status, by_name) == (4, {}), stderr
    assert tight.working("greedy").exists()
