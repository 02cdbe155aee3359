"""The command that mounts a pool; the names of units are compared with the manual of systemd-escape."""

from pathlib import Path

import pytest

from btrkeep.pool.mounts import mount_command, mount_pool_words, unit_name

FSTAB = "# comment\nUUID=1 / ext4 defaults 0 1\nUUID=2 /srv/my\\040pools btrfs noauto 0 0\nhalf /srv/half\n"


@pytest.mark.parametrize(
    ("path", "unit", "mounted", "command"),
    [
        ("/srv/my pools", "", "", "mount '/srv/my pools'"),
        ("/srv/my pools/a/b", "", "", "mount '/srv/my pools'"),
        ("/srv/my pools/a", "srv-my\\x20pools-a.mount", "", "systemctl start 'srv-my\\x20pools-a.mount'"),
        ("/srv/my pools/a", "", "/srv/my pools", None),
        ("/srv/half", "", "", None),
        ("/srv/pool", "srv.mount", "", "systemctl start srv.mount"),
        ("/pool", "", "", None),
    ],
)
def test_the_nearest_folder_that_the_server_itself_mounts(path: str, unit: str, mounted: str, command: str | None) -> None:
    assert mount_command(Path(path), FSTAB, lambda name: name == unit, lambda folder: str(folder) == mounted) == command


def test_names_of_units() -> None:
    assert unit_name(Path("/srv/back-up.d/ä")) == "srv-back\\x2dup.d-\\xc3\\xa4.mount"
    assert unit_name(Path("/.snapshots")) == "\\x2esnapshots.mount"


@pytest.mark.parametrize("path", ["/srv/" + "-" * 70, "/" + "ä" * 40, "/" + "x" * 300])
def test_a_path_that_is_too_long_for_a_unit_has_no_command(path: str) -> None:
    assert mount_pool_words(Path(path)) == "mount the pool"
