"""`backupd verify` finds and reports damage on a disk; compared with the kernel's read counters and sha256sum."""

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, btrfs
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.terminal import at_a_terminal
from tests.beds.watch import killed, rows
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]
MIB = 1 << 20


def verify(nights: Nights, *words: str, status: int = 0) -> dict[str, Any]:
    done = nights.backupd("verify", *words, "--json", check=False)
    assert done.returncode == status, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def bytes_read(top: Path) -> int:
    """Returns the bytes read from the disk, according to the kernel."""
    (device,) = btrfs.devices_of(top)
    return int(Path("/sys/block", Path(device).name, "stat").read_text().split()[2]) * 512


def records(nights: Nights, host: str) -> dict[int, bytes]:
    """Returns the digests in the host's file by inode, read by separate code."""
    data = (nights.pool / "hosts" / host / "checksums").read_bytes()
    return {inode: digest for inode, _, _, _, _, digest, _ in struct.iter_unpack(">QQQQI32sI", data[72:])}


def test_what_the_disk_flipped_is_named_in_every_backup_that_shares_it(
    make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path
) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content, name = os.urandom(2 * MIB), os.fsdecode(b"caf\xe9\nx")
    (tree / name).write_bytes(content)
    (tree / "other").write_bytes(os.urandom(MIB))
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 28)
        file.seek(1 << 27)
        file.write(b"in the middle")
    nights.host("web", tree)
    nights.run("web")
    (tree / "new").write_bytes(b"of the second night")
    nights.run("web")
    first, second = nights.names("web")
    nights.data("web", tree, first).joinpath(name).read_bytes()  # now in the page cache
    before = bytes_read(nights.top)
    done = verify(nights)
    assert bytes_read(nights.top) - before >= 3 * MIB
    assert [(backup["name"], backup["state"], backup["read"]) for backup in done["backups"]] == [
        (first, "whole", 3),
        (second, "whole", 1),
    ]
    assert done["bytes"] < 4 * MIB
    inode = (nights.data("web", tree, first) / "other").stat().st_ino
    assert records(nights, "web")[inode] == hashlib.sha256((tree / "other").read_bytes()).digest()

    damage(nights.top, content[MIB : MIB + 4096])
    done = verify(nights, "web", status=1)
    path = f"{tree}/{name}"
    assert [(backup["name"], backup["state"], backup["damaged"]) for backup in done["backups"]] == [
        (first, "damaged", [path]),
        (second, "damaged", [path]),
    ]
    assert [backup["compared"] for backup in done["backups"]] == [2, 1]
    assert rows(nights, "select name, start, found_by from damage order by name") == [
        (first, MIB, "verify"),
        (second, MIB, "verify"),
    ]
    listed = {row["name"]: row["verified"] for row in nights.listed("web")}
    assert (listed[first]["state"], listed[first]["damages"]) == ("damaged", 1)
    assert "damaged: /" in nights.backupd("list", "web").stdout
    assert "damaged web" in {alarm["subject"] for alarm in nights.json("notify", "--dry-run")["alarms"]}
    assert 'btrkeep_host_damaged_backups{host="web",pool="main"} 2' in nights.backupd("metrics").stdout
    slow = (TOP / "tests/beds/kill_at.py", f"slow:0.5:{tmp_path / 'begun'}", "before", "verified.json replaced", "1")
    with at_a_terminal((sys.executable, "-P", *slow, "--config", nights.config, "verify"), cwd=TOP) as terminal:
        assert terminal.ends() == 1
    shown = terminal.text
    assert f"[1/2] web {first}: 3 of 3 files" in shown
    assert shown.index(f"[1/2] web {first}: ") < shown.index(f"\rweb {first}: 2 files read")
    work("sqlite3", nights.state / "catalogue.sqlite", "delete from damage")
    nights.backupd("rebuild")
    assert rows(nights, "select count(*) from damage") == [(2,)]


def test_a_file_that_reads_well_with_another_content_is_damaged(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Without checksums of the filesystem no other check would find it."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"))
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    verify(nights)
    damage(nights.top, content[4096:8192])
    assert (nights.data("web", tree) / "database").read_bytes() != content
    (answer,) = verify(nights, "web", status=1)["backups"]
    assert answer["damaged"] == [f"{tree}/database"]
    (answer,) = verify(nights, "web@latest", status=1)["backups"]  # the recorded checksum is not replaced by the wrong one
    assert answer["state"] == "damaged"


def test_each_name_of_a_file_is_damaged_though_the_run_recorded_one(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """If the other names were read first, the file would seem good, and its damaged content would count as right from then on."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"), "--rehearsal")
    content, names = os.urandom(20_000), [str(number) for number in range(40)]
    (tree / "0").write_bytes(content)
    for name in names[1:]:
        (tree / name).hardlink_to(tree / "0")
    nights.host("web", tree)
    nights.night("web", now=datetime.now(UTC) - timedelta(days=1))
    (sums,) = nights.backup("web").joinpath("SHA256SUMS").read_text().splitlines()
    assert sums.startswith(hashlib.sha256(content).hexdigest())
    damage(nights.top, content[4096:8192])
    for words in ((), ("--sample", "1%"), ("--sample", "1%"), ()):
        verify(nights, "web", *words, status=1)
        assert rows(nights, "select path from damage order by path") == sorted((f"{tree}/{name}",) for name in names)
    for name in names:  # the host still has it, so the next backup is what it is repaired from
        (tree / name).unlink()
    (tree / "0").write_bytes(content)
    for name in names[1:]:
        (tree / name).hardlink_to(tree / "0")
    nights.run("web")
    done = json.loads(nights.backupd("repair", "--yes", "--json").stdout)
    assert {(file["fate"], file["proof"]) for backup in done["backups"] for file in backup["files"]} == {("repaired", "checksum")}
    first, copy, _ = nights.names("web")
    assert {(nights.data("web", tree, copy) / name).read_bytes() for name in names} == {content}
    assert nights.record("web", copy)["repaired"] | {"of_uuid": ""} == {"of": first, "of_uuid": "", "files": 40, "unproven": 0}


def test_what_is_not_what_the_run_recorded_stays_damaged_where_nothing_was_recorded(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    """Only the first backup has the checksum. The second backup has the same file, but no checksum to compare it with."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"), "--rehearsal")
    content = os.urandom(20_000)
    (tree / "file").write_bytes(content)
    nights.host("web", tree)
    nights.night("web", now=datetime.now(UTC) - timedelta(days=2))
    (tree / "other").write_text("second")
    nights.night("web", now=datetime.now(UTC) - timedelta(days=1))
    first, second = nights.names("web")
    damage(nights.top, content[4096:8192])
    for words in ((), (f"web@{second}",), ("web", "--sample", "1"), ("web", "--sample", "1"), (f"web@{second}",), ()):
        verify(nights, *words, status=1)
        assert rows(nights, "select name, path from damage order by name") == [(first, f"{tree}/file"), (second, f"{tree}/file")]
    planned = json.loads(nights.backupd("repair", "--dry-run", "--json", check=False).stdout)
    assert [file["fate"] for backup in planned["backups"] for file in backup["files"]] == ["no-copy", "no-copy"]
    nights.backupd("delete", f"web@{first}", "--now-without-grace")
    assert nights.names("web") == [second]
    for _ in range(2):
        (answer,) = verify(nights, status=1)["backups"]
        assert answer["damaged"] == [f"{tree}/file"]


def test_a_sample_reads_what_is_known_to_be_damaged_also_when_no_checksum_says_so(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    """This happens if the pool was too full for checksums while `verify` read, or if the host's file of checksums was lost."""
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "none"}
    content = os.urandom(100_000)
    (tree / "victim").write_bytes(content)
    for number in range(300):
        (tree / str(number)).write_bytes(b"%d" % number * 2000)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, content[4096:8192])
    verify(nights, status=1)
    for path in (nights.pool / "hosts/web").glob("checksums*"):
        path.unlink()
    for _ in range(2):
        verify(nights, "--sample", "1%", status=1)
        assert rows(nights, "select path from damage") == [(f"{tree}/victim",)]


def test_a_file_of_many_names_and_zeros_is_read_once(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Its digest leaves out zeros, so it never equals the digest that the run recorded."""
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "all"}
    for number in range(1000):
        (tree / str(number)).mkdir()
    (tree / "0/file").write_bytes(os.urandom(MIB // 4) + bytes(4096) + os.urandom(MIB // 4))
    for number in range(1, 1000):
        (tree / str(number) / "file").hardlink_to(tree / "0/file")
    nights.host("web", tree)
    nights.run("web")
    for _ in range(2):
        done = verify(nights)
        assert (done["files"], done["bytes"]) == (1, MIB // 2 + 4096)


def test_a_pass_goes_on_where_it_was_cut_off(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    for number in range(200):
        (tree / str(number)).write_bytes(os.urandom(5000))
    nights.tables["verify"] = {"new_files": "none"}
    nights.host("web", tree)
    nights.run("web")
    assert nights.backupd("verify", "--dry-run").stdout.count("never read") == 1
    (answer,) = verify(nights, "--sample", "50")["backups"]
    assert answer["state"] == "in part"
    assert 10 < answer["read"] < 110
    (rest,) = verify(nights)["backups"]
    assert (rest["state"], rest["read"], rest["compared"]) == ("whole", 200, 0)
    (again,) = verify(nights, "--sample", "10%")["backups"]
    assert again["read"] == again["compared"] < 200
    assert verify(nights, "--time", "0s")["backups"] == []
    (nights.pool / "hosts/web/checksums").write_bytes(b"none of ours")
    assert verify(nights)["files"] > 0


def test_what_was_read_before_a_kill_is_not_read_again(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    killed(nights, "after", "checksums replaced", "verify")
    done = verify(nights)
    assert (done["files"], done["backups"][0]["state"]) == (0, "whole")
    killed(nights, "before", "checksums replaced", "verify")
    assert verify(nights)["files"] == 1
