"""A second pool, fetched from the first: its backups are equal by rsync's checksums, and it can take over."""

import fcntl
import json
import os
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools, shown
from tests.beds.watch import wait_for

pytestmark = pytest.mark.btrfs


def published(of: Nights) -> Any:
    """The dashboard's records of copies, read with sqlite3."""
    with sqlite3.connect(of.state / "catalogue.sqlite") as rows:
        answer = rows.execute("SELECT value FROM about WHERE name = 'copies'").fetchone()
    return json.loads(answer[0]) if answer else {}


def test_what_is_fetched_is_the_same_and_a_difference_to_what_was_there(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    assert [fetched_backup["parent"] for fetched_backup in two.fetch()[0]["fetched"]] == [None]
    second, third = two.night("2026-03-02T22:00:00Z", "b"), two.night("2026-03-03T22:00:00Z", "c")
    answer = two.fetch()[0]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in answer["fetched"]] == [
        (second, first),
        (third, second),
    ]
    assert two.names(two.second.pool) == [first, second, third]
    for name in (first, second, third):
        assert two.differences(name) == ""
        here, by_name = (shown(pool / "hosts/web1" / name) for pool in (two.second.pool, two.first.pool))
        assert here["Received UUID"] == by_name["UUID"]
        assert here["Flags"] == "readonly"
    assert two.fetch()[0]["planned"] == 0
    assert [row["name"] for row in json.loads(two.second.backupd("list", "web1", "--json").stdout)] == [first, second, third]
    assert json.loads(two.second.backupd("rebuild", "--json").stdout)["backups"] == 3
    assert len(json.loads(two.second.backupd("list", "web1", "--json").stdout)) == 3
    assert Path(two.second.pool / "hosts/web1/latest").readlink() == Path(third)


def test_a_host_that_is_fetched_is_not_backed_up_until_it_is_promoted_and_then_goes_on(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    assert published(two.second) == {"fetched": {"web1": "office"}, "common": {"office": {"web1": first}}}
    assert published(two.first) == {}
    two.first.backupd("sample")
    result = published(two.first)
    assert [*result.pop("told")] == ["office"]
    assert result == {"fetched": {}, "common": {"office": {"web1": first}}}
    two.second.host("web1", two.source)
    refused = two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z", check=False)
    assert refused.returncode == 1
    assert "copies" in refused.stdout
    assert two.names(two.second.pool) == [first]
    assert "common with replica" in two.second.backupd("retention", "explain", "web1").stdout
    two.second.backupd("promote", "web1", "--yes")
    assert published(two.second)["fetched"] == {}
    assert "common with replica" not in two.second.backupd("retention", "explain", "web1").stdout
    answer = json.loads(two.second.backupd("run", "web1", "--json", "--now", "2026-03-03T22:00:00Z").stdout)
    assert answer[0]["outcome"] == "complete"
    assert answer[0]["new_bytes"] < 100_000  # out of three million
    assert two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False).returncode == 1


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('"$@" | python3 -c "$RELAY" cut 2000000', "connection ended in the middle"),
        ('"$@" | python3 -c "$RELAY" flip 3000000', "was damaged in transit"),
        ("echo banner; cat", "an unexpected message"),
        ("exit 255", "the connection "),  # "has ended", or "ended in the middle of an answer": depends on timing
    ],
    ids=["cut", "flipped", "banner", "refused"],
)
def test_what_was_cut_off_or_garbled_leaves_nothing_and_is_fetched_again(two: TwoPools, script: str, why: str) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh(script)
    answer = two.fetch(status=1)
    assert why in (answer if isinstance(answer, str) else json.dumps(answer))
    assert two.names(two.second.pool) == []
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    two.over_ssh('"$@"')
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(first) == ""


def test_a_kill_in_the_middle_leaves_what_the_next_one_clears_away(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('"$@" | python3 -c "$RELAY" stop 3000000')
    words = [sys.executable, "-m", "backupd", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    with subprocess.Popen(words, cwd=TOP, start_new_session=True) as killed:
        receiving = two.second.pool / "hosts/web1/.receiving"
        wait_for(lambda: receiving.is_dir() and any(receiving.rglob("large")), 60, "the stream was not half received")
        os.killpg(killed.pid, signal.SIGKILL)
    assert receiving.is_dir()
    two.over_ssh('"$@"')
    two.fetch()
    assert two.names(two.second.pool) == [first]
    assert not receiving.exists()
    assert two.differences(first) == ""


def test_what_a_kill_left_goes_with_a_host_that_is_forgotten(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    words = [
        "die",
        "before",
        "snapshot made",
        "1",
        "--config",
        str(two.second.config),
        "replicate",
        "--now",
        "2026-03-20T12:00:00Z",
    ]
    work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
    assert (two.second.pool / "hosts/web1/.receiving/backup").is_dir()
    two.second.backupd("forget", "web1", "--yes", "--now", "2026-03-20T13:00:00Z")
    for day in (21, 23):
        two.second.backupd("expire", "--now", f"2026-03-{day}T14:00:00Z")
    assert not (two.second.pool / "hosts/web1").exists()


def test_a_copy_that_is_forgotten_on_purpose_is_no_failure_and_nothing_of_it_comes(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("forget", "web1", "--yes", "--now", "2026-03-20T13:00:00Z")
    two.night("2026-03-02T22:00:00Z", "b")
    assert two.fetch()[0]["failed"] == []
    assert two.names(two.second.pool) == [first]
    (copy,) = json.loads(two.second.backupd("status", "--json", "--now", "2026-03-20T12:30:00Z").stdout)["copies"]
    assert (copy["state"], copy["behind"]) == ("ok", [])


def test_holds_and_acceptances_come_along_and_their_ends_do_not(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("hold", "web1", first, "--why", "audit", "--now", "2026-03-02T01:00:00Z")
    two.fetch()
    two.first.backupd("release", "web1", first, "--now", "2026-03-02T02:00:00Z")
    two.fetch()
    assert json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][first]["hold"]["why"] == "audit"


def test_what_is_deleted_here_goes_though_both_have_it_and_does_not_come_again(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("delete", f"web1@{first}", "--now-without-grace", "--force", "--now", "2026-03-03T02:00:00Z")
    assert two.names(two.second.pool) == []
    assert two.fetch()[0]["planned"] == 0


def test_a_first_pool_that_became_read_only_is_fetched(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    work("mount", "-o", "remount,ro", work("findmnt", "-no", "TARGET", "-T", two.first.pool).stdout.strip())
    done = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    assert two.names(two.second.pool) == [first]
    assert "Read-only file system" in done.stderr


def test_a_host_that_cannot_be_fetched_says_why(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('"$@" | python3 -c "$RELAY" flip 3000000')
    failed = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False)
    assert failed.returncode == 1
    assert "crc" in failed.stderr


def test_a_hold_comes_along_whenever_the_replication_is_killed(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("hold", "web1", first, "--why", "audit", "--now", "2026-03-02T01:00:00Z")
    words = ["die", "after", "snapshot made", "1", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    killed = work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
    assert killed.returncode == -signal.SIGKILL
    assert two.names(two.second.pool) == [first]
    two.fetch()
    assert json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][first]["hold"]["why"] == "audit"


def test_what_both_have_stays_when_a_host_gets_a_new_name(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.first.backupd("rename", "web1", "web2", "--yes")
    two.fetch(status=1)
    for pool, host in ((two.first, "web2"), (two.second, "web1")):
        for folder, names in (("common", first), ("copied", [first])):
            answer = json.loads((pool.pool / ".btrkeep" / folder / "office.json").read_text())["hosts"]
            assert answer.get(host) == names, (folder, host)


def test_a_host_with_a_new_name_there_is_not_fetched_as_another_until_it_has_that_name_here(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.first.backupd("rename", "web1", "web2", "--yes")
    assert "`backupd rename web1 web2` here too" in json.dumps(two.fetch(status=1))
    assert not (two.second.pool / "hosts/web2").exists()
    two.second.backupd("rename", "web1", "web2", "--yes")
    assert two.fetch()[0]["planned"] == 0
    assert two.names(two.second.pool, "web2") == [first]


def test_another_machine_that_has_the_name_now_does_not_come_into_the_copies_of_the_one_that_had_it(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.first.backupd("rename", "web1", "old", "--yes")
    second = two.night("2026-03-02T22:00:00Z", "b")  # the other machine's first backup
    failed = {failure["host"]: failure["error"] for failure in two.fetch(status=1)[0]["failed"]}
    assert set(failed) == {"old", "web1"}
    assert "`backupd rename web1 old` here" in failed["web1"]
    assert two.names(two.second.pool) == [first]
    two.second.backupd("rename", "web1", "old", "--yes")
    assert two.fetch()[0]["planned"] == 1
    assert (two.names(two.second.pool, "old"), two.names(two.second.pool, "web1")) == ([first], [second])


def test_a_host_that_was_renamed_here_is_not_fetched_once_more(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("rename", "web1", "mine", "--yes")
    assert "`backupd rename mine web1`" in json.dumps(two.fetch(status=1))
    two.second.backupd("rename", "mine", "web1", "--yes")
    assert two.fetch()[0]["planned"] == 0
    assert two.names(two.second.pool) == [first]


def test_of_two_replicas_that_want_a_host_only_the_one_that_has_it_goes_on(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables["replica.small"] = {"from": str(two.first.pool)}
    two.second.write()
    two.fetch("office")
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert "the replica office has it too" in json.dumps(two.fetch("small", status=1))
    assert two.names(two.second.pool) == [first]
    two.second.tables["replica.office"]["hosts"] = ["db*"]  # now it is the other's
    two.second.write()
    two.fetch("small")
    assert two.names(two.second.pool) == [first, second]


def test_what_is_deleted_there_stays_here(two: TwoPools) -> None:
    first, second = two.night("2026-03-01T22:00:00Z", "a"), two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    two.first.backupd("delete", f"web1@{first}", "--now-without-grace", "--now", "2026-03-03T02:00:00Z")
    assert two.names(two.first.pool) == [second]
    two.fetch()
    assert two.names(two.second.pool) == [first, second]


def test_a_pool_that_took_the_place_of_another_is_not_fetched(two: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    other = TwoPools(make_btrfs(), make_btrfs())
    other.night("2026-03-01T22:00:00Z", "x")
    two.second.tables["replica.office"]["from"] = str(other.first.pool)
    two.second.write()
    assert "fetched from another pool" in json.dumps(two.fetch(status=1))
    assert two.differences(first) == ""


def flag_by_ioctl(path: Path, flags: int) -> None:
    """Calls BTRFS_IOC_SUBVOL_SETFLAGS, which, unlike `btrfs property`, does not change the received UUID."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.ioctl(fd, 1 << 30 | 8 << 16 | 0x94 << 8 | 26, struct.pack("=Q", flags))
    os.close(fd)


@pytest.mark.parametrize("by", ["btrfs property", "ioctl"])
def test_a_change_by_hand_is_noticed_and_not_built_upon(two: TwoPools, by: str) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copy = two.second.pool / "hosts/web1" / first
    if by == "ioctl":
        flag_by_ioctl(copy, 0)
    else:
        work("btrfs", "property", "set", "-f", copy, "ro", "false")
    (copy / "mine").write_text("x")
    flag_by_ioctl(copy, 2)
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [
        (second, None)
    ]
    assert {row["name"]: row["state"] for row in two.second.json("list", "web1")} == {first: "altered", second: "complete"}
    assert two.differences(second) == ""


def test_the_last_common_backup_stays_on_both_sides(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    for day in range(2, 8):
        two.night(f"2026-03-{day:02}T22:00:00Z", str(day))
    two.first.tables["retention"] = {"daily": 2, "min_keep": 1, "grace": "1s"}
    two.first.write()
    two.first.backupd("expire", "--force", "hosts", "--now", "2026-03-10T12:00:00Z", check=False)
    two.first.backupd("expire", "--force", "hosts", "--now", "2026-03-11T12:00:00Z")
    assert two.names(two.first.pool)[0] == first
    assert len(two.names(two.first.pool)) == 3
    why = two.first.backupd("retention", "explain", "web1", "--now", "2026-03-10T12:00:00Z").stdout
    assert "common with replica office" in why


def test_a_disk_that_was_never_there_needs_a_look(two: TwoPools) -> None:
    two.second.tables["replica.office"]["from"] = str(two.first.pool.parent / "nowhere")
    two.second.write()
    (answer,) = two.fetch(status=1)
    assert "nowhere" in answer["error"]
    assert not answer["error"].startswith("hint")
    (copy,) = json.loads(two.second.backupd("status", "--json", "--now", "2026-03-20T12:00:00Z").stdout)["copies"]
    assert (copy["state"], copy["age"], copy["error"]) == ("failing", None, answer["error"])


def test_a_device_comes_along_and_lies_there_as_any_backup_of_one_does(two: TwoPools) -> None:
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    assert two.fetch()[0]["fetched"]
    node = two.second.pool / "hosts/web1/2026-03-01T220000Z/disk"
    assert node.is_block_device()


def test_what_one_host_alone_is_fetched_for_takes_nothing_from_the_others(two: TwoPools) -> None:
    (two.first.source / "db1").mkdir()
    two.first.host("db1", two.first.source / "db1")
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("run", "db1", "--now", "2026-03-01T23:00:00Z")
    two.fetch()
    two.fetch("office", "web1")
    for pool in (two.first.pool, two.second.pool):
        assert set(json.loads((pool / ".btrkeep/common/office.json").read_text())["hosts"]) == {"web1", "db1"}


def test_a_chain_of_three_knows_what_it_has(two: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    third = Nights(make_btrfs(), "--rehearsal")
    third.tables["replica.second"] = {"from": str(two.second.pool)}
    third.write()
    third.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    second = two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    answer = json.loads(third.backupd("replicate", "--json", "--now", "2026-03-20T12:00:00Z").stdout)
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in answer[0]["fetched"]] == [(second, first)]
    assert (
        work(
            "rsync", "-n", "-aHAXc", "--delete", "-i", f"{two.source}/", f"{third.pool}/hosts/web1/{second}/data{two.source}/"
        ).stdout
        == ""
    )
