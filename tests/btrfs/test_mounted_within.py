"""A backup in which a filesystem is mounted: a folder for repairs, or the mounts of a chroot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.watch import rows
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def mounted(shared_btrfs: Path) -> Iterator[tuple[Nights, Path]]:
    """A pool, and a folder of its host on which something is mounted in the newest backup."""
    nights = Within(shared_btrfs)
    srv = nights.source / "srv"
    for name in ("sub", "other"):
        (srv / name).mkdir(parents=True)
        (srv / name / "file").write_text("of the backup")
    nights.host("web1", srv)
    nights.run("web1")
    place = nights.data("web1", srv) / "sub"
    work("mount", "-t", "tmpfs", "tmpfs", place)
    (place / "stranger").write_text("not of the backup")
    try:
        yield nights, srv
    finally:
        work("umount", place)


@pytest.mark.parametrize("to", ["--to={out}", "--to-host=web1:{out}", "--tar={out}/tar"])
def test_what_a_mount_hides_is_not_left_out_without_a_word_nor_is_the_mount_restored(
    mounted: tuple[Nights, Path], tmp_path: Path, to: str
) -> None:
    nights, srv = mounted
    where = to.format(out=tmp_path)
    assert "a mount " in restore(nights, "web1", srv, where, status=1)["stderr"]
    assert list(tmp_path.iterdir()) == []
    assert restore(nights, "web1", srv / "other", where)
    assert list(tmp_path.iterdir())


def test_a_backup_of_which_a_mount_hides_files_is_not_verified(mounted: tuple[Nights, Path]) -> None:
    nights, _ = mounted
    done = nights.backupd("verify", check=False)
    assert (done.returncode, "a mount in web1@" in done.stderr) == (1, True), done
    assert [row["verified"] for row in nights.listed("web1")] == [None]
    assert rows(nights, "select * from damage") == []
