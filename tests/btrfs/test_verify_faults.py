"""`backupd verify` while something else goes wrong: a wrong clock, a deletion, a full pool, an end in the middle."""

import fcntl
import hashlib
import os
import shlex
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.files.file_digest import read_file, runs_without_zeros
from tests.beds import TOP
from tests.beds.faults import damage
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.watch import does_at, rows
from tests.beds.work import work
from tests.btrfs.test_verify import MIB, verify

pytestmark = [pytest.mark.btrfs]


def test_what_was_read_while_the_clock_was_ahead_is_read_again(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Otherwise verify would read nothing until that time comes, and call all files undamaged."""
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    for name in ("web", "db"):
        nights.host(name, tree)
        nights.backupd("run", name, "--now", "2026-03-01T22:00:00Z")
    verify(nights, "web", "--now", "2036-01-01T00:00:00Z")
    damage(nights.top, content[:4096])
    (done,) = verify(nights, "web", "--now", "2026-03-02T12:00:00Z", status=1)["backups"]
    assert (done["state"], done["compared"], done["damaged"]) == ("damaged", 0, [f"{tree}/database"])


def test_a_pass_that_was_begun_while_the_clock_was_ahead_comes_to_an_end(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    for number in range(20):
        (tree / str(number)).write_bytes(os.urandom(5000))
    for name in ("web", "db"):
        nights.host(name, tree)
        nights.backupd("run", name, "--now", "2026-03-01T22:00:00Z")
    verify(nights, "db", "--now", "2026-03-01T23:00:00Z")
    while verify(nights, "web", "--sample", "50%", "--now", "2036-01-01T00:00:00Z")["backups"][0]["state"] != "in part":
        (nights.pool / "hosts/web/verified.json").unlink()
    now = "2026-03-02T12:00:00Z"
    listed = nights.backupd("verify", "--dry-run", "--now", now).stdout
    assert listed.index("web") < listed.index("db")
    (done,) = verify(nights, "web", "--now", now)["backups"]
    assert (done["state"], done["read"]) == ("whole", 20)
    assert done["begun"] <= done["at"]
    assert verify(nights, "web", "--now", "2026-03-03T12:00:00Z")["backups"][0]["begun"] > now


def test_checksums_are_kept_while_the_clock_is_ahead(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    (tree / "file").write_bytes(os.urandom(5000))
    nights.tables["verify"] = {"new_files": "none"}
    nights.host("web", tree)
    nights.backupd("run", "web", "--now", "2019-03-01T22:00:00Z")
    verify(nights, "--now", "2019-03-02T22:00:00Z")
    (tree / "more").write_bytes(os.urandom(5000))
    nights.backupd("run", "web", "--now", "2019-03-03T22:00:00Z")
    answer = verify(nights, "--now", "2019-03-04T22:00:00Z")["backups"]
    assert sum(row["compared"] for row in answer) == 1


def delete(nights: Nights, name: str, path: Path) -> str:
    """Returns a line for the shell that deletes a backup of web, or prints why it cannot."""
    words = ("-m", "backupd", "--config", nights.config, "delete", f"web@{name}", "--force", "--now-without-grace")
    return f"cd {TOP}; {shlex.join(map(str, (sys.executable, *words)))} >{path} 2>&1; :"


def test_a_backup_that_is_deleted_before_its_turn_ends_nothing(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    nights.host("web", tree)
    for number in range(3):
        (tree / str(number)).write_bytes(os.urandom(5000))
        nights.run("web")
    first, second, third = nights.names("web")
    path = nights.top / "said"
    done = does_at(nights, delete(nights, second, path), "before", "verified.json replaced", "verify")
    assert nights.names("web") == [first, third], path.read_text()
    assert done.returncode == 0, done.stderr
    assert "was deleted" in done.stderr
    assert f"{third}: 1 file read" in done.stdout or f"{third}: 2 files read" in done.stdout
    done = does_at(nights, delete(nights, first, path), "before", "verified.json replaced", "verify", f"web@{first}")
    assert "is being restored from" in path.read_text()
    assert done.returncode == 0, done.stderr


def test_damage_that_is_found_in_a_full_pool_is_known(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, content[:4096])
    filler = nights.top / "filler"
    does = f"dd if=/dev/zero of={filler} bs=1M 2>/dev/null; dd if=/dev/zero of={filler}.more bs=4k 2>/dev/null; sync -f {filler}"
    done = does_at(nights, does, "after", "verified.json replaced", "verify")
    assert rows(nights, "select path from damage") == [(f"{tree}/database",)], done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_end_in_the_middle_forgets_no_damage(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    for number in range(150):
        (tree / str(number)).write_bytes(os.urandom(5000))
    nights.host("web", tree)
    nights.run("web")
    verify(nights)
    file = nights.pool / "hosts/web/checksums"
    head, *records = [file.read_bytes()[start : start + 72] for start in range(0, file.stat().st_size, 72)]
    wrong = (record[:36] + bytes(32) for record in records)
    wrong = (record[:36] + b"x" * 32 for record in records)
    file.write_bytes(head + b"".join(record + struct.pack(">I", zlib.crc32(record)) for record in wrong))
    done = nights.backupd("verify", check=False)
    assert "150 files damaged" in done.stdout
    assert "and 50 more" in done.stdout
    done = does_at(nights, "kill -TERM $PPID", "after", "verified.json replaced", "verify")
    assert done.returncode == 143
    assert nights.listed("web")[0]["verified"]["damages"] == 150
    assert rows(nights, "select count(*) from damage") == [(150,)]


def test_damage_is_told_of_every_backup_that_shares_it_when_one_is_read(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """The other backups are read weeks later, and the next night would keep the damaged data of its base."""
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "old").write_bytes(content)
    nights.host("web", tree)
    for number in range(3):
        (tree / "changes").write_bytes(os.urandom(5000 + number))
        nights.run("web")
    first, second, third = nights.names("web")
    verify(nights, f"web@{second}", f"web@{third}")
    damage(nights.top, content[:4096])
    (done,) = verify(nights, f"web@{first}", status=1)["backups"]
    assert done["damaged"] == [f"{tree}/old"]
    assert rows(nights, "select name, path from damage order by name") == [(name, f"{tree}/old") for name in (first, second, third)]
    answer = {row["name"]: row["verified"]["damages"] for row in nights.listed("web")}
    assert answer == {first: 1, second: 1, third: 1}
    nights.run("web")
    assert nights.differences("web", tree) == []
    verify(nights, "web", status=1)
    assert rows(nights, "select distinct name from damage order by name") == [(name,) for name in (first, second, third)]


def test_a_large_file_is_given_up_when_it_is_to_end(tmp_path: Path) -> None:
    """verify stops reading in the middle of the file, because two terabytes would take too long. A file that was damaged earlier
    does not count as undamaged then.
    """
    file = tmp_path / "large"
    file.write_bytes(os.urandom(5 << 20))
    answers = iter([True, True, False])
    assert read_file(os.open(file, os.O_RDONLY), b"/large", 5 << 20, b"", lambda: next(answers)) is None
    assert not list(answers)
    whole = read_file(os.open(file, os.O_RDONLY), b"/large", 5 << 20, b"", lambda: True)
    assert whole
    assert whole.digest == hashlib.sha256(file.read_bytes()).digest()


def test_zeros_that_a_deduplicator_makes_a_hole_are_no_damage(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """A deduplicator changes read-only backups, too, and does not change the inode. A byte that is no longer zero is damage."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"))
    content = os.urandom(128 << 10) + bytes(128 << 10) + os.urandom(5000)
    (tree / "image").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    image = nights.data("web", tree) / "image"
    work("btrfs", "property", "set", "-f", nights.backup("web"), "ro", "false")
    image.write_bytes(content)  # as after an in-place write of rsync
    work("btrfs", "property", "set", nights.backup("web"), "ro", "true")
    hide_changes(nights.pool / "hosts/web")
    assert image.stat().st_blocks * 512 > len(content)
    verify(nights)
    before = image.stat()
    with (nights.top / "hole").open("wb") as file:
        file.truncate(128 << 10)
    with (nights.top / "hole").open("rb") as hole, image.open("rb") as device:
        request = struct.pack("=QQHHI", 0, 128 << 10, 1, 0, 0) + struct.pack("=qQQiI", device.fileno(), 128 << 10, 0, 0, 0)
        answer = fcntl.ioctl(hole, 0xC0189436, request)  # FIDEDUPERANGE
        assert struct.unpack_from("=Qi", answer, 40) == (128 << 10, 0)
        os.sync()
        assert os.lseek(device.fileno(), 0, os.SEEK_HOLE) == 128 << 10
    assert image.stat().st_ctime_ns == before.st_ctime_ns
    (done,) = verify(nights)["backups"]
    assert (done["compared"], done["damages"]) == (1, 0)
    damage(nights.top, content[4096:8192])
    assert verify(nights, status=1)["backups"][0]["damages"] == 1


def test_only_zeros_in_whole_blocks_and_at_the_end_are_left_out() -> None:
    content, zero = b"x" + bytes(4094) + b"y", bytes(4096)
    cases = {
        content: [(0, 4096)],
        zero: [],
        content + zero + content + bytes(10): [(0, 4096), (8192, 12288)],
        zero + content + b"\0\1": [(4096, 8194)],
        b"x" + zero: [(0, 4096)],
        bytes(2048) + b"x" * 4096 + bytes(2048): [(0, 8192)],
    }
    assert {data: list(runs_without_zeros(data)) for data in cases} == cases


def test_kinds_names_and_holes_of_all_sorts_are_passed(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "disk", 0o60600, os.makedev(7, 0))
    (tree / "link").symlink_to("/etc/passwd")
    for name in (b"new\nline", b"esc\x1b[2J", b"caf\xe9", b"x" * 255):
        (tree / os.fsdecode(name)).write_bytes(name)
    nights.host("web", tree)
    nights.run("web")
    work("btrfs", "property", "set", "-f", nights.backup("web"), "ro", "false")
    with (nights.data("web", tree) / "exabyte").open("wb") as file:
        file.truncate(1 << 60)
        file.seek((1 << 60) - 5000)
        file.write(b"the end")
    work("btrfs", "property", "set", nights.backup("web"), "ro", "true")
    hide_changes(nights.pool / "hosts/web")
    for compared in (0, 5):
        (done,) = verify(nights)["backups"]
        assert (done["state"], done["read"], done["compared"]) == ("whole", 5, compared)
        assert done["bytes"] < 100_000
