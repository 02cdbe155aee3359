"""Disks that fail in part: everything possible continues, the rest is reported in a line, and recovers by itself afterwards."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.beds import btrfs, nbd, session, work
from tests.beds.btrfs import MIB
from tests.beds.expiries import Expiries
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, rows

pytestmark = pytest.mark.btrfs
COMMANDS = (("status",), ("list",), ("check",), ("expire",), ("doctor",), ("metrics",), ("log",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that lie on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(MIB))
    return tree


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk in memory with room for 64 inodes and 4 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=4M,nr_inodes=64,mode=1777", "none", disk)
    yield disk
    work("umount", disk)


def said(nights: Nights, *words: str, env: dict[str, str] | None = None) -> str:
    """The output of a command with any status: no traceback."""
    done = nights.backupd(*words, check=False, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


def take_inodes(disk: Path) -> None:
    (disk / "many").mkdir()
    with contextlib.suppress(OSError):
        for number in range(100):
            (disk / "many" / f"{number}").touch()
    assert os.statvfs(disk).f_favail == 0


def test_a_pool_with_a_missing_device_can_be_written_and_expired_and_every_report_names_it(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    point = make_btrfs(size="300M", devices=2, mkfs=("-m", "raid1", "-d", "raid1"))
    nights = Nights(point)
    nights.tables["retention"] = {"daily": 1}
    nights.host("web", tree)
    nights.run("web")
    first, second = btrfs.devices_of(point)
    btrfs.unmount(point)
    work("btrfs", "device", "scan", "--forget", first, second)
    work("losetup", "--detach", second)
    work("mount", "-t", "btrfs", "-o", "degraded", first, point)
    (tree / "file").write_bytes(os.urandom(MIB))
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    for words in COMMANDS:
        assert said(nights, *words)
    assert "missing" in said(nights, "status")
    assert "missing" in said(nights, "check")
    assert disagreements(nights) == []


def test_expiry_deletes_on_a_pool_with_a_missing_device(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="300M", devices=2, mkfs=("-m", "raid1", "-d", "raid1"))
    nights = Expiries(point)
    for host in ("web", "db"):
        nights.history(host)
    first, second = btrfs.devices_of(point)
    btrfs.unmount(point)
    work("btrfs", "device", "scan", "--forget", first, second)
    work("losetup", "--detach", second)
    work("mount", "-t", "btrfs", "-o", "degraded", first, point)
    before = nights.names("web")
    nights.expire_twice()
    kept = nights.names("web")
    assert 0 < len(kept) < len(before)
    assert kept == before[-len(kept) :]
    work("btrfs", "subvolume", "sync", point)
    assert work("btrfs", "subvolume", "list", "-d", point).stdout == ""
    assert disagreements(nights) == []


@pytest.mark.slow
@pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a disk that fails ({nbd.why_not()})")
def test_a_device_that_goes_away_in_the_middle_of_a_run_costs_nothing_while_the_other_one_has_all(tree: Path) -> None:
    """Of a raid1 of two: every call to the second one fails from then on."""
    place = Path(tempfile.mkdtemp(prefix="mirrored-", dir=session.folder(1 << 30)))
    with ExitStack() as stack:
        stack.callback(session.remove, place)
        images = [place / "first", place / "second"]
        for image in images:
            image.touch()
            os.truncate(image, 250 * MIB)
        disk, point = (
            nbd.filtered(stack, images[1], "error", "error=EIO", "error-rate=100%", f"error-file={place}/gone"),
            place / "mnt",
        )
        loops = [btrfs.attach(images[0]), btrfs.attach(disk)]
        for loop in loops:
            stack.callback(work, "losetup", "--detach", loop)
            stack.callback(work, "btrfs", "device", "scan", "--forget", loop)
        point.mkdir()
        work("mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", *loops)
        work("mount", "-t", "btrfs", loops[0], point)
        stack.callback(btrfs.unmount, point)
        stack.callback((place / "gone").unlink, missing_ok=True)
        nights = Nights(point)
        nights.host("web", tree)
        nights.run("web")
        (tree / "file").write_bytes(os.urandom(3 * MIB))
        nights.in_the_middle(MIB, f"touch {place}/gone")
        assert nights.run("web")["web"]["outcome"] == "complete"
        assert nights.differences("web", tree) == []
        counted = work("btrfs", "device", "stats", point).stdout
        assert any(int(line.split()[-1]) for line in counted.splitlines() if "write_io_errs" in line), counted
        assert "error" in said(nights, "status")
        nights.ssh("")
        assert nights.run("web")["web"]["outcome"] == "complete"
        for words in COMMANDS:
            assert said(nights, *words)
        assert disagreements(nights) == []


def test_a_full_folder_for_temporary_files_costs_nothing(nights: Nights, tree: Path, small: Path, tmp_path: Path) -> None:
    nights.host("web", tree)
    take_inodes(small)
    work("sh", "-c", f"cat /dev/zero >{small}/many/1", check=False)
    full = {"TMPDIR": str(small)}
    assert nights.run("web", env=full)["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    for words in (*COMMANDS, ("rebuild",), ("restore", "web", str(tree), "--to", str(tmp_path))):
        assert said(nights, *words, env=full) != ""
    assert (tmp_path / "srv" / "file").read_bytes() == (tree / "file").read_bytes()
    assert json.loads(nights.backupd("list", "--json", env=full).stdout)[0]["state"] == "complete"


def test_a_state_folder_without_inodes_costs_no_backup(nights: Nights, tree: Path, small: Path) -> None:
    """SQLite makes two files beside the catalogue; without a room for them nothing can be written to it."""
    nights.state = small / "state"
    nights.settings("pool", state=str(nights.state))
    nights.tables["retention"] = {"daily": 1}
    nights.host("web", tree)
    nights.run("web")
    take_inodes(small)
    done = nights.backupd("run", "web", "--json", check=False)
    assert json.loads(done.stdout)[0]["outcome"] == "complete", done.stderr
    assert done.returncode == 1
    assert nights.differences("web", tree) == []
    for words in COMMANDS:
        assert said(nights, *words)
    assert "no free space" in said(nights, "status")
    work("rm", "-r", small / "many")
    nights.run("web")
    assert rows(nights, "select state, count(*) from backup group by state") == [("complete", 3)]
    assert disagreements(nights) == []
