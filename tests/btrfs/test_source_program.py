"""btrkeep-source on a real btrfs: a real rsync reads one moment of it, through a real sshd, while it is being written.

Nothing here relies on the program's own report: trees are compared with the kernel's, and databases by their own checks.
"""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import btrfs, differences, manifest, work
from tests.beds.hangfs import hanging
from tests.beds.source_program import HIDDEN, SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.takes(60)]

# Writes a number to a, then to z, for ever, each to the disk: at each moment z is the same or one less. Without fsync a snapshot of
# btrfs may have the newer data of z with the older ones of a, as after a power cut.
WRITER = """
import os, sys
fds = [os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT) for name in ("a", "z")]
number = 0
while True:
    number += 1
    for fd in fds:
        os.pwrite(fd, b"%20d" % number, 0)
        os.fsync(fd)
"""
# Moves money between two accounts: their sum is 0 in each transaction. A row for each, so that the file grows.
BANK = """
import sqlite3, sys
bank = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
bank.execute("PRAGMA journal_mode = " + sys.argv[2])
bank.execute("CREATE TABLE IF NOT EXISTS account (money INTEGER)")
bank.execute("CREATE TABLE IF NOT EXISTS entry (number INTEGER PRIMARY KEY, text TEXT)")
bank.execute("INSERT INTO account VALUES (0), (0)")
while True:
    bank.execute("BEGIN IMMEDIATE")
    bank.execute("UPDATE account SET money = money + 1 WHERE rowid = 1")
    bank.execute("INSERT INTO entry (text) VALUES (hex(randomblob(2000)))")
    bank.execute("UPDATE account SET money = money - 1 WHERE rowid = 2")
    bank.execute("COMMIT")
"""


@contextmanager
def working(script: str, *words: str | Path) -> Iterator[None]:
    """Runs that Python script during the block."""
    process = subprocess.Popen([sys.executable, "-c", script, *words])
    try:
        yield
        assert process.poll() is None, "it ended by itself"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def host(sshd: Sshd) -> SourceHost:
    return SourceHost(sshd)


def numbers(folder: Path) -> tuple[int, int]:
    return int((folder / "a").read_text()), int((folder / "z").read_text())


def test_a_session_is_one_moment_while_files_are_written_and_a_live_transfer_is_not(
    host: SourceHost, btrfs_mount: Path, tmp_path: Path
) -> None:
    (btrfs_mount / "middle").write_bytes(os.urandom(50 << 20))  # rsync reads it after a and before z
    with working(WRITER, btrfs_mount):
        wait_for(lambda: (btrfs_mount / "z").exists() and (btrfs_mount / "z").stat().st_size)
        answer = host.begin(btrfs_mount)
        at_begin = numbers(btrfs_mount)
        fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "session")
        live = host.fetch("", btrfs_mount, tmp_path / "live")
        host.end(answer["session"])
    first, last = numbers(fetched)
    assert first - last in (0, 1)
    assert last <= at_begin[1]
    assert numbers(live)[1] - numbers(live)[0] > 1, "the test does not show what a snapshot is for"
    assert answer["paths"] == [{"path": str(btrfs_mount), "consistency": "snapshot", "methods": ["btrfs"], "reason": None}]
    [filesystem] = answer["filesystems"]
    assert (filesystem["mount"], filesystem["method"]) == (str(btrfs_mount), "btrfs")
    assert abs(time.time() - time.mktime(time.strptime(filesystem["taken"][:19], "%Y-%m-%dT%H:%M:%S")) + time.timezone) < 300
    assert host.left(btrfs_mount) == []


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_database_under_load_is_whole_in_a_session_and_in_a_dump(
    sshd: Sshd, btrfs_mount: Path, tmp_path: Path, journal: str
) -> None:
    folder = btrfs_mount / "srv"
    folder.mkdir()
    host = SourceHost(sshd, f"[dump bank]\ncommand = sqlite {folder}/bank.db\noutput = {btrfs_mount}/dumps/bank\n")
    with working(BANK, folder / "bank.db", journal):
        wait_for(lambda: (folder / "bank.db").exists() and (folder / "bank.db").stat().st_size > 200_000)
        answer = host.begin(btrfs_mount)
        fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "to")
        host.end(answer["session"])
    [dump] = answer["dumps"]
    assert (dump["name"], dump["status"], dump["error"], dump["required"]) == ("bank", 0, None, True)
    assert dump["bytes"] == (fetched / "dumps/bank/bank.db").stat().st_size
    for path in (fetched / "srv/bank.db", fetched / "dumps/bank/bank.db"):
        with sqlite3.connect(path) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            entries, money = (
                copy.execute(f"SELECT {each}").fetchone()[0] for each in ("count(*) FROM entry", "max(money) FROM account")
            )
            assert copy.execute("SELECT sum(money) FROM account").fetchone() == (0,)
        assert entries == money > 10


def test_nested_subvolumes_are_in_their_places_and_snapshots_of_others_are_not(
    host: SourceHost, btrfs_mount: Path, tmp_path: Path
) -> None:
    top = btrfs_mount / "top"
    for name in ("top", "top/with space", "top/with space/deep", "top/.snapshots", "top/.snapshots/1", "top/odd\n\\name", "other"):
        work("btrfs", "-q", "subvolume", "create", btrfs_mount / name)
        (btrfs_mount / name / "file").write_text(name)
    work("btrfs", "-q", "subvolume", "snapshot", "-r", top / "with space", top / "read-only")
    answer = host.begin(top)
    assert answer["paths"][0]["consistency"] == "snapshot"
    assert {each["mount"].removeprefix(str(btrfs_mount)) for each in answer["filesystems"]} == {
        "", "/top", "/top/with space", "/top/with space/deep", "/top/odd\n\\name"}  # fmt: skip
    before = manifest(top)
    for name in ("file", "with space/file", "with space/deep/file", "odd\n\\name/file"):
        (top / name).write_text("written after the snapshot")
    work("btrfs", "-q", "subvolume", "create", top / "new")
    fetched = host.fetch(answer["session"], top, tmp_path / "to")
    host.end(answer["session"])
    (top / ".snapshots/1/file").unlink()
    expected = {name: entry for name, entry in before.items() if not name.startswith(b".snapshots/")}
    got = manifest(fetched)
    assert sorted(got) == sorted(expected)
    assert [name for name in expected if got[name].sha256 != expected[name].sha256] == []
    assert host.left(btrfs_mount) == []


def test_each_mounted_subvolume_and_a_mounted_folder_is_of_the_snapshot(
    host: SourceHost, btrfs_mount: Path, tmp_path: Path
) -> None:
    """As distributions have it: @ and @home, and a bind mount of a folder."""
    for name in ("@", "@home"):
        work("btrfs", "-q", "subvolume", "create", btrfs_mount / name)
    root, device = btrfs_mount.parent / "root", work("findmnt", "-n", "-o", "SOURCE", btrfs_mount).stdout.strip()
    root.mkdir()
    work("mount", "-o", "subvol=@", device, root)
    for name in ("home", "srv", "bound"):
        (root / name).mkdir()
    work("mount", "-o", "subvol=@home", device, root / "home")
    work("mount", "--bind", root / "srv", root / "bound")
    for name in ("etc", "srv/file", "home/file"):
        (root / name).write_text("before")
    answer = host.begin(root)
    assert answer["paths"][0] == {"path": str(root), "consistency": "snapshot", "methods": ["btrfs"], "reason": None}
    assert sorted(each["mount"] for each in answer["filesystems"]) == [str(root), str(root / "home")]
    for name in ("etc", "srv/file", "home/file"):
        (root / name).write_text("after")
    fetched = host.fetch(answer["session"], root, tmp_path / "to")
    assert {(fetched / name).read_text() for name in ("etc", "srv/file", "home/file", "bound/file")} == {"before"}
    host.end(answer["session"])
    assert host.left(root, root / "home", btrfs_mount) == []


def test_what_has_no_snapshots_is_live_and_has_a_reason_and_the_rest_is_still_a_snapshot(
    host: SourceHost, btrfs_mount: Path, tmp_path: Path
) -> None:
    image, inner = btrfs_mount.parent / "ext4.img", btrfs_mount / "data"
    inner.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    work("mkfs.ext4", "-q", image)
    work("mount", "-o", "loop", image, inner)
    (inner / "file").write_text("before")
    (btrfs_mount / "file").write_text("before")
    (btrfs_mount / "etc").mkdir()
    answer = host.begin(btrfs_mount, btrfs_mount / "etc")
    assert [path["consistency"] for path in answer["paths"]] == ["live", "snapshot"]
    assert answer["paths"][0]["reason"] == f"{inner}: ext4 on a plain partition"
    for folder in (inner, btrfs_mount):
        (folder / "file").write_text("after")
    fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "to")
    assert (fetched / "file").read_text() == "before"
    assert (fetched / "data/file").read_text() == "after"
    host.end(answer["session"])
    work("umount", inner)
    assert host.left(btrfs_mount) == []


@pytest.mark.takes(20)
def test_a_fuse_that_hangs_stalls_no_request(host: SourceHost, btrfs_mount: Path, tmp_path: Path) -> None:
    """One whose folder cannot be opened, and one that does not even answer a stat; a request waits ten seconds for the latter."""
    (btrfs_mount / "file").write_text("x")
    with hanging(btrfs_mount / "open"):
        name = host.begin(btrfs_mount)["session"]
        names = {path.name for path in host.fetch(name, btrfs_mount, tmp_path / "to", "-x").iterdir()}
        assert names == {HIDDEN, "file", "open"}  # the first is empty; a server excludes it
        with hanging(btrfs_mount / "dead", dead=True):
            name = host.begin(btrfs_mount)["session"]
            live = f"btrkeep-source rsync {name} --server --sender -logDtpre.iLsfxCIvu . {btrfs_mount}/"
            requests = [live, f"btrkeep-source begin {btrfs_mount}/dead/x"]
            with ThreadPoolExecutor() as pool:
                to = pool.submit(host.fetch, name, btrfs_mount, tmp_path / "again", "-x")
                reasons = list(pool.map(host.refusal, requests))
                assert (to.result() / "file").read_text() == "x"
            assert not list((to.result() / "dead").iterdir())
            assert all(reason.startswith(f"the filesystem at {btrfs_mount}/dead does not answer; unmount it") for reason in reasons)
            assert "set one_file_system" in reasons[0]
            host.end(name)
    assert host.left(btrfs_mount) == []


def test_metadata_are_those_of_the_host(host: SourceHost, btrfs_mount: Path, tmp_path: Path) -> None:
    top = btrfs_mount / "top"
    top.mkdir(mode=0o750)
    (top / "file").write_text("x")
    os.chown(top / "file", 1234, 2345)
    os.link(top / "file", top / "link")
    (top / "absolute").symlink_to("/etc/passwd")
    os.mkfifo(top / "fifo")
    os.mknod(top / "device", 0o20600, os.makedev(1, 3))
    os.setxattr(top / "file", "user.note", b"x")
    work("setfacl", "-m", "u:1:r", top / "file")
    os.utime(top, ns=(1, 1_000_000_001))
    answer = host.begin(top)
    fetched = host.fetch(answer["session"], top, tmp_path / "to")
    host.end(answer["session"])
    assert differences(manifest(top), manifest(fetched)) == []
    above = fetched.parent
    assert (above.stat().st_mode, above.stat().st_uid) == (btrfs_mount.stat().st_mode, btrfs_mount.stat().st_uid)


def test_two_nights_transfer_only_what_changed(host: SourceHost, btrfs_mount: Path, tmp_path: Path) -> None:
    (btrfs_mount / "large").write_bytes(os.urandom(1 << 20))
    for night in ("first", "second"):
        (btrfs_mount / "file").write_text(night)
        answer = host.begin(btrfs_mount)
        (tmp_path / "to").mkdir(exist_ok=True)
        done = work(*host.rsync_words(answer["session"], btrfs_mount, tmp_path / "to"))
        host.end(answer["session"])
    assert "Number of regular files transferred: 1\n" in done.stdout
    (tmp_path / "to" / str(btrfs_mount).strip("/") / HIDDEN).rmdir()  # empty; a server excludes it
    assert manifest(btrfs_mount).keys() == manifest(tmp_path / "to" / str(btrfs_mount).strip("/")).keys()


def test_check_reports_what_begin_would_do_and_changes_nothing(host: SourceHost, btrfs_mount: Path) -> None:
    (btrfs_mount / "sub").mkdir()
    done = work(*host.words(), "check", btrfs_mount / "sub")
    assert f'"path": "{btrfs_mount}/sub", "consistency": "snapshot", "methods": ["btrfs"]' in done.stdout
    over_ssh = host.request(f"btrkeep-source check -- {btrfs_mount}/sub").stdout
    assert over_ssh == done.stdout
    assert not (btrfs_mount / HIDDEN).exists()


def test_a_dump_that_fails_is_reported_and_its_last_output_stays(sshd: Sshd, btrfs_mount: Path) -> None:
    folder = btrfs_mount / "dumps"
    config = "[dump {0}]\ncommand = {1}\noutput = {2}/{0}\ntimeout = 1s\nrequired = no\n"
    commands = {
        "works": "echo hello",
        "fails": "echo part; echo line >&2; printf 'the \\033last line\\n' >&2; exit 3",
        "hangs": "echo part; sleep 600",
        "killed": "kill -9 $$",
    }
    host = SourceHost(sshd, "".join(config.format(name, command, folder) for name, command in commands.items()))
    folder.mkdir()
    for name in commands:
        (folder / name).write_text("of yesterday")
    with (host.config).open("a") as file:
        file.write(f"[dump elsewhere]\ncommand = touch {btrfs_mount}/was-run\noutput = /nowhere/x\n")
    answer = host.begin(btrfs_mount)
    host.end(answer["session"])
    dumps = {dump["name"]: dump for dump in answer["dumps"]}
    assert {name: (dump["status"], dump["error"]) for name, dump in dumps.items() if name != "elsewhere"} == {
        "works": (0, None),
        "fails": (3, "the ?last line"),
        "hangs": (-9, "it took longer than its timeout"),
        "killed": (-9, "status -9"),
    }
    assert {name: (folder / name).read_text() for name in commands} == dict.fromkeys(commands, "of yesterday") | {
        "works": "hello\n"
    }
    assert sorted(path.name for path in folder.iterdir()) == sorted(commands)
    assert (dumps["elsewhere"]["status"], dumps["elsewhere"]["required"]) == (None, True)
    assert "/nowhere/x" in dumps["elsewhere"]["error"]
    assert not (btrfs_mount / "was-run").exists()


def test_a_full_filesystem_is_read_live(host: SourceHost, make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    point = make_btrfs(size="300M")
    (point / "file").write_text("x")
    work("btrfs", "-q", "subvolume", "create", point / "full")
    btrfs.fill(point, point / "full")
    answer = host.begin(point)
    assert answer["paths"][0]["consistency"] in ("live", "snapshot")  # btrfs has a reserve for some of its own changes
    fetched = host.fetch(answer["session"], point, tmp_path / "to", "--exclude=/**/full/")
    assert (fetched / "file").read_text() == "x"
    host.end(answer["session"])
    assert host.left(point) == []


def test_an_allowed_path_that_is_missing_stops_no_transfer(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    """For example the folder of the dumps before the first one."""
    (btrfs_mount / "file").write_text("x")
    host = SourceHost(sshd, f"[paths]\nallow = {btrfs_mount}\n        {btrfs_mount}/missing/dumps\n        /no/such\n")
    answer = host.begin(btrfs_mount)
    for name in (answer["session"], ""):
        assert (host.fetch(name, btrfs_mount, tmp_path / f"to-{name}") / "file").read_text() == "x"
    host.end(answer["session"])
    assert host.left(btrfs_mount) == []


def test_allowed_paths_that_contain_others_and_etc_are_read(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    """A folder that was made for one of them, or for what rsync needs, is covered by another one."""
    inner = btrfs_mount / "in/deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    host = SourceHost(sshd, f"[paths]\nallow = {inner}\n        {btrfs_mount}\n        /etc\n")
    answer = host.begin(btrfs_mount)
    for name in (answer["session"], ""):
        assert (host.fetch(name, btrfs_mount, tmp_path / f"to-{name}") / "in/deep/file").read_text() == "x"
    assert host.fetch("", "/etc", tmp_path / "etc", "--include=/etc/", "--include=/etc/hostname", "--exclude=*").is_dir()
    host.end(answer["session"])
    assert host.left(btrfs_mount) == []
