"""Foreign entries in a host's folder: never touched, and reported for that host if they block it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import differences, manifest, work
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, is_writable, killed, rows, subvolumes

LATER = "2030-01-01T000000Z"


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_text("first")
    for host in ("web", "other"):
        nights.host(host, tree)
    nights.run()
    return tree


def snapshot(nights: Nights, name: str, *options: str) -> Path:
    path = nights.pool / "hosts" / "web" / name
    work("btrfs", "-q", "subvolume", "snapshot", *options, nights.backup("web"), path)
    return path


@pytest.mark.parametrize("options", [(), ("-r",)], ids=["writable", "read-only"])
@pytest.mark.parametrize("name", ["mine", LATER, "2020-01-01T000000Z"])
def test_a_users_snapshot_of_a_backup_is_no_backup_and_stays(
    nights: Nights, tree: Path, name: str, options: tuple[str, ...]
) -> None:
    (first,) = nights.names("web")
    path = snapshot(nights, name, *options)
    if not options:
        (path / "data" / "note").write_text("mine")
    number, before = subvolumes(nights)[f"hosts/web/{name}"], manifest(path)
    (tree / "file").write_text("second")
    nights.run()
    nights.run("web")
    assert subvolumes(nights)[f"hosts/web/{name}"] == number
    assert differences(before, manifest(path)) == []
    assert rows(nights, f"select count(*) from backup where host = 'web' and name = '{name}'") == [(0,)]
    ours = [backup for backup in nights.names("web") if backup not in (name, first)]
    assert len(ours) == 2
    assert nights.record("web", ours[0])["base"] == first
    assert nights.record("web", ours[1])["base"] == ours[0]


def plain_folder(path: Path) -> None:
    path.mkdir()
    (path / "backup.json").write_text("{}")


def own_subvolume(path: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", path)
    (path / "mine").write_text("mine")


def symlink(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def copy_of_a_backup(nights: Nights, path: Path) -> None:
    shutil.copytree(nights.backup("web"), path)


MADE: dict[str, Callable[[Nights, Path], object]] = {
    "a plain folder": lambda _, path: plain_folder(path),
    "a file": lambda _, path: path.write_text("mine"),
    "a symlink": lambda _, path: symlink(path),
    "a symlink to nothing": lambda _, path: path.symlink_to("nowhere"),
    "a subvolume of somebody's": lambda _, path: own_subvolume(path),
    "a copy of a backup": copy_of_a_backup,
    "a writable snapshot of a backup": lambda nights, path: snapshot(nights, path.name),
    "a read-only snapshot of a backup": lambda nights, path: snapshot(nights, path.name, "-r"),
}


def identity_of(path: Path) -> object:
    status = path.lstat()
    inside = sorted(manifest(path).items()) if path.is_dir() and not path.is_symlink() else None
    return (status.st_ino, status.st_mode, path.readlink() if path.is_symlink() else None, inside)


@pytest.mark.parametrize("subject", MADE)
def test_what_lies_at_working_and_is_not_ours_is_in_the_way_and_says_so(nights: Nights, tree: Path, subject: str) -> None:
    path = nights.pool / "hosts" / "web" / ".working"
    MADE[subject](nights, path)
    before = identity_of(path)
    nights.settings("backup", concurrency=1)
    answer = nights.run(status=1)
    assert answer["web"]["outcome"] == "failed"
    assert "does not belong to btrkeep" in answer["web"]["error"]
    assert str(path) in answer["web"]["error"]
    assert answer["other"]["outcome"] == "complete"
    assert identity_of(path) == before
    work("rm", path) if path.is_symlink() or path.is_file() else path.rename(path.with_name("aside"))
    assert nights.run("web")["web"]["outcome"] == "complete"


@pytest.mark.parametrize("subject", MADE)
def test_what_has_the_name_of_a_backup_and_is_none_is_left_alone(nights: Nights, tree: Path, subject: str) -> None:
    path = nights.pool / "hosts" / "web" / LATER
    MADE[subject](nights, path)
    before = identity_of(path)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert identity_of(path) == before
    assert len(nights.names("web")) == 3
    done = nights.backupd("rebuild", check=False)
    assert done.returncode == 1
    assert f"web/{LATER}" in done.stdout
    assert identity_of(path) == before
    assert rows(nights, f"select count(*) from backup where name = '{LATER}'") == [(0,)]


@pytest.mark.parametrize("subject", ["a plain folder", "a symlink to nothing", "a read-only snapshot of a backup"])
def test_a_name_that_is_taken_is_not_taken_from_it(nights: Nights, tree: Path, subject: str) -> None:
    """With a rehearsal's clock, so that the name is known in advance."""
    nights.backup("web")
    shutil.rmtree(nights.state)
    marker = nights.pool / ".btrkeep" / "pool.json"
    marker.write_text(marker.read_text().replace('"rehearsal": false', '"rehearsal": true'))
    taken = [nights.pool / "hosts" / "web" / f"2031-05-05T10000{second}Z" for second in range(5)]
    for path in taken:
        MADE[subject](nights, path)
    before = [identity_of(path) for path in taken]
    nights.backupd("run", "web", "--now", "2031-05-05T10:00:00Z")
    assert [identity_of(path) for path in taken] == before
    assert nights.record("web", "2031-05-05T100005Z")["started"][:17] == "2031-05-05T10:00:"
    assert not nights.backup("web", ".working").exists()


def test_a_finished_backup_whose_name_was_taken_meanwhile_costs_the_others_nothing(nights: Nights, tree: Path) -> None:
    killed(nights, "after", "subvolume made read-only", "run", "web")
    name = nights.record("web", ".working")["name"]
    taken = nights.pool / "hosts" / "web" / name
    taken.mkdir()
    answer = nights.run(status=1)
    assert answer["web"]["outcome"] == "failed"
    assert name in answer["web"]["error"]
    assert answer["other"]["outcome"] == "complete"
    assert taken.is_dir()
    assert not is_writable(nights.backup("web", ".working"))
    taken.rmdir()
    nights.run("other")
    assert nights.record("web", name)["state"] == "complete"
    assert disagreements(nights) == []


def test_a_subvolume_in_a_working_that_does_not_fit_any_more_keeps_it_from_being_discarded(nights: Nights, tree: Path) -> None:
    (tree / "file").write_bytes(os.urandom(300_000))
    nights.in_the_middle(200_000, end="dies")
    nights.run("web", status=1)
    nights.ssh("")
    nested = nights.working("web", tree) / "nested"
    work("btrfs", "-q", "subvolume", "create", nested)
    (nested / "mine").write_text("mine")
    nights.host("web", tree, exclude=["/something"])
    answer = nights.run(status=1)
    assert answer["web"]["outcome"] == "failed"
    assert "contains a subvolume of another program" in answer["web"]["error"]
    assert (nested / "mine").read_text() == "mine"
    assert answer["other"]["outcome"] == "complete"
    work("btrfs", "-q", "subvolume", "delete", nested)
    assert nights.run("web")["web"]["outcome"] == "complete"


def test_a_subvolume_beside_data_in_a_working_is_left_alone(nights: Nights, tree: Path) -> None:
    (tree / "file").write_bytes(os.urandom(300_000))
    nights.in_the_middle(200_000, end="dies")
    nights.run("web", status=1)
    nights.ssh("")
    nested = nights.backup("web", ".working") / "data" / "of-mine"
    work("btrfs", "-q", "subvolume", "create", nested)
    (nested / "mine").write_text("mine")
    assert "does not belong to btrkeep" in nights.run("web", status=1)["web"]["error"]
    assert (nested / "mine").read_text() == "mine"


def test_a_folder_called_latest_is_left_alone(nights: Nights, tree: Path) -> None:
    latest = nights.pool / "hosts" / "web" / "latest"
    latest.unlink()
    latest.mkdir()
    (latest / "mine").write_text("mine")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (latest / "mine").read_text() == "mine"
    assert (nights.pool / "hosts" / "other" / "latest").readlink() == Path(nights.names("other")[-1])
