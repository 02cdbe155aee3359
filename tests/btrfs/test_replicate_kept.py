"""Which backups of another pool are fetched, which are kept here, and how they are stored on disk."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.replicate.receiver import newest_received
from btrkeep.pool.subvolume import newest_stream
from tests.beds import work
from tests.beds.faults import failing_disk
from tests.beds.two_pools import TwoPools

pytestmark = pytest.mark.btrfs


def test_expiry_here_keeps_what_the_replica_s_own_retention_says_and_the_last_common_backup(two: TwoPools) -> None:
    """The first pool loses its newest backups: the newest common one is then older than the backups that the rules here keep."""
    names = [two.night(f"2026-03-{day:02}T22:00:00Z", str(day)) for day in range(1, 7)]
    two.fetch()
    two.second.tables["retention"] = {"daily": 30}
    two.second.tables["replica.office.retention"] = {"daily": 2, "min_keep": 1, "grace": "1s"}
    two.second.write()
    for name in names[3:]:
        two.first.backupd("delete", f"web1@{name}", "--now-without-grace", "--force", "--now", "2026-03-07T02:00:00Z")
    assert two.fetch()[0]["planned"] == 0
    for hour in (13, 14):
        two.second.backupd("expire", "--force", "hosts", "--force", "pool", "--now", f"2026-03-20T{hour}:00:00Z", check=False)
    assert two.names(two.second.pool) == [names[2], *names[4:]]
    explained = two.second.backupd("retention", "explain", "web1", "--now", "2026-03-20T14:00:00Z").stdout
    (why,) = [line for line in explained.splitlines() if "common with replica" in line]
    assert "2026-03-03" in why


def test_newest_only_takes_the_newest_backup_alone(two: TwoPools) -> None:
    two.second.tables["replica.office"]["newest_only"] = True
    two.second.write()
    *_, third = (two.night(f"2026-03-0{day}T22:00:00Z", str(day)) for day in (1, 2, 3))
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [(third, None)]
    two.night("2026-03-04T22:00:00Z", "4")
    fifth = two.night("2026-03-05T22:00:00Z", "5")
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [
        (fifth, third)
    ]
    assert two.names(two.second.pool) == [third, fifth]
    assert two.differences(fifth) == ""
    two.first.backupd("sample")
    for pool in (two.first, two.second):  # both dashboards show which backups are in both pools
        with sqlite3.connect(pool.state / "catalogue.sqlite") as rows:
            ((text,),) = rows.execute("SELECT value FROM about WHERE name = 'copied:office'")
        assert json.loads(text)["hosts"] == {"web1": [third, fifth]}


def test_an_acceptance_comes_along_with_its_backup(two: TwoPools) -> None:
    for number in range(300):
        (two.source / f"file{number}").write_text(str(number))
    two.night("2026-03-01T22:00:00Z", "a")
    for number in range(300):
        (two.source / f"file{number}").unlink()
    two.first.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z", check=False)
    second = two.names(two.first.pool)[-1]
    (listed,) = [row for row in json.loads(two.first.backupd("list", "web1", "--json").stdout) if row["name"] == second]
    assert listed["state"] == "suspect"
    two.first.backupd("accept", f"web1@{second}", "--now", "2026-03-03T08:00:00Z")
    two.fetch()
    assert "accepted" in json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][second]
    states = {row["name"]: row["state"] for row in json.loads(two.second.backupd("list", "web1", "--json").stdout)}
    assert states[second] == "complete"
    assert json.loads((two.second.pool / "hosts/web1" / second / "backup.json").read_text())["state"] == "suspect"


@pytest.mark.skipif(min(newest_stream(), newest_received()) < 2, reason="left out: compressed extents in streams (Linux 6.0)")
def test_compressed_extents_come_as_they_are(make_btrfs: Callable[..., Path]) -> None:
    """The second filesystem is mounted without compression."""
    two = TwoPools(make_btrfs(options="compress-force=zstd"), make_btrfs())
    (two.source / "large").write_text("".join(f"{number} is a line of a log\n" for number in range(200_000)))
    name = two.night("2026-03-01T22:00:00Z", "a")
    work("btrfs", "filesystem", "sync", two.first.pool)
    (answer,) = two.fetch()[0]["fetched"]
    size = (two.source / "large").stat().st_size
    assert answer["bytes"] < size / 2
    copy = two.second.pool / "hosts/web1" / name / "data" / str(two.source).strip("/") / "large"
    assert "encoded" in work("filefrag", "-v", copy).stdout
    assert two.differences(name) == ""


@pytest.mark.skipif(min(newest_stream(), newest_received()) < 2, reason="left out: compressed extents in streams (Linux 6.0)")
def test_a_copy_whose_compressed_data_the_disk_did_not_store_is_not_published(make_btrfs: Callable[..., Path]) -> None:
    """The kernel reports such a failed write to no fsync and no syncfs: the file has a hole there."""
    with failing_disk() as disk:
        two = TwoPools(make_btrfs(options="compress-force=zstd"), disk.point)
        (two.source / "large").write_text("".join(f"{number} is a line of a log\n" for number in range(200_000)))
        name = two.night("2026-03-01T22:00:00Z", "a")
        work("btrfs", "filesystem", "sync", two.first.pool)
        disk.fail()
        assert "Input/output error" in json.dumps(two.fetch(status=1))
        assert disk.failed_writes() > 0
        assert two.names(two.second.pool) == []
        disk.flag.unlink()
        two.fetch()
        disk.read_again()
        assert two.differences(name) == ""
