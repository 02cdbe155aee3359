"""`backupd init`: the pool, and an example configuration that is written once."""

import json
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import backupd, work


def test_a_pool_is_a_new_subvolume_that_only_root_can_enter(shared_btrfs: Path, tmp_path: Path) -> None:
    pool, config = shared_btrfs / "pool", tmp_path / "etc" / "backup.toml"
    output = backupd("--config", config, "init", pool).stdout
    assert output.splitlines()[0] == f"{pool} is now a pool"
    assert f"{config} is an example" in output
    shown = work("btrfs", "subvolume", "show", pool).stdout
    assert "UUID" in shown
    assert stat.S_IMODE(pool.stat().st_mode) == 0o700
    assert pool.stat().st_uid == 0
    marker = json.loads((pool / ".btrkeep" / "pool.json").read_text())
    filesystem = work("findmnt", "-n", "-o", "UUID", "-T", shared_btrfs).stdout.strip()
    assert (marker["filesystem"], marker["rehearsal"]) == (filesystem, False)
    assert tomllib.loads(config.read_text())["pool"] == {"path": str(pool)}
    usable(config, tmp_path)


def test_what_makes_the_pool_harmless_is_proposed_and_works_as_printed(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    point = make_btrfs(size="300M")
    output = backupd("--config", tmp_path / "one.toml", "init", point / "one").stdout
    (line,) = re.findall(r"`(mount [^`]*)`", output)
    assert "/etc/fstab" in output
    work("sh", "-c", line)
    assert {"nosuid", "nodev"} <= set(work("findmnt", "-no", "OPTIONS", point).stdout.strip().split(","))
    assert "remount" not in backupd("--config", tmp_path / "two.toml", "init", point / "two").stdout


def usable(config: Path, folder: Path, *words: str) -> None:
    """Puts the state of the written configuration into `folder` instead of /var/lib; nothing else in it changes."""
    text = config.read_text()
    config.write_text(text.replace("\n[pool]\n", f'\n[pool]\nstate = "{folder}/state"\n'))
    backupd("--config", config, "status", *words)


def test_an_empty_folder_becomes_a_pool_as_it_is(shared_btrfs: Path, tmp_path: Path) -> None:
    folder = shared_btrfs / "folder"
    folder.mkdir(mode=0o755)
    inode = folder.stat().st_ino
    backupd("--config", tmp_path / "x.toml", "init", folder)
    assert (folder.stat().st_ino, stat.S_IMODE(folder.stat().st_mode)) == (inode, 0o700)


def test_json_tells_what_was_made(shared_btrfs: Path, tmp_path: Path) -> None:
    done = json.loads(backupd("--config", tmp_path / "x.toml", "init", shared_btrfs / "pool", "--rehearsal", "--json").stdout)
    marker = json.loads((shared_btrfs / "pool" / ".btrkeep" / "pool.json").read_text())
    assert done == {
        "path": str(shared_btrfs / "pool"),
        "id": marker["id"],
        "filesystem": marker["filesystem"],
        "rehearsal": True,
        "config": str(tmp_path / "x.toml"),
        "config_written": True,
    }
    usable(tmp_path / "x.toml", tmp_path, "--now", "2030-01-01T00:00:00Z")


def test_a_second_init_changes_nothing(shared_btrfs: Path, tmp_path: Path) -> None:
    pool, config = shared_btrfs / "pool", tmp_path / "x.toml"
    backupd("--config", config, "init", pool)
    marker = (pool / ".btrkeep" / "pool.json").read_bytes()
    done = backupd("--config", config, "init", pool, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {pool} is a pool already\nhint: ")
    assert (pool / ".btrkeep" / "pool.json").read_bytes() == marker


def test_a_configuration_that_is_there_is_never_overwritten(shared_btrfs: Path, tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text("# mine\n")
    output = backupd("--config", config, "init", shared_btrfs / "pool").stdout
    assert "existed already and is unchanged" in output
    assert config.read_text() == "# mine\n"


def test_a_configuration_that_is_a_broken_link_is_not_written_through(shared_btrfs: Path, tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.symlink_to(tmp_path / "elsewhere.toml")
    done = backupd("--config", config, "init", shared_btrfs / "pool", check=False)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "elsewhere.toml").exists()


def test_a_folder_with_something_in_it_is_left_alone(shared_btrfs: Path, tmp_path: Path) -> None:
    folder = shared_btrfs / "full"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    done = backupd("--config", tmp_path / "x.toml", "init", folder, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {folder} is not empty\nhint: name a folder that does not exist yet, such as {folder}/pool\n"
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert not (tmp_path / "x.toml").exists()


def test_a_file_or_a_missing_parent_is_no_place_for_a_pool(shared_btrfs: Path, tmp_path: Path) -> None:
    (shared_btrfs / "file").write_text("x")
    for path in (shared_btrfs / "file", shared_btrfs / "file" / "pool", shared_btrfs / "no" / "such"):
        done = backupd("--config", tmp_path / "x.toml", "init", path, check=False)
        assert done.returncode == 2, done.stderr
        assert re.fullmatch(r"error: .*\nhint: .*\n", done.stderr), done.stderr


def test_a_folder_on_another_filesystem_is_refused(tmp_path: Path) -> None:
    done = backupd("--config", tmp_path / "x.toml", "init", tmp_path / "pool", check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "is not on a btrfs" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_that_of_the_current_folder(shared_btrfs: Path, tmp_path: Path) -> None:
    backupd("--config", tmp_path / "x.toml", "init", "pool", cwd=shared_btrfs)
    assert tomllib.loads((tmp_path / "x.toml").read_text())["pool"]["path"] == str(shared_btrfs / "pool")


def test_a_new_pool_has_what_a_full_one_needs(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    """The reserve, and the files of the locks that every deletion needs: a full pool has no space to make them."""
    point = make_btrfs(size="400M")
    backupd("--config", tmp_path / "x.toml", "init", point / "pool")
    inside = point / "pool" / ".btrkeep"
    assert (inside / "reserve").stat().st_blocks * 512 == pytest.approx(4 << 20, abs=16_384)
    assert sorted((path.name, path.stat().st_size) for path in (inside / "locks").iterdir()) == [
        ("balance", 0),
        ("expire", 0),
        ("night", 0),
    ]
