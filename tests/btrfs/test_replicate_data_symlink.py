"""A first server that was taken over sends a backup whose folder `data` is a symlink to somewhere else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.two_pools import TwoPools, shown

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def planted(two: TwoPools, target: Path) -> None:
    """The newest backup of the first pool, with `data` as a symlink, as only root can make it there."""
    name = two.night("2026-03-01T22:00:00Z", "a")
    backup = two.first.pool / "hosts/web1" / name
    record = json.loads((backup / "backup.json").read_text())
    work("btrfs", "subvolume", "delete", backup)
    work("btrfs", "subvolume", "create", backup)
    record["uuid"] = shown(backup)["UUID"]
    (backup / "backup.json").write_text(json.dumps(record))
    (backup / "data").symlink_to(target)
    work("btrfs", "property", "set", backup, "ro", "true")


def test_a_copy_whose_data_is_a_symlink_is_refused(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    two = TwoPools(make_btrfs(), make_btrfs(size="300M"))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("of this server")
    planted(two, victim)
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert "data" in failed["error"]
    assert two.names(two.second.pool) == []


def test_a_night_follows_no_symlink_in_the_place_of_data(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    """After it was fetched in any way: a night removes everything outside of the source paths, as root."""
    two = TwoPools(make_btrfs(), make_btrfs(size="300M"))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("of this server")
    planted(two, victim)
    done = two.first.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z", check=False)
    assert (victim / "precious").exists(), done.stderr
    assert [path.name for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize("command", [("verify",), ("dedupe",), ("dedupe", "--dry-run")])
def test_a_backup_whose_data_cannot_be_opened_costs_the_others_nothing(
    make_btrfs: Callable[..., Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    two = TwoPools(make_btrfs(), make_btrfs(size="300M"))
    planted(two, tmp_path)
    two.first.host("web2", two.source)
    two.first.backupd("run", "web2", "--now", "2026-03-01T22:10:00Z")
    done = two.first.backupd(*command, "--json", check=False)
    assert done.returncode == (1 if command == ("verify",) else 0), done.stderr
    answer = json.loads(done.stdout)
    if command == ("verify",):
        assert [backup["host"] for backup in answer["backups"]] == ["web2"]
        assert f"web1@{two.names(two.first.pool)[-1]} cannot be read: Not a directory" in done.stderr
        assert [row["verified"]["state"] for row in two.first.listed("web1")] == ["damaged"]
    if command == ("dedupe",):
        assert {backup["host"]: "cannot be read" in (backup["left"] or "") for backup in answer["backups"]} == {
            "web1": True,
            "web2": False,
        }
