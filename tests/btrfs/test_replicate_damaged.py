"""A damaged copy is fetched again from its first pool; rsync compares the two afterwards."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.repo.leftovers import RECEIVING, REPLACED
from tests.beds.faults import damage, damage_metadata, leaves
from tests.beds.hidden_changes import hide_changes
from tests.beds.two_pools import TwoPools, shown
from tests.beds.watch import killed, rows
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]
MIB = 1 << 20
NOW = "2026-03-20T12:00:00Z"


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    """Three copies; the first two share a file that is damaged in the second pool."""
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (two.source / "large").write_bytes(content)
    two.night("2026-03-01T22:00:00Z", "a")
    two.night("2026-03-02T22:00:00Z", "b")
    (two.source / "large").write_bytes(os.urandom(MIB // 2))
    two.night("2026-03-03T22:00:00Z", "c")
    two.fetch()
    damage(two.second.top, content[4096:8192])
    assert two.second.backupd("verify", "--now", NOW, check=False).returncode == 1
    return two


def test_what_is_damaged_here_comes_again_and_takes_its_place(two: TwoPools) -> None:
    names = first, second, third = two.names(two.second.pool)
    assert two.fetch()[0]["planned"] == 0
    refused = two.second.backupd("repair", "--yes", "--now", NOW, check=False)
    assert refused.returncode == 2
    assert "backupd replicate office web1 --damaged" in refused.stderr
    two.second.backupd("hold", "web1", first, "--why", "of the court", "--now", NOW)
    planned = two.fetch("office", "--damaged", "--dry-run")[0]["fetches"]
    assert [(row["backup"], row["parent"]) for row in planned] == [(first, third), (second, first)]
    before = {name: shown(two.second.pool / "hosts/web1" / name)["UUID"] for name in (first, second, third)}
    answer = two.fetch("office", "--damaged")[0]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in answer["fetched"]] == [
        (first, third),
        (second, first),
    ]
    for name in (first, second, third):
        assert two.differences(name) == ""
        here, by_name = (shown(pool / "hosts/web1" / name) for pool in (two.second.pool, two.first.pool))
        assert (here["Received UUID"], here["Flags"]) == (by_name["UUID"], "readonly")
        assert (here["UUID"] == before[name]) == (name == third)
    assert rows(two.second, "select * from damage") == []
    listed = {row["name"]: row for row in two.second.json("list", "web1")}
    assert (listed[first]["verified"], listed[first]["held"]["why"]) == (None, "of the court")
    assert two.fetch("office", "--damaged")[0]["planned"] == 0
    two.second.backupd("rebuild")
    assert rows(two.second, "select * from damage") == []
    assert two.second.backupd("verify", "--now", NOW).returncode == 0
    assert (
        sorted(path.name for path in (two.second.pool / "hosts/web1").iterdir() if path.is_dir() and not path.is_symlink()) == names
    )
    four = two.night("2026-03-04T22:00:00Z", "d")
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [(four, third)]


@pytest.mark.parametrize(
    ("when", "checkpoint"),
    [("before", "damaged copy replaced"), ("after", "damaged copy replaced"), ("after", "replaced copy deleted")],
)
def test_a_kill_leaves_one_of_the_two_copies_and_the_next_time_the_good_one(two: TwoPools, when: str, checkpoint: str) -> None:
    names = two.names(two.second.pool)
    killed(two.second, when, checkpoint, "replicate", "office", "--damaged", "--now", NOW)
    assert two.names(two.second.pool) == names
    two.fetch("office", "--damaged")
    assert [two.differences(name) for name in names] == ["", "", ""]
    assert rows(two.second, "select * from damage") == []
    assert not (two.second.pool / "hosts/web1" / REPLACED).exists()


def test_what_does_not_come_whole_costs_no_copy(two: TwoPools) -> None:
    first, second, _ = two.names(two.second.pool)
    two.over_ssh('python3 -c "$RELAY" cut 700000 < <("$@")')
    two.fetch("office", "--damaged", status=1)
    assert len(two.names(two.second.pool)) == 3
    assert (two.second.pool / "hosts/web1" / second / "data" / str(two.source).strip("/") / "changed").read_text() == "b" * 5000
    with (two.second.pool / "hosts/web1" / first / "data" / str(two.source).strip("/") / "large").open("rb") as file:
        assert len(file.read(4096)) == 4096
        with pytest.raises(OSError, match="Input/output"):
            file.read()


@pytest.mark.parametrize("how", ["content", "name", "record"])
def test_what_the_other_server_has_changed_since_takes_no_copys_place(two: TwoPools, how: str) -> None:
    """Otherwise an attacker there could have old copies replaced: all those with one damaged file."""
    names = two.names(two.second.pool)
    before = {name: shown(two.second.pool / "hosts/web1" / name)["UUID"] for name in names}
    for name in names[:2]:
        backup = two.first.pool / "hosts/web1" / name
        file = backup / "data" / str(two.source).strip("/") / "changed"
        work("btrfs", "property", "set", "-ts", backup, "ro", "false")
        was = file.stat()
        if how == "content":
            file.write_text("x" * was.st_size)
        elif how == "name":
            file.rename(file.with_name("encrypted"))
        else:
            record = backup / "backup.json"
            record.write_text(json.dumps(json.loads(record.read_text()) | {"warnings": ["nothing else to be seen"]}))
        for path in file.parent.iterdir():
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns)) if path.name in ("changed", "encrypted") else None
        work("btrfs", "property", "set", "-ts", backup, "ro", "true")
        hide_changes(backup.parent)  # an attacker on that server hides it
    answer = two.fetch("office", "--damaged", status=1)[0]
    assert answer["fetched"] == []
    assert "is not damaged" in str(answer), answer
    assert {name: shown(two.second.pool / "hosts/web1" / name)["UUID"] for name in two.names(two.second.pool)} == before
    for name, content in zip(names, "abc", strict=True):
        file = two.second.pool / "hosts/web1" / name / "data" / str(two.source).strip("/") / "changed"
        assert file.read_text() == content * 5000
    assert rows(two.second, "select * from damage")


def test_what_is_read_or_is_no_copy_any_more_is_left_alone(two: TwoPools) -> None:
    first, second, _ = two.names(two.second.pool)
    copy = two.second.pool / "hosts/web1" / first
    before = shown(copy)["UUID"]
    reads = os.open(copy, os.O_RDONLY)
    fcntl.flock(reads, fcntl.LOCK_SH)  # as a restore does
    assert "being read" in two.fetch("office", "--damaged", status=1)[0]["failed"][0]["error"]
    os.close(reads)
    for value in ("false", "true"):
        work("btrfs", "property", "set", "-f", copy, "ro", value)
    two.fetch("office", "--damaged", status=1)
    assert shown(copy)["UUID"] == before
    assert two.names(two.second.pool)[1] == second


def test_what_a_power_cut_brought_back_goes_also_when_nothing_is_to_be_fetched(two: TwoPools) -> None:
    host = two.second.pool / "hosts/web1"
    name = two.names(two.second.pool)[2]
    (host / RECEIVING).mkdir()
    for left in (host / RECEIVING / "backup", host / REPLACED):
        work("btrfs", "subvolume", "snapshot", "-r", host / name, left)
    assert two.fetch()[0]["planned"] == 0
    assert not (host / RECEIVING).exists()
    assert not (host / REPLACED).exists()
    assert len(two.names(two.second.pool)) == 3


def test_a_copy_that_comes_again_after_the_first_was_lost_is_not_known_as_that_was(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    for day in (1, 2):
        two.night(f"2026-03-0{day}T22:00:00Z", str(day))
    two.fetch()
    two.second.backupd("verify", "--now", NOW)
    first, last = two.names(two.second.pool)
    damaged = two.second.pool / "hosts/web1/damaged.json"
    place = {"path": "/file", "start": 0, "length": 4096, "found_by": "scrub", "found_at": NOW}
    damaged.write_text(json.dumps({"format": 1, "backups": {first: [place], last: [place]}}))
    work("btrfs", "subvolume", "delete", two.second.pool / "hosts/web1" / last)
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [last]
    (two.second.state / "catalogue.sqlite").unlink()
    two.second.backupd("rebuild")
    assert rows(two.second, "select name from verification") == [(first,)]  # the other one was not read
    assert rows(two.second, "select name from damage") == [(first,)]


def test_a_copy_whose_metadata_is_damaged_stays_since_its_deletion_would_make_the_pool_read_only(
    make_btrfs: Callable[..., Path],
) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M", mkfs=("-m", "single")))
    for number in range(800):
        (two.source / f"file-{number:06}").write_bytes(b"%d" % number)
    two.night("2026-03-01T22:00:00Z", "a")
    for number in range(800):
        (two.source / f"file-{number:06}").write_bytes(b"new %d" % number)
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    first, second = two.names(two.second.pool)
    old, new = (leaves(two.second.pool / "hosts/web1" / name, two.second.top) for name in (first, second))
    own = [number for number in new if number not in old]
    damage_metadata(two.second.top, own[len(own) // 2])
    assert two.second.backupd("verify", "--now", NOW, check=False).returncode == 1
    answer = two.fetch("office", "--damaged", status=1)
    assert "metadata" in json.dumps(answer)
    work("btrfs", "filesystem", "sync", two.second.top)
    work("timeout", "30", "btrfs", "subvolume", "sync", two.second.top)
    assert two.names(two.second.pool) == [first, second]
    assert not (two.second.pool / "hosts/web1" / REPLACED).exists()
    two.night("2026-03-03T22:00:00Z", "c")
    two.fetch()
    assert len(two.names(two.second.pool)) == 3


def test_a_host_whose_only_backup_here_has_lost_its_record_is_no_copy(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    two.night("2026-03-01T22:00:00Z", "a")
    two.second.host("web1", two.source)
    two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z")
    (name,) = two.names(two.second.pool)
    path = two.second.pool / "hosts/web1" / name
    work("btrfs", "property", "set", "-ts", path, "ro", "false")
    (path / "backup.json").write_text("")
    work("btrfs", "property", "set", "-ts", path, "ro", "true")
    two.second.backupd("rebuild", check=False)
    del two.second.tables["host"]
    two.second.write()
    two.fetch(status=1)
    assert two.names(two.second.pool) == [name]
    notes = path.parent / "notes.json"
    assert not notes.exists() or "replica" not in json.loads(notes.read_text())
