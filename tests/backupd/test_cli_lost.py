"""A lost catalogue is reported, and the parts that no backup.json has are restored from the copy in the pool."""

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.history_copy import keep_history
from bench.make_catalogue import add_runs
from btrkeep.catalogue import Catalogue
from btrkeep.pool.marker import open_pool
from tests.beds import btrfs
from tests.beds.expiries import Expiries, at
from tests.beds.history import every, make_history, moment
from tests.beds.nights import Nights
from tests.beds.work import work

EVENING = moment("2026-03-20 22:00")
HISTORY = ("run", "expiry", "balance", "balance_step", "score", "sample", "alarm", "dedupe")


def rows(nights: Nights, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as database:
        return database.execute(query).fetchall()


def history(nights: Nights) -> dict[str, list[tuple[Any, ...]]]:
    """Returns all data that only the catalogue has, read with sqlite3."""
    return {table: rows(nights, f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in HISTORY}


def lose(nights: Nights) -> None:
    shutil.rmtree(nights.state)


def copy_of(nights: Nights) -> Path:
    return nights.pool / ".btrkeep" / "history.jsonl.gz"


@pytest.fixture(scope="module")
def _rehearsed(_shared_mount: Path) -> tuple[Expiries, Path, bytes]:
    """Two nights of two hosts, with samples, expiries, and a balance and a score as btrfs-balancer keeps them."""
    top = _shared_mount / "lost"
    work("btrfs", "subvolume", "create", top)
    pool = Expiries(top)
    (pool.source / "file").write_text("content")
    pool.host("web", pool.source)
    pool.host("db", pool.source.parent / "missing")  # fails every night
    for number in range(2):
        evening = EVENING + timedelta(days=number)
        pool.backupd("sample", *at(evening))
        pool.backupd("expire", *at(evening + timedelta(hours=1)))
        if number:
            put_balance(pool)
        pool.backupd("run", "--all", *at(evening + timedelta(hours=2)), check=False)
    return pool, Path(shutil.copytree(pool.state, pool.state.parent / "kept")), copy_of(pool).read_bytes()


@pytest.fixture
def rehearsed(_rehearsed: tuple[Expiries, Path, bytes]) -> Expiries:
    """The same for every test: the catalogue and its copy in their initial state."""
    pool, state, copy = _rehearsed
    shutil.rmtree(pool.state)
    shutil.copytree(state, pool.state)
    copy_of(pool).write_bytes(copy)
    return pool


def put_balance(nights: Nights) -> None:
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as database:
        (filesystem,) = database.execute("SELECT filesystem FROM sample").fetchone()
        stamp = "2026-03-21T03:00:00.000000Z"
        database.execute(
            "INSERT INTO balance (id, filesystem, mountpoint, started, finished, outcome, policy, pid, block_groups, moved, gained,"
            " failed, before, updated) VALUES (7, ?, '/srv', ?, ?, 'done', 'benefit', 1, 1, 5, 1.5, 0, '{\"score\":3}', ?)",
            (filesystem, stamp, stamp, stamp),
        )
        database.execute(
            "INSERT INTO balance_step (balance, number, vaddr, length, used, fragments, score, started, seconds, moved, gained,"
            " outcome) VALUES (7, 0, 4096, 1, 1, 1, 2.5, ?, 1, 5, 1.5, 'done')",
            (stamp,),
        )
        database.execute(
            "INSERT INTO score (filesystem, taken, block_groups, length, used, unallocated, fragments, score, bad, largest_free,"
            " free_in_large, histogram) VALUES (?, ?, 1, 2, 3, 4, 5, 6.5, 7, 8, 9, '[[1,2,3]]')",
            (filesystem, stamp),
        )
        database.execute(
            "INSERT INTO dedupe (id, started, finished, pid, outcome, backups, files, shared_bytes, read_bytes, left_out, updated)"
            " VALUES (1, ?, ?, 1, 'complete', 2, 5, 4096, 8192, 0, ?)",
            (stamp, stamp, stamp),
        )
        database.execute("INSERT INTO alarm VALUES ('failure', 'host db', 'it', 1, ?, 1, ?, NULL, NULL)", (stamp, stamp))
        database.commit()


def test_what_only_a_lost_catalogue_knew_comes_back_from_the_pool(rehearsed: Expiries) -> None:
    before = history(rehearsed)
    assert {table: bool(table_rows) for table, table_rows in before.items()} == dict.fromkeys(HISTORY, True)
    assert copy_of(rehearsed).stat().st_mode & 0o777 == 0o600
    backups = rehearsed.json("list")
    lose(rehearsed)
    answer = rehearsed.json("rebuild")
    assert answer["history"]["rows"] == {table: len(table_rows) for table, table_rows in before.items()}
    assert (answer["history"]["passed_over"], answer["history"]["trouble"]) == (0, None)
    after = history(rehearsed)
    assert [row[1:] for row in after.pop("balance")] == [row[1:] for row in before.pop("balance")]  # ids are assigned again
    assert [row[1:] for row in after.pop("balance_step")] == [row[1:] for row in before.pop("balance_step")]
    assert after == before
    assert [row["name"] for row in rehearsed.json("list")] == [backup["name"] for backup in backups]
    assert rehearsed.json("rebuild")["history"]["rows"] == dict.fromkeys(HISTORY, 0)
    assert history(rehearsed)["run"] == before["run"]


def test_what_happened_between_the_loss_and_the_rebuild_comes_after_what_was_brought_back(rehearsed: Expiries) -> None:
    before = rows(rehearsed, "SELECT host, started FROM run ORDER BY id")
    lose(rehearsed)
    rehearsed.backupd("sample", *at(EVENING + timedelta(days=3)))  # as its timer does, five minutes later
    assert rows(rehearsed, "SELECT count(*) FROM sample") == [(1,)]
    assert rows(rehearsed, "SELECT count(*) FROM run") == [(0,)]
    rehearsed.backupd("run", "web", *at(EVENING + timedelta(days=3)))  # brings it back first
    actual_rows = rows(rehearsed, "SELECT host, started FROM run ORDER BY id")
    assert actual_rows[:-1] == before
    assert actual_rows[-1][0] == "web"
    assert rows(rehearsed, "SELECT count(*) FROM sample") == [(3,)]


@pytest.mark.slow
def test_runs_that_are_younger_than_the_copy_get_later_ids(rehearsed: Expiries) -> None:
    kept = copy_of(rehearsed).read_bytes()
    before = rows(rehearsed, "SELECT host, started FROM run ORDER BY id")
    lose(rehearsed)
    copy_of(rehearsed).unlink()
    rehearsed.backupd("run", "web", *at(EVENING + timedelta(days=5)))
    younger = rows(rehearsed, "SELECT host, started FROM run ORDER BY id")
    copy_of(rehearsed).write_bytes(kept)
    rehearsed.backupd("rebuild")
    assert rows(rehearsed, "SELECT host, started FROM run ORDER BY id") == before + younger
    rehearsed.backupd("run", "web", *at(EVENING + timedelta(days=6)))
    assert [row[0] for row in rows(rehearsed, "SELECT host FROM run ORDER BY id")][-2:] == ["web", "web"]
    assert "restored" not in rehearsed.backupd("run", "web", *at(EVENING + timedelta(days=7))).stdout


@pytest.mark.slow
def test_a_copy_that_is_damaged_or_of_another_pool_is_said_and_set_aside(rehearsed: Expiries) -> None:
    path = copy_of(rehearsed)
    content = path.read_bytes()
    lose(rehearsed)
    head = gzip.decompress(content).splitlines(keepends=True)[0]
    for wrong in (
        content[: len(content) // 2],
        b"nothing",
        gzip.compress(b'{"format":1}\n'),
        edited(content, "pool", "another"),
        content[:-8] + bytes(4) + content[-4:],  # another checksum
        edited(content, "written", "9999-12-31T23:59:59-14:00"),
        edited(content, "unknown", '[["0001-01-01T00:00:00+14:00", "2026-03-20T22:00:00Z"]]'),
        gzip.compress(head + b"[]\n" * 400_000 + b'{"rows":400000}\n'),  # more rows than any copy has
    ):
        path.write_bytes(wrong)
        done = rehearsed.backupd("rebuild", check=False)
        assert done.returncode == 1
        assert "the copy of the history on the pool is not used: " in done.stdout
        assert not path.exists()
        assert (path.parent / "history.damaged").read_bytes() == wrong
        assert "Traceback" not in done.stderr
    path.write_bytes(edited(content, "format", 2))
    assert "has format 2" in rehearsed.backupd("rebuild", check=False).stdout
    rehearsed.backupd("run", "web", *at(EVENING + timedelta(days=4)))
    assert path.read_bytes() == edited(content, "format", 2)  # a later version's stays as it is


@pytest.mark.slow
def test_a_small_copy_that_unpacks_to_more_than_any_copy_has_is_not_read_to_its_end(rehearsed: Expiries) -> None:
    """A pool may come from another person. A mebibyte of blanks packs into a kibibyte."""
    path = copy_of(rehearsed)
    head = gzip.decompress(path.read_bytes()).splitlines(keepends=True)[0]
    lose(rehearsed)
    row = b"[" + b" " * ((1 << 20) - 10) + b"]\n"
    for text in (head + b"[" + b" " * (1 << 20) + b"]\n", head + row * 257):
        path.write_bytes(gzip.compress(text))
        done = rehearsed.backupd("rebuild", check=False)
        assert done.returncode == 1
        assert "is larger than a copy can be; it was renamed to" in done.stdout
        assert not path.exists()


def edited(content: bytes, key: str, value: Any) -> bytes:
    head, *lines = gzip.decompress(content).splitlines(keepends=True)
    return gzip.compress(json.dumps({**json.loads(head), key: value}).encode() + b"\n" + b"".join(lines), mtime=0)


def test_rows_that_cannot_be_are_passed_over_and_numbers_are_bounded(rehearsed: Expiries) -> None:
    path = copy_of(rehearsed)
    head, *lines, _ = gzip.decompress(path.read_bytes()).splitlines()
    columns = json.loads(head)["columns"]
    count = sum(json.loads(line)[0] == "run" for line in lines)
    wrong = [json.loads(line) for line in lines]
    runs = [line for line in wrong if line[0] == "run"]
    for line, (column, value) in zip(
        runs, [("literal_bytes", 1 << 70), ("started", "yesterday"), ("outcome", "<b>"), ("host", None)], strict=False
    ):
        line[1 + columns["run"].index(column)] = value
    wrong += [["no such table", 1], ["run"], 5, ["sample", float("1e400")]]
    text = [head, *(json.dumps(line).encode() for line in wrong), json.dumps({"rows": len(wrong)}).encode()]
    path.write_bytes(gzip.compress(b"\n".join(text) + b"\n"))
    lose(rehearsed)
    answer = rehearsed.json("rebuild")["history"]
    assert (answer["passed_over"], answer["rows"]["run"]) == (8, count - 4)
    for words in (["status"], ["log"], ["trend"]):
        assert "Traceback" not in rehearsed.backupd(*words, check=False).stderr


def test_every_command_reports_that_the_catalogue_was_lost_until_it_is_rebuilt(nights: Nights) -> None:
    nights.host("web", nights.source)
    assert "lost" not in nights.backupd("status").stderr  # a pool without a backup has lost nothing
    make_history(nights, "web", every(1, 3, datetime.now().astimezone() - timedelta(hours=1)), rebuild=False)
    for words in (["status"], ["list"], ["log"], ["status", "web", "--json"], ["list", "--json"], ["trend"]):
        done = nights.backupd(*words, check=False)
        assert "lists none of the backups in the pool" in done.stderr, words
        assert "backupd rebuild" in done.stderr
        assert "yet" not in done.stdout
    assert nights.json("status")["lost"] is True
    assert [finding["check"] for finding in nights.json("status")["pool"]["findings"]] == ["catalogue"]
    doctor = json.loads(nights.backupd("doctor", "--json", check=False).stdout)
    assert "catalogue" in [finding["name"] for finding in doctor["findings"]]
    process = nights.backupd("check", check=False)
    assert process.returncode == 1
    assert "lists none of the backups" in process.stdout
    assert 'btrkeep_catalogue_lost{pool="main"} 1.0' in nights.backupd("metrics").stdout
    assert rows(nights, "SELECT value FROM about WHERE name = 'lost'") == [("1",)]
    assert "alarm: the catalogue in" in nights.backupd("notify").stdout
    standing = "SELECT what, subject, recovered IS NULL FROM alarm WHERE subject = 'catalogue'"
    assert rows(nights, standing) == [("failure", "catalogue", 1)]
    assert 'btrkeep_alarms{event="failure",pool="main"} 1.0' in nights.backupd("metrics").stdout
    nights.backupd("rebuild")
    assert "0 open alarms" in nights.backupd("notify").stdout
    assert ("failure", "catalogue", 1) not in rows(nights, standing)
    published = "SELECT count(*) FROM about WHERE name = 'published'"
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert rows(nights, published) == [(1,)], "the dashboard knows no configuration: all hosts are unconfigured"
    assert nights.backupd("status").stderr == ""
    assert nights.json("status")["lost"] is False
    assert 'btrkeep_catalogue_lost{pool="main"} 0.0' in nights.backupd("metrics").stdout
    assert rows(nights, "SELECT value FROM about WHERE name = 'lost'") == []


def test_a_folder_with_a_backups_name_that_is_not_ours_is_no_lost_backup(nights: Nights) -> None:
    """`rebuild` does not find it and cannot restore it, so no message may recommend that."""
    nights.host("web", nights.source)
    folder = nights.pool / "hosts" / "web"
    folder.mkdir(mode=0o700)
    work("btrfs", "subvolume", "create", folder / "2026-11-20T220003Z")  # foreign
    (folder / "2026-11-21T220003Z").mkdir()
    (made,) = make_history(nights, "db", every(1, 1, datetime.now(UTC) - timedelta(days=1)), rebuild=False)
    assert nights.json("status")["lost"] is True
    work("btrfs", "subvolume", "delete", nights.pool / "hosts" / "db" / made)
    process = nights.backupd("status", "--json")
    assert (json.loads(process.stdout)["lost"], process.stderr) == (False, "")
    assert nights.json("status")["pool"]["findings"] == []
    assert nights.backupd("rebuild", check=False).stdout.endswith("the catalogue now has 0 backups\n")
    assert nights.json("status")["lost"] is False
    shutil.rmtree(nights.state)
    assert "lost" not in nights.backupd("check", check=False).stdout


def test_backups_that_cannot_be_read_are_lost_all_the_same(nights: Nights) -> None:
    """A newer version made them, or the disk has errors: the pool is not empty."""
    nights.host("web", nights.source)
    for name in make_history(nights, "web", every(1, 2, datetime.now(UTC) - timedelta(days=1)), rebuild=False):
        backup = nights.pool / "hosts" / "web" / name
        work("btrfs", "property", "set", "-f", "-ts", backup, "ro", "false")
        (backup / "backup.json").write_text("{")
    assert nights.json("status")["lost"] is True


def test_a_new_catalogue_knows_that_it_does_not_know_what_was_before(nights: Nights) -> None:
    nights.host("web", nights.source)
    make_history(nights, "web", every(1, 3, datetime.now(UTC) - timedelta(days=1)), rebuild=False)
    nights.run("web")  # as in a night, without an earlier check
    ((spans,),) = rows(nights, "SELECT value FROM about WHERE name = 'history_unknown'")
    ((start, end),) = json.loads(spans)
    assert start == "1970-01-01T00:00:00Z"
    assert abs(datetime.fromisoformat(end) - datetime.now(UTC)) < timedelta(minutes=5)
    written = (datetime.now(UTC) - timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    copy_of(nights).write_bytes(edited(copy_of(nights).read_bytes(), "written", written))
    lose(nights)
    nights.backupd("rebuild")
    ((spans,),) = rows(nights, "SELECT value FROM about WHERE name = 'history_unknown'")
    before, since_the_copy = json.loads(spans)
    assert before == [start, end]
    assert since_the_copy[0] == written < since_the_copy[1]


def damage(nights: Nights) -> None:
    (nights.state / "catalogue.sqlite").write_bytes(b"no database")
    for suffix in ("-wal", "-shm"):
        (nights.state / f"catalogue.sqlite{suffix}").unlink(missing_ok=True)


def test_a_run_that_failed_after_the_copy_of_the_night_is_not_forgotten(shared_btrfs: Path) -> None:
    nights = Expiries(shared_btrfs)
    (nights.source / "file").write_text("content")
    nights.host("web", nights.source)
    nights.backupd("run", "--all", *at(EVENING))
    kept = copy_of(nights).read_bytes()
    nights.host("web", nights.source / "missing")
    morning = EVENING + timedelta(minutes=50)  # before the day's end, when it is due again
    nights.backupd("run", "web", *at(morning), check=False)
    (before,) = nights.json("status", "web", *at(morning))["hosts"]
    damage(nights)
    nights.backupd("rebuild", *at(morning))
    (after,) = nights.json("status", "web", *at(morning))["hosts"]
    assert (after["state"], after["error"]) == ("failing", before["error"])

    copy_of(nights).write_bytes(kept)  # as if it could not be written: the pool was full
    damage(nights)
    nights.backupd("rebuild", *at(morning))
    assert state_of(nights, morning) == ("ok", 0)  # nothing was due since the last known run
    copy_of(nights).write_bytes(kept)
    damage(nights)
    later = EVENING + timedelta(hours=25)
    nights.backupd("rebuild", *at(later))
    assert state_of(nights, later) == ("unknown", 1)
    shown = nights.backupd("status", *at(later)).stdout
    assert "1 host: 1 unknown" in shown
    assert '{host="web",pool="main",state="unknown"} 1.0' in nights.backupd("metrics", *at(later)).stdout
    nights.backupd("run", "web", *at(later), check=False)
    assert state_of(nights, later)[0] == "failing"
    nights.host("web", nights.source)
    nights.backupd("run", "web", *at(later + timedelta(hours=1)))
    assert state_of(nights, later + timedelta(hours=1)) == ("ok", 0)


def state_of(nights: Nights, now: datetime) -> tuple[str, int]:
    """The state, and how many warnings are about runs that are not recorded."""
    (host,) = nights.json("status", "web", *at(now))["hosts"]
    return host["state"], sum("the runs of that time are not recorded" in warning for warning in host["warnings"])


def test_a_damaged_copy_that_cannot_be_set_aside_is_said_and_fails_no_run(nights: Nights) -> None:
    nights.host("web", nights.source)
    copy_of(nights).write_bytes(b"no gzip")
    (nights.pool / ".btrkeep" / "history.damaged").mkdir()
    output = nights.backupd("run", "--all").stdout
    assert "is damaged: " in output
    assert "it cannot be renamed: Is a directory" in output
    assert copy_of(nights).read_bytes() == b"no gzip"


def test_a_full_pool_costs_the_copy_and_not_the_night(btrfs_mount: Path) -> None:
    nights = Nights(btrfs_mount)
    nights.host("web", nights.source)
    nights.run("web")
    path, pool = copy_of(nights), open_pool(nights.pool)
    before, now = path.read_bytes(), datetime.now(UTC)
    with Catalogue.open(nights.state) as catalogue:
        (run,) = catalogue.runs()
        add_runs(catalogue, (replace(run, started=now + timedelta(seconds=n), error=os.urandom(500).hex()) for n in range(500)))
        work("btrfs", "subvolume", "create", btrfs_mount / "full")
        btrfs.fill(btrfs_mount, btrfs_mount / "full")
        output = keep_history(pool, catalogue, now, daily=False)
    assert "No space left" in output
    assert path.read_bytes() == before
    assert not path.with_name(path.name + ".new").exists()
    assert (nights.pool / ".btrkeep" / "reserve").stat().st_size > 0  # the reserve stays for others


def test_a_copy_that_cannot_be_written_is_said_and_fails_no_run(nights: Nights) -> None:
    nights.host("web", nights.source)
    copy_of(nights).mkdir()  # nothing can take its place
    assert "could not update the history copy in the pool: " in nights.backupd("run", "--all").stdout
