"""Initial copies: carried to the second server as files; the result is checked by rsync and btrfs."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.beds import btrfs, session, work
from tests.beds.cli import backupd_start
from tests.beds.two_pools import TwoPools, shown

pytestmark = pytest.mark.btrfs

NOW = ("--now", "2026-03-20T12:00:00Z")


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    made = TwoPools(make_btrfs(), make_btrfs())
    made.over_ssh('exec "$@"')
    return made


@pytest.fixture
def disk() -> Iterator[Path]:
    folder = Path(session.folder()) / f"disk-{os.urandom(4).hex()}"
    folder.mkdir()
    yield folder / "seed"
    subprocess.run(["umount", "-q", folder], check=False)
    shutil.rmtree(folder)


def seed_to(two: TwoPools, disk: Path, *words: str, status: int = 0) -> Any:
    done = two.first.backupd("replicate", "--seed-to", disk, "--part-size", "64KiB", *words, "--json", *NOW, check=False)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def seed_from(two: TwoPools, disk: Path, *words: str, status: int = 0) -> Any:
    answer = two.fetch("office", *words, "--seed-from", str(disk), status=status)
    return answer[0] if isinstance(answer, list) else answer


def filled(two: TwoPools) -> str:
    (two.source / "large").write_bytes(os.urandom(500_000))
    return two.night("2026-03-01T22:00:00Z", "a")


def test_a_seed_becomes_a_copy_and_the_next_fetch_is_a_difference_to_it(two: TwoPools, disk: Path) -> None:
    old = filled(two)
    first = two.night("2026-03-02T22:00:00Z", "b")
    (answer,) = seed_to(two, disk, "backup2")
    assert (answer["host"], answer["backup"], answer["already"]) == ("web1", first, False)
    parts = sorted((disk / "web1").glob("*.part"))
    assert len(parts) == answer["parts"] > 7
    assert {part.stat().st_size for part in parts[:-1]} == {65536}
    document = json.loads((disk / "web1/seed.json").read_text())["parts"]
    assert [row["sha256"] for row in document] == [sha256(part.read_bytes()).hexdigest() for part in parts]
    assert disk.stat().st_mode & 0o777 == 0o700
    assert {part.stat().st_mode & 0o777 for part in parts} == {0o600}
    back = seed_from(two, disk)
    assert [fetched_backup["backup"] for fetched_backup in back["fetched"]] == [first]
    assert two.differences(first) == ""
    here, by_name = (shown(pool / "hosts/web1" / first) for pool in (two.second.pool, two.first.pool))
    assert here["Received UUID"] == by_name["UUID"]
    second = two.night("2026-03-03T22:00:00Z", "c")
    document = two.fetch("office")[0]["fetched"]
    assert (second, first) in [(row["backup"], row["parent"]) for row in document]
    assert sum(row["bytes"] for row in document if row["backup"] == second) < 200_000
    assert old in two.names(two.first.pool)


def test_the_first_server_keeps_what_was_seeded_until_it_is_fetched(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    seed_to(two, disk, "backup2")
    *_, last = (two.night(f"2026-03-0{day}T22:00:00Z", "b") for day in (2, 3, 4))
    two.first.tables["retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1, "grace": "1s"}
    two.first.write()
    for hour in (12, 13):
        two.first.backupd("expire", "--now", f"2026-03-20T{hour}:00:00Z")
    assert two.names(two.first.pool) == [first, last]
    explained = two.first.backupd("retention", "explain", "web1", *NOW).stdout
    assert "common with replica backup2" in explained


def test_a_disk_that_is_on_its_way_does_not_lose_its_backup_to_a_fetch_or_to_another_disk(two: TwoPools, disk: Path) -> None:
    """At the same time the second server fetches another host, and the same host is written to a second disk. Either disk may
    arrive.
    """
    db = two.first.source / "db"
    db.mkdir()
    two.first.host("db", db)
    two.first.tables["retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1, "grace": "1s"}
    two.first.write()
    two.first.backupd("run", "db", "--now", "2026-03-01T21:00:00Z")
    older = filled(two)
    seed_to(two, disk, "office", "web1")
    two.second.tables["replica.office"]["hosts"] = ["db"]
    two.second.write()
    two.fetch("office")
    newer = two.night("2026-03-02T22:00:00Z", "b")
    seed_to(two, disk.with_name("another"), "office", "web1")
    *_, last = (two.night(f"2026-03-0{day}T22:00:00Z", "c") for day in (3, 4, 5))
    two.fetch("office")

    def expire(day: int) -> list[str]:
        for hour in (12, 13):
            two.first.backupd("expire", "--now", f"2026-03-{day}T{hour}:00:00Z")
        return two.names(two.first.pool)

    assert expire(20) == [older, newer, last]
    two.second.tables["replica.office"]["hosts"] = ["web1"]
    two.second.write()
    seed_from(two, disk)
    fetched = two.fetch("office")[0]["fetched"]
    assert [(row["backup"], row["parent"]) for row in fetched] == [(newer, older), (last, newer)]
    assert expire(21) == [last]  # both have it: nothing is waited for


def test_a_seed_is_kept_for_a_host_that_was_renamed_meanwhile(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    seed_to(two, disk, "backup2")
    two.first.backupd("rename", "web1", "web2", "--yes")
    assert "common with replica backup2" in two.first.backupd("retention", "explain", "web2", *NOW).stdout
    assert two.names(two.first.pool, "web2") == [first]


def test_what_was_cut_off_goes_on_and_what_is_whole_is_not_written_again(two: TwoPools, disk: Path) -> None:
    filled(two)
    whole = seed_to(two, disk, "backup2")[0]
    times = {path.name: path.stat().st_mtime_ns for path in (disk / "web1").glob("*.part")}
    assert seed_to(two, disk, "backup2")[0]["already"] is True
    (disk / "web1/seed.json").unlink()
    cut = sorted((disk / "web1").glob("*.part"))
    with cut[4].open("r+b") as file:
        file.truncate(1000)
    for part in cut[5:]:
        part.unlink()
    (disk / "web1/000099.part").write_bytes(b"of another one")
    again = seed_to(two, disk, "backup2")[0]
    assert (again["parts"], again["bytes"], again["already"]) == (whole["parts"], whole["bytes"], False)
    now = {path.name: path.stat().st_mtime_ns for path in (disk / "web1").glob("*.part") if path.name != "000099.part"}
    assert sorted(name for name in times if now[name] != times[name]) == sorted(times)[4:]
    assert seed_from(two, disk)["fetched"]


def test_killed_in_the_middle_it_goes_on(two: TwoPools, disk: Path) -> None:
    (two.source / "large").write_bytes(os.urandom(16_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    words = ("--config", two.first.config, "replicate", "--seed-to", disk, "--part-size", "64KiB", "backup2")
    program = backupd_start(*words)
    end = time.monotonic() + 60
    while not (disk / "web1/000005.part").exists():
        assert time.monotonic() < end
        time.sleep(0.002)
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert not (disk / "web1/seed.json").exists()
    assert "it is incomplete" in str(seed_from(two, disk, status=1))
    seed_to(two, disk, "backup2")
    seed_from(two, disk)
    assert two.differences(first) == ""


@pytest.fixture(scope="module")
def written(no_leftovers: None) -> Iterator[tuple[TwoPools, Path]]:
    """Two pools, and an initial copy that was not received yet: tests use a copy of it, and leave no backup in the second pool."""
    points = [btrfs.make(), btrfs.make()]
    two = TwoPools(*points)
    two.over_ssh('exec "$@"')
    filled(two)
    seed_to(two, points[0] / "seed", "backup2")
    yield two, points[0] / "seed"
    problems = [problem for point in points for problem in session.remove(point.parent)]
    assert not problems, "\n".join(problems)


def harm(disk: Path, how: str) -> None:
    part, other = disk / "web1/000003.part", disk / "web1/000005.part"
    content = bytearray(part.read_bytes())
    content[30_000] ^= 1
    match how:
        case "flip":
            part.write_bytes(content)
        case "cut":
            part.write_bytes(content[:1000])
        case "gone":
            part.unlink()
        case "swapped":
            text, more = part.read_bytes(), other.read_bytes()
            part.write_bytes(more)
            other.write_bytes(text)
        case "pipe":
            part.unlink()
            os.mkfifo(part)
        case "link":
            part.rename(disk / "elsewhere")
            part.symlink_to(disk / "elsewhere")
        case "longer":
            part.write_bytes(part.read_bytes() + b"x")


@pytest.mark.parametrize("how", ["flip", "cut", "gone", "swapped", "longer", "pipe", "link"])
def test_a_seed_that_is_not_what_was_written_leaves_nothing_here(written: tuple[TwoPools, Path], disk: Path, how: str) -> None:
    two, whole = written
    shutil.copytree(whole, disk)
    harm(disk, how)
    assert_refused(two, disk)


def assert_refused(two: TwoPools, disk: Path) -> None:
    failed = seed_from(two, disk, status=1)["failed"]
    assert [each["host"] for each in failed] == ["web1"]
    assert "000003.part" in failed[0]["error"] or "stream" in failed[0]["error"] or "receive" in failed[0]["error"]
    assert two.names(two.second.pool) == []
    assert not list((two.second.pool / "hosts/web1").glob(".receiving/*"))


def test_after_a_harmed_seed_the_whole_one_is_received(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    seed_to(two, disk, "backup2")
    shutil.copytree(disk, kept := disk.with_name("kept"))
    harm(disk, "swapped")
    assert_refused(two, disk)
    seed_from(two, kept)
    assert two.differences(first) == ""


def test_a_host_s_folder_that_is_a_link_is_not_followed(two: TwoPools, disk: Path) -> None:
    filled(two)
    seed_to(two, disk, "backup2")
    shutil.rmtree(disk / "web1")
    (disk.parent / "else").mkdir()
    (disk / "web1").symlink_to(disk.parent / "else")
    assert "symbolic link" in seed_to(two, disk, "backup2", status=1)
    assert list((disk.parent / "else").iterdir()) == []


def test_a_disk_that_is_full_is_told_and_a_larger_one_takes_it(two: TwoPools, disk: Path) -> None:
    filled(two)
    work("mount", "-t", "tmpfs", "-o", "size=200k", "seed", disk.parent)
    answer = seed_to(two, disk, "backup2", status=1)
    assert "No space left on device" in answer
    assert "run the same command again, if needed on a larger disk" in answer
    work("mount", "-o", "remount,size=20m", disk.parent)
    assert seed_to(two, disk, "backup2")[0]["parts"] > 7


def test_what_is_no_seed_or_of_another_pool_is_refused(two: TwoPools, disk: Path) -> None:
    filled(two)
    assert "is not an initial copy" in str(two.fetch("office", "--seed-from", str(disk.parent), status=1))
    (disk.parent / "mine").write_text("a letter")
    assert "has other files in it" in seed_to(two, disk.parent, "backup2", status=1)
    seed_to(two, disk, "backup2")
    marker = disk / "seed.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"pool": "another"}))
    assert "of another pool" in seed_to(two, disk, "backup2", status=1)
    marker.write_text(json.dumps({"format": 99, "pool": "x"}))
    assert "newer btrkeep" in str(two.fetch("office", "--seed-from", str(disk), status=1))
    assert "is in the pool" in seed_to(two, two.first.pool / "seed", "backup2", status=2)
    assert "give this server's name" in seed_to(two, disk, status=2)
    assert "no backup of web9" in seed_to(two, disk, "backup2", "web9", status=2)


def test_a_host_of_a_seed_of_a_newer_version_is_refused_and_nothing_of_it_is_received(two: TwoPools, disk: Path) -> None:
    filled(two)
    seed_to(two, disk, "backup2")
    marker = disk / "web1/seed.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 2}))
    for named in ([], ["web1"]):
        ((host, why),) = [(failed["host"], failed["error"]) for failed in seed_from(two, disk, *named, status=1)["failed"]]
        assert (host, "newer btrkeep" in why) == ("web1", True)
    assert two.names(two.second.pool) == []


def test_a_rehearsal_of_either_writes_nothing(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    assert seed_to(two, disk, "backup2", "--dry-run")[0]["backup"] == first
    assert not disk.exists()
    assert not list((two.first.pool / ".btrkeep").glob("common/*"))
    seed_to(two, disk, "backup2")
    plan = seed_from(two, disk, "--dry-run")
    assert [fetch["backup"] for fetch in plan["fetches"]] == [first]
    assert two.names(two.second.pool) == []
