"""Files outside of all source paths are removed from the new backup, whatever a host has made there, and no others."""

from pathlib import Path

import pytest

from backupd.repo.final_backups import ForeignData
from backupd.run.work_subvolume import drop_other_paths
from tests.beds import work
from tests.beds.deep import deepen

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

LEVELS = 10_000  # ten times Python's recursion limit, with a path five times as long as allowed


@pytest.fixture
def data(shared_btrfs: Path) -> Path:
    (path := shared_btrfs / "data").mkdir()
    for name in ("srv/www", "srv/old", "old"):
        (path / name).mkdir(parents=True)
    (path / "srv/www/kept").write_text("kept")
    return path


def test_a_folder_of_any_depth_goes(data: Path) -> None:
    for folder in ("srv/old", "old"):
        deepen(data / folder, LEVELS)
    drop_other_paths(data, ("/srv/www",))
    assert work("find", data, "-printf", "%P\\n").stdout.split() == ["srv", "srv/www", "srv/www/kept"]


def test_what_a_link_leads_to_stays(data: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("stays")
    (data / "old/link").symlink_to(tmp_path)
    (data / "top").symlink_to(tmp_path)
    (data / "old/- strange\n name").mkdir()
    drop_other_paths(data, ("/srv/www",))
    assert (tmp_path / "outside").read_text() == "stays"
    assert [path.name for path in data.iterdir()] == ["srv"]


def test_nothing_within_a_foreign_subvolume_or_mount_is_deleted(data: Path) -> None:
    subvolume, mounted = data / "old/inner/subvolume", data / "old/mounted"
    (data / "old/inner").mkdir()
    work("btrfs", "subvolume", "create", subvolume)
    mounted.mkdir()
    (data / "elsewhere").mkdir()
    for folder in (subvolume, data / "elsewhere"):
        (folder / "stays").write_text("stays")
    work("mount", "-t", "tmpfs", "btrkeep-test", mounted)
    try:
        (mounted / "stays").write_text("stays")
        with pytest.raises(ForeignData, match="old"):
            drop_other_paths(data, ("/srv/www", "/elsewhere"))
        assert (subvolume / "stays").read_text() == (mounted / "stays").read_text() == "stays"
    finally:
        work("umount", mounted)
    work("btrfs", "subvolume", "delete", subvolume)
    drop_other_paths(data, ("/srv/www", "/elsewhere"))
    assert sorted(path.name for path in data.iterdir()) == ["elsewhere", "srv"]
