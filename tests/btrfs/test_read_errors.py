"""A read error of any program is reported in all backups that share the data; compared with the bytes damaged on purpose."""

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.decisions.scrub import SeenErrors, forget_own, forget_unnamed, new_errors, read_seen, seen_now
from btrkeep.pool.kernel_log import ReadFailure, read_failures
from tests.beds import TOP, btrfs
from tests.beds.cli import BACKUPD
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.walls import with_own_mounts
from tests.beds.watch import does_at, rows
from tests.beds.work import work

MIB = 1 << 20
NOW = datetime(2026, 3, 20, 22, 0, tzinfo=UTC)


def damaged(nights: Nights) -> list[dict[str, Any]]:
    return list(json.loads(nights.backupd("damaged", "--json", check=False).stdout))


def named(nights: Nights, file: Path) -> list[dict[str, Any]]:
    """Returns the recorded damage after a failed read; repeated while the kernel omits lines, whose limit all tests share."""
    for _ in range(8):
        assert work("sha256sum", file, check=False).returncode
        if damages := damaged(nights):
            return damages
        time.sleep(5)
    pytest.fail("the kernel's log names nothing")


def fact(nights: Nights) -> Any:
    ((text,),) = rows(nights, "select value from about where name = 'device_errors'")
    return json.loads(text)


@pytest.mark.btrfs
@pytest.mark.root
def test_what_another_program_could_not_read_is_named_in_all_backups(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    nights, tree = Nights(make_btrfs(size="300M")), tmp_path / "srv"
    for name in ("db", "web"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_bytes(os.urandom(MIB))
        nights.host(name, tree / name)
    nights.run("web")
    nights.run("web", "db")
    (db,), (first, last) = nights.names("db"), nights.names("web")
    spoilt, other = nights.data("web", tree / "web", last) / "file", nights.data("db", tree / "db") / "again"
    work("btrfs", "property", "set", "-f", nights.pool / "hosts/db" / db, "ro", "false")
    work("cp", "--reflink=always", spoilt, other)  # as after a deduplicator
    work("btrfs", "property", "set", nights.pool / "hosts/db" / db, "ro", "true")
    work("sync", "-f", nights.top)
    assert damaged(nights) == []
    content = spoilt.read_bytes()
    damage(nights.top, content[512 << 10 : (512 << 10) + 8192])
    assert damaged(nights) == []  # it was not read
    # Of a filesystem that was on the device before: there is a folder at that number now.
    device, folder = Path(btrfs.devices_of(nights.top)[0]).name, spoilt.parent.stat().st_ino
    ours = nights.subvolume("web", last)["Subvolume ID"]
    before_us = f"BTRFS warning (device {device}): csum failed root {ours} ino {folder} off 0 csum 0x1 expected csum 0x2 mirror 1"
    Path("/dev/kmsg").write_text(f"<4>{before_us}\n")
    damages = named(nights, spoilt)
    assert [(row["host"], row["path"], row["backups"], row["found_by"]) for row in damages] == [
        ("db", f"{tree}/db/again", [db], ["device"]),
        ("web", f"{tree}/web/file", [first, last], ["device"]),
    ]
    assert {place["start"] for row in damages for place in row["places"]} <= {512 << 10, (512 << 10) + 4096}
    before = fact(nights)
    assert damaged(nights) == damages
    assert fact(nights) == before  # no errors were counted since, nor by the check itself

    uncounted = json.dumps(before | {"counters": {}})  # as if all errors were counted after the last known line
    work("sqlite3", nights.state / "catalogue.sqlite", f"update about set value = '{uncounted}' where name = 'device_errors'")
    total = sum(before["counters"].values())
    total += sum(count for _, count in before["unexplained"])
    assert f"the devices have counted {total} read errors" in nights.backupd("damaged", check=False).stdout
    assert sum(count for _, count in fact(nights)["unexplained"]) == total
    assert f"{total} read errors" in nights.backupd("damaged", check=False).stdout  # until a scrub has named all

    nights.run("web")
    assert (nights.data("web", tree / "web") / "file").read_bytes() == content
    nights.backupd("verify", f"db@{db}", check=False)
    assert rows(nights, "select found_by, count(*) from damage group by found_by") == [("device", 2), ("verify", 1)]

    newest = nights.names("web")[-1]  # recorded as damaged, as if it was repaired since
    work("sqlite3", nights.state / "catalogue.sqlite", f"update damage set name = '{newest}' where name = '{last}'")
    work("sleep", "1.1")
    nights.backupd("verify", f"web@{newest}")
    assert rows(nights, "select name from damage where host = 'web'") == [(first,)]


@pytest.mark.btrfs
@pytest.mark.root
def test_errors_that_a_verify_met_are_named_by_it_and_others_stay_until_a_scrub(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """Errors found by other programs may be in metadata or an unfinished backup, which verify does not read."""
    nights, tree = Nights(make_btrfs(size="300M")), tmp_path / "srv"
    content = os.urandom(2 * MIB)
    for name in ("db", "web"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_bytes(content if name == "web" else os.urandom(MIB))
        nights.host(name, tree / name)
    nights.run("db")
    nights.run("web")
    damage(nights.top, content[MIB : MIB + (256 << 10)])  # more blocks than the kernel writes lines of
    unexplained = "the devices have counted"
    for _ in range(2):
        assert nights.backupd("verify", check=False).returncode == 1
        assert unexplained not in nights.backupd("damaged", check=False).stdout
    assert nights.backupd("verify", "web", check=False).returncode == 1
    assert unexplained not in nights.backupd("damaged", check=False).stdout

    # While this reads the undamaged db, another program meets an error of another host.
    spoilt = nights.data("web", tree / "web") / "file"
    does_at(nights, f"cat {spoilt} >/dev/null 2>&1; true", "before", "checksums replaced", "verify")
    assert unexplained in nights.backupd("damaged", check=False).stdout
    met = fact(nights)["unexplained"]

    uncounted = json.dumps(fact(nights) | {"counters": {}})  # as if another program had met all of them, without a line in the log
    work("sqlite3", nights.state / "catalogue.sqlite", f"update about set value = '{uncounted}' where name = 'device_errors'")
    assert unexplained in nights.backupd("damaged", check=False).stdout
    before = fact(nights)["unexplained"]
    assert before[: len(met)] == met
    assert len(before) > len(met)
    nights.backupd("verify", check=False)
    assert fact(nights)["unexplained"] == before


@pytest.mark.btrfs
@pytest.mark.root
def test_a_verify_that_may_not_read_the_kernels_log_leaves_its_lines_to_the_next_look(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    nights, tree = Nights(make_btrfs(size="300M")), tmp_path / "srv"
    content = os.urandom(MIB)
    for name in ("db", "web"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_bytes(content if name == "web" else b"whole")
        nights.host(name, tree / name)
    nights.run("db", "web")
    damage(nights.top, content[:8192])
    spoilt = nights.data("web", tree / "web") / "file"
    closed = nights.top / "socket"  # a socket cannot be opened as a file
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(closed))
    without_log = 'mount --bind "$0" /dev/kmsg && exec "$@"'
    within = ("sh", "-c", without_log, closed, *BACKUPD, "--config", nights.config)
    for _ in range(8):  # again while the kernel leaves out lines, which it counts for all tests
        assert work("sha256sum", spoilt, check=False).returncode
        work(*with_own_mounts(*within, "verify", "db"), cwd=TOP)
        if damages := damaged(nights):
            break
        time.sleep(5)
    assert [(row["host"], row["path"]) for row in damages] == [("web", f"{tree}/web/file")]


def test_a_line_names_subvolume_inode_and_place() -> None:
    lines = [
        "BTRFS warning (device loop0): csum failed root 259 ino 266 off 28672 csum 0x8941f998 expected csum 0xd43d46f8 mirror 1",
        "BTRFS warning (device sdb state E): csum failed root 5 ino 257 off 0 csum 0x1 expected csum 0x2 mirror 2",
        "BTRFS warning (device loop1): csum failed root 259 ino 266 off 28672 csum 0x8941f998 expected csum 0xd43d46f8 mirror 1",
        "BTRFS warning (device loop0): csum failed root -9 ino 266 off 28672 csum 0x8941f998 expected csum 0xd43d46f8 mirror 1",
        "BTRFS error (device loop0): bdev /dev/loop0 errs: wr 0, rd 0, flush 0, corrupt 1, gen 0",
    ]
    assert read_failures(lines, frozenset({"loop0", "sdb"})) == [ReadFailure(259, 266, 28672), ReadFailure(5, 257, 0)]


@pytest.mark.parametrize(
    ("before", "now", "growth"),
    [({}, {1: 3}, 3), ({1: 3}, {1: 3}, 0), ({1: 3}, {1: 5, 2: 1}, 3), ({1: 3}, {1: 2}, 2), ({1: 3, 2: 9}, {1: 3}, 0)],
)
def test_what_was_counted_since_is_what_grew_or_all_after_a_reset(before: dict[int, int], now: dict[int, int], growth: int) -> None:
    assert new_errors(SeenErrors(before), now) == growth


def test_what_no_line_names_adds_up() -> None:
    seen_errors = seen_now(SeenErrors(), {1: 5}, 3, "boot", 70, NOW)
    assert (seen_errors.unnamed, seen_errors.since, seen_errors.message) == (2, NOW, 70)
    assert seen_now(seen_errors, {1: 6}, 4, "boot", 80, NOW).unnamed == 2
    assert seen_now(SeenErrors(), {1: 1}, 1, "boot", 1, NOW).since is None
    many = SeenErrors()
    for number in range(1, 500):
        many = seen_now(many, {1: 3 * number}, 1, "boot", number, NOW + timedelta(seconds=number))
    assert many.unnamed == 998
    assert len(many.unexplained) <= 100


@pytest.mark.parametrize(("since", "own", "left"), [(0, 2, 7), (0, 20, 0), (1, 4, 5), (1, 20, 3), (2, 3, 6), (3, 5, 9), (0, 0, 9)])
def test_a_look_at_some_forgets_what_it_counted_itself_and_nothing_from_before(
    tmp_path: Path, since: int, own: int, left: int
) -> None:
    moments = [NOW + timedelta(hours=number) for number in range(4)]
    seen = SeenErrors({}, "boot", 1, tuple(zip(moments[1:], (3, 2, 4), strict=True)))
    with Catalogue.open(tmp_path) as catalogue:
        forget_own(catalogue, seen, moments[since], own)
        seen_errors = read_seen(catalogue)
        assert (seen_errors.unnamed, seen_errors.unexplained[:since]) == (left, seen.unexplained[:since])


@pytest.mark.parametrize(
    ("until", "own", "left"),
    [(0, 0, 9), (1, 0, 6), (1, 2, 4), (2, 0, 4), (2, 4, 0), (3, 0, 0), (None, 0, 9), (3, 7, 0)],
)
def test_a_look_at_everything_forgets_what_was_counted_before_it_began_and_what_it_counted_itself(
    tmp_path: Path, until: int | None, own: int, left: int
) -> None:
    moments = [NOW + timedelta(hours=number) for number in range(4)]
    seen, total = SeenErrors(), 0
    for number, count in ((1, 3), (2, 2), (3, 4)):
        total += count
        seen = seen_now(seen, {1: total}, 0, "boot", number, moments[number])
    with Catalogue.open(tmp_path) as catalogue:
        forget_unnamed(catalogue, seen, None if until is None else moments[until], own)
        seen_errors = read_seen(catalogue)
        assert (seen_errors.unnamed, seen_errors.counters, seen_errors.since is None) == (left, {1: 9}, left == 0)


@pytest.mark.btrfs
@pytest.mark.root
def test_what_repair_reads_of_damaged_files_is_no_unnamed_error(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    nights, tree = Nights(make_btrfs(size="300M")), tmp_path / "srv"
    tree.mkdir()
    contents = {name: os.urandom(MIB) for name in ("file", "other")}
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, contents["file"][:MIB])  # more blocks than the kernel writes lines of
    assert nights.backupd("verify", check=False).returncode == 1
    (tree / "file").touch()
    nights.run("web")
    unexplained = "the devices have counted"
    assert unexplained not in nights.backupd("damaged", check=False).stdout
    for words in (("--dry-run",), ("--dry-run", "--unproven")):
        assert nights.backupd("repair", *words, check=False).returncode == 1
        assert unexplained not in nights.backupd("damaged", check=False).stdout, words
