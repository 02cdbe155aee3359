"""A pool that is full or cannot be written: a failure with any exit status of rsync, without harm to complete backups."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import differences, manifest, work
from tests.beds.btrfs import remount
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

MIB = 1 << 20
Make = Callable[..., Path]


def fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sources that are on another filesystem than the pool."""
    source = tmp_path / "srv"
    source.mkdir()
    (source / "small").write_text("one")
    fill(source / "data", 8 * MIB)
    return source


def ballast(point: Path, leave: int) -> str:
    """Returns the shell line that fills the filesystem until about `leave` bytes are free."""
    return f"fallocate -l $(( $(stat -f -c '%a*%S' {point}) - {leave} )) {point}/ballast"


def make_room(point: Path) -> None:
    (point / "ballast").unlink()
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "balance", "start", "-dusage=5", point)  # the kernel frees empty block groups late


def test_a_full_pool_is_a_failure_that_leaves_the_earlier_backup_intact_and_goes_on_when_there_is_room(
    make_btrfs: Make, source: Path
) -> None:
    point = make_btrfs(size="400M")
    nights = Nights(point)
    nights.settings("pool", state=str(source.parent / "state"))  # its files are mapped, and a full disk would be a SIGBUS
    nights.host("web", source)
    nights.run("web")
    good, kept = nights.names("web")[0], manifest(nights.data("web", source))

    fill(source / "new", 96 * MIB)
    (source / "small").write_text("two")
    nights.in_the_middle(16 * MIB, ballast(point, 24 * MIB))
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "failed"
    assert "No space left on device (28)" in result["error"]
    assert nights.json("log", "web")[0]["exit_code"] in (11, 23)
    assert nights.names("web") == [good]
    assert nights.listed("web")[0]["state"] == "partial"
    assert nights.status("web")["state"] == "failing"
    assert "No space left" in nights.status("web")["error"]
    assert differences(kept, manifest(nights.data("web", source, good))) == []

    make_room(point)
    nights.ssh("")
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert result["new_bytes"] < 90 * MIB  # the transferred data was used
    assert nights.differences("web", source) == []
    assert nights.record("web")["base"] == nights.grew_from("web") == good
    assert nights.status("web")["state"] == "ok"


def test_after_a_full_pool_no_other_transfer_starts(make_btrfs: Make, source: Path) -> None:
    point = make_btrfs(size="400M")
    nights = Nights(point)
    nights.settings("pool", state=str(source.parent / "state"))  # its files are mapped, and a full disk would be a SIGBUS
    nights.settings("pool", min_free="5%")
    nights.settings("backup", concurrency=1)
    for name in ("a", "b", "c"):
        nights.host(name, source)
    nights.run()
    fill(source / "new", 96 * MIB)
    nights.in_the_middle(16 * MIB, ballast(point, 16 * MIB))
    done = nights.backupd("run", "--all", check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "too little free space" in done.stderr
    assert [name for name in ("a", "b", "c") if f"{name}: started" in done.stdout] == ["a"]
    assert nights.json("log", "a")[0]["outcome"] in (
        "partial",
        "failed",
    )  # stopped before there is no room, or after, if that is quick
    assert nights.json("log", "b")[0]["outcome"] == "complete"


def test_below_min_free_no_transfer_starts(make_btrfs: Make, source: Path) -> None:
    nights = Nights(make_btrfs(size="400M"))
    nights.host("web", source)
    nights.settings("pool", min_free="300MiB")
    work("sh", "-c", ballast(nights.top, 200 * MIB))
    done = nights.backupd("run", "web", check=False)
    assert done.returncode == 4
    assert "below min_free = " in done.stderr
    assert "unallocated" in done.stderr
    assert "free in data block groups" in done.stderr
    assert not (nights.pool / "hosts" / "web").exists()
    assert "nothing was due" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 not started; ")
    nights.settings("pool", min_free="50MiB")
    nights.run("web")


def test_a_read_only_pool_is_unusable_and_nothing_starts(make_btrfs: Make, source: Path) -> None:
    point = make_btrfs()
    nights = Nights(point)
    state = source.parent / "state"
    nights.settings("pool", state=str(state))
    nights.host("web", source)
    nights.run("web")
    good, kept = nights.names("web")[0], manifest(nights.data("web", source))
    (source / "small").write_text("two")
    remount(point, "ro")
    try:
        for words in (["run", "web"], ["run", "--all"]):
            done = nights.backupd(*words, check=False)
            assert done.returncode == 4, done.stdout + done.stderr
            assert "read-only" in done.stderr.lower()
            assert "Traceback" not in done.stderr
        assert nights.status("web")["state"] in ("ok", "failing")  # looking is still possible
    finally:
        remount(point, "rw")
    assert differences(kept, manifest(nights.data("web", source, good))) == []
    nights.run("web")
    assert nights.differences("web", source) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs for an image, which can be made too small for the image in use: then the disk has write errors."""
    disk = tmp_path / "disk"
    disk.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=1G", "none", disk)
    yield disk
    # the loop device releases the image when the last opener closes it, and the kernel's own scan is one
    wait_for(lambda: work("umount", disk, check=False).returncode == 0)


@pytest.mark.root
def test_a_pool_that_fails_in_the_middle_of_a_transfer_is_unusable_and_the_earlier_backup_is_intact(
    tmp_path: Path, small_disk: Path, source: Path
) -> None:
    image, point = small_disk / "image", tmp_path / "mnt"
    point.mkdir()
    loop = ""
    try:
        with image.open("wb") as file:
            file.truncate(512 * MIB)
        loop = work("losetup", "--find", "--show", image).stdout.strip()
        work("mkfs.btrfs", "-q", loop)
        work("mount", loop, point)
        nights = Nights(point)
        nights.settings("pool", state=str(tmp_path / "state"))
        nights.settings("backup", concurrency=1)
        nights.host("web", source)
        nights.host("zzz", source)
        nights.run()
        good, kept = nights.names("web")[0], manifest(nights.data("web", source))

        fill(source / "data", 48 * MIB)
        break_disk = f"mount -o remount,size=$(du -k {image} | cut -f1)k {small_disk}; btrfs filesystem sync {point} || true"
        nights.in_the_middle(16 * MIB, break_disk)
        done = nights.backupd("run", "--all", check=False)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "has become read-only" in done.stderr
        assert "Traceback" not in done.stderr
        assert [name for name in ("web", "zzz") if f"{name}: started" in done.stdout] == ["web"]
        log = nights.json("log", "web")[0]
        assert log["outcome"] == "failed"

        work("umount", point)
        work("mount", "-o", "remount,size=1G", small_disk)
        work("mount", loop, point)
        assert nights.names("web") == [good]
        assert differences(kept, manifest(nights.data("web", source, good))) == []
        nights.ssh("")
        nights.run("web")
        assert nights.differences("web", source) == []
    finally:
        work("umount", point, check=False)
        work("losetup", "-d", loop, check=False)


def test_a_pool_that_came_into_a_snapshot_without_its_backups_is_not_begun_anew(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """The root filesystem was rolled back, and the pool is a folder in it. The catalogue was rolled back, too."""
    top, place = make_btrfs(), tmp_path / "root"
    device = work("findmnt", "-n", "-o", "SOURCE", top).stdout.strip().partition("[")[0]
    work("btrfs", "subvolume", "create", top / "@")
    (top / "@/pool").mkdir()
    work("mount", "--mkdir", "-o", "subvol=@", device, place)
    try:
        nights = Nights(place)
        (nights.source / "file").write_text("x")
        nights.host("web1", nights.source)
        nights.run()
        work("btrfs", "subvolume", "snapshot", place, top / "@rolled-back")
        work("umount", place)
        work("mount", "-o", "subvol=@rolled-back", device, place)
        for words in (("run", "web1"), ("rebuild",)):
            done = nights.backupd(*words, check=False)
            assert (done.returncode, "this pool is itself a snapshot" in done.stderr) == (4, True), (words, done)
        assert len(nights.names("web1")) == 1
        work("umount", place)
        work("mount", "-o", "subvol=@", device, place)
        assert nights.run()["web1"]["outcome"] == "complete"
        assert nights.grew_from("web1") == nights.names("web1")[0]
    finally:
        work("umount", place)
