"""A pool that can be reached in two ways: through a symlink, and by a second mount of its filesystem below a source."""

import os
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.mark.parametrize("subject", ["the whole filesystem", "part of the pool"])
def test_a_second_mount_of_the_pool_below_a_source_is_not_backed_up(nights: Nights, tmp_path: Path, subject: str) -> None:
    source = tmp_path / "srv"
    point = source / "mnt"
    point.mkdir(parents=True)
    (source / "file").write_text("of the host")
    (nights.top / "beside").write_text("not of the pool")
    nights.host("here", source, address=None)
    nights.run("here")
    mounted = nights.top if subject == "the whole filesystem" else nights.pool / "hosts"
    work("mount", "--bind", mounted, point)
    try:
        nights.run("here")
    finally:
        work("umount", point)
    data = nights.data("here", source)
    assert (data / "file").read_text() == "of the host"
    if mounted == nights.top:
        assert (data / "mnt" / "beside").read_text() == "not of the pool"
        assert not (data / "mnt" / nights.pool.name).exists()
    assert list(data.rglob("backup.json")) == []


def test_a_source_in_a_second_mount_of_the_pool_is_refused(nights: Nights, tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    point.mkdir()
    work("mount", "--bind", nights.top, point)
    try:
        nights.host("here", point / nights.pool.name / "hosts", address=None)
        done = nights.backupd("run", "here", check=False)
    finally:
        work("umount", point)
    assert (done.returncode, "is the pool, mounted a second time" in done.stderr) == (2, True), done


def test_a_pool_behind_a_symlink_is_synced_and_measured(nights: Nights, tmp_path: Path) -> None:
    link = tmp_path / "pool"
    link.symlink_to(nights.pool)
    nights.settings("pool", path=str(link))
    (nights.source / "file").write_text("x")
    nights.host("here", nights.source / "file", address=None)
    done = nights.backupd("run", "here")
    assert "may not be on the disk" not in done.stderr
    assert "Traceback" not in nights.backupd("usage").stderr
    assert nights.backupd("damaged").returncode == 0


def test_a_pool_is_made_below_a_symlink(nights: Nights, tmp_path: Path) -> None:
    (tmp_path / "btrfs").symlink_to(nights.top)
    nights.backupd("init", tmp_path / "btrfs" / "second")
    assert (nights.top / "second" / ".btrkeep" / "pool.json").is_file()


def test_attributes_of_fake_super_are_kept_and_restored(nights: Nights, tmp_path: Path) -> None:
    file = nights.source / "file"
    file.write_text("x")
    os.setxattr(file, "user.rsync.%stat", b"100644 0,0 1001:100")
    os.setxattr(file, "user.other", b"kept")
    nights.host("nas", nights.source)
    nights.run("nas")
    copy = nights.data("nas", nights.source) / "file"
    assert {name: os.getxattr(copy, name) for name in os.listxattr(file)} == {
        "user.rsync.%stat": b"100644 0,0 1001:100",
        "user.other": b"kept",
    }
    os.removexattr(file, "user.rsync.%stat")
    nights.backupd("restore", "nas", file, "--to-host", "--overwrite=all")
    assert os.getxattr(file, "user.rsync.%stat") == b"100644 0,0 1001:100"
