"""A disk that loses writes, under a filesystem that stays writable: no data written then counts as stored."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from btrkeep.pool.syncfs import syncing
from tests.beds import differences, manifest, work
from tests.beds.btrfs import remount
from tests.beds.expiries import LATER, Expiries
from tests.beds.faults import FailingDisk, failing_disk
from tests.beds.nights import Nights
from tests.beds.watch import disagreements

pytestmark = pytest.mark.btrfs
FORCED = ("--force", "pool", "--force", "hosts")


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk


def fill(tree: Path) -> None:
    for number in range(20):
        (tree / f"file{number}").write_bytes(os.urandom(100_000))


@pytest.fixture
def failing(disk: FailingDisk, tree: Path) -> Nights:
    """A pool on that disk, and a host with twenty files."""
    nights = Nights(disk.point)
    fill(tree)
    nights.host("web", tree)
    return nights


def lost(nights: Nights, disk: FailingDisk, *names: str) -> dict[str, str]:
    """Runs hosts whose data the disk does not store; returns the result of each."""
    disk.fail()
    answer = nights.run(*names, status=1)
    assert disk.failed_writes() > 0
    return {name: result["error"] for name, result in answer.items() if result["outcome"] == "failed"}


def test_a_run_whose_data_the_disk_did_not_take_has_failed_and_leaves_nothing_that_is_believed(
    failing: Nights, disk: FailingDisk, tree: Path
) -> None:
    nights = failing
    nights.run("web")
    (good,) = nights.names("web")
    kept = manifest(nights.data("web", tree))
    fill(tree)
    output = lost(nights, disk, "web")["web"]
    assert "Input/output error" in output
    assert "btrfs device stats" in output
    assert nights.names("web") == [good]
    assert nights.status("web")["state"] == "failing"
    assert disagreements(nights) == []
    disk.flag.unlink()
    nights.run("web")
    disk.read_again()
    assert differences(kept, manifest(nights.data("web", tree, good))) == []
    assert nights.differences("web", tree) == []


def test_a_first_copy_that_the_disk_did_not_take_is_compared_with_the_host_again(
    failing: Nights, disk: FailingDisk, tree: Path
) -> None:
    """Only the kernel's cache has the data: right times, sizes and content, until the disk is read."""
    nights = failing
    assert "Input/output error" in lost(nights, disk, "web")["web"]
    assert nights.listed("web")[0]["state"] == "partial"
    disk.flag.unlink()
    nights.run("web")
    disk.read_again()
    assert nights.differences("web", tree) == []


def test_an_unfinished_run_whose_data_the_disk_did_not_take_says_so_and_is_not_gone_on_with(
    failing: Nights, disk: FailingDisk, tree: Path
) -> None:
    nights = failing
    nights.run("web")
    fill(tree)
    nights.in_the_middle(1_500_000, end="dies")
    assert "Input/output error" in lost(nights, disk, "web")["web"]
    assert not nights.backup("web", ".working").exists()
    assert disagreements(nights) == []
    disk.flag.unlink()
    nights.ssh("")
    nights.run("web")
    disk.read_again()
    assert nights.differences("web", tree) == []


def test_hosts_that_wrote_when_the_disk_failed_each_fail_and_the_next_one_does_not(
    failing: Nights, disk: FailingDisk, tree: Path
) -> None:
    for host in ("other", "third"):
        failing.host(host, tree)
    failing.settings("backup", concurrency=3)
    assert set(lost(failing, disk)) == {"web", "other", "third"}
    disk.flag.unlink()
    failing.host("fourth", tree)
    failing.run("fourth")
    failing.run()
    disk.read_again()
    assert [failing.differences(host, tree) for host in ("web", "other", "third", "fourth")] == [[]] * 4


def test_a_sync_that_was_told_of_lost_data_never_succeeds_again_and_one_that_begins_later_does(disk: FailingDisk) -> None:
    with syncing(disk.point) as before:
        disk.fail()
        (disk.point / "file").write_bytes(os.urandom(100_000))
        work("btrfs", "filesystem", "sync", disk.point)
        with syncing(disk.point) as untold:
            for sync in (before, before, untold, untold):
                with pytest.raises(OSError, match="Input/output error"):
                    sync.sync()
        disk.flag.unlink()
        with syncing(disk.point) as later:
            (disk.point / "another").write_bytes(os.urandom(100_000))
            later.sync()
        with pytest.raises(OSError, match="Input/output error"):
            before.sync()


def test_a_filesystem_that_has_become_read_only_took_nothing(btrfs_mount: Path) -> None:
    """The kernel's own syncfs has nothing to do then, and succeeds."""
    with syncing(btrfs_mount) as disk:
        disk.sync()
        remount(btrfs_mount, "ro")
        assert work("sync", "-f", btrfs_mount).returncode == 0
        with pytest.raises(OSError, match="Read-only file system"):
            disk.sync()
        remount(btrfs_mount, "rw")


def test_notes_that_the_disk_did_not_take_replace_none(disk: FailingDisk) -> None:
    """With the notes of fifty backups, the file is too large to be stored in the metadata."""
    pool = Expiries(disk.point)
    pool.history("web", count=50)
    pool.settings("retention", daily=50)
    pool.backupd("hold", "web", pool.left("web")[0])
    before = (pool.pool / "hosts/web/notes.json").read_bytes()
    pool.settings("retention", daily=3)
    disk.fail()
    done = pool.backupd("expire", *FORCED, "--now", LATER.strftime("%Y-%m-%dT%H:%M:%SZ"), check=False)
    assert disk.failed_writes() > 0, done.stdout + done.stderr
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Input/output error" in done.stderr
    assert "Traceback" not in done.stderr
    disk.flag.unlink()
    disk.read_again()
    assert (pool.pool / "hosts/web/notes.json").read_bytes() == before
    assert set(pool.states("web").values()) == {"complete"}
    pool.expire(LATER, *FORCED)
    assert len(pool.marked("web")) == 46
    assert pool.consistent() == []


def test_a_restore_whose_data_the_disk_did_not_take_fails(nights: Nights, disk: FailingDisk, tree: Path) -> None:
    fill(tree)
    nights.host("web", tree)
    nights.run("web")
    disk.fail()
    done = nights.backupd("restore", "web", str(tree), "--to", disk.point / "out", check=False)
    assert disk.failed_writes() > 0
    assert done.returncode == 1
    assert "Input/output error" in done.stderr


def whole(folder: Path, as_in: Path) -> list[str]:
    """Returns the files of `as_in` that a folder, read from the disk, has with the same content."""
    return [path.name for path in as_in.iterdir() if (folder / path.name).is_file() and same(folder / path.name, path)]


def same(path: Path, other: Path) -> bool:
    try:
        return path.read_bytes() == other.read_bytes()
    except OSError:  # a checksum that does not fit
        return False


def test_a_restore_fails_when_a_disk_that_is_mounted_below_the_destination_did_not_take_its_part(
    nights: Nights, disk: FailingDisk, tree: Path, tmp_path: Path
) -> None:
    """As with --to /, and /srv on a separate disk."""
    fill(tree)
    nights.host("web", tree)
    nights.run("web")
    mounted = tmp_path / "out" / "srv"
    mounted.mkdir(parents=True)
    work("mount", "--bind", disk.point, mounted)
    try:
        disk.fail()
        done = nights.backupd("restore", "web", str(tree), "--to", tmp_path / "out", check=False)
    finally:
        work("umount", mounted)
    assert disk.failed_writes() > 0, done.stdout + done.stderr
    assert done.returncode == 1
    assert f"{mounted}: Input/output error" in done.stderr
    disk.flag.unlink()
    disk.read_again()
    assert whole(disk.point, tree) == []


def test_a_restore_to_this_machine_itself_fails_when_the_disk_did_not_take_it(nights: Nights, disk: FailingDisk) -> None:
    tree = disk.point / "srv"
    tree.mkdir()
    fill(tree)
    nights.host("here", tree, address=None)
    nights.run("here")
    for path in tree.iterdir():
        path.unlink()
    disk.fail()
    done = nights.backupd("restore", "here", str(tree), "--to-host", check=False)
    assert disk.failed_writes() > 0, done.stdout + done.stderr
    assert done.returncode == 1
    assert "Input/output error" in done.stderr
    disk.flag.unlink()
    disk.read_again()
    assert whole(tree, nights.data("here", tree)) == []
