"""What a backup fetches several times, bind mounts and snapshots of the host, and the pool itself, is reported with its pattern."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


def fill(folder: Path, files: int = 300) -> Path:
    for number in range(files):
        path = folder / f"d{number % 7}" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(50 + number))
    return folder


@contextmanager
def bound(folder: Path, place: Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    work("mount", "--bind", folder, place)
    try:
        yield
    finally:
        work("umount", place)


def findings(nights: Nights, *words: str) -> list[dict[str, Any]]:
    return list(json.loads(nights.backupd(*words, "--json", check=False).stdout))


def type_command(nights: Nights, text: str) -> None:
    """Runs the command that a message ends with."""
    match = re.search(r"backupd --config .*", text)
    assert match, text
    words = shlex.split(match[0])
    assert words[1:3] == ["--config", str(nights.config)]
    nights.backupd(*words[3:])


def test_snapshots_of_a_host_are_named_in_the_first_night_and_for_each_new_one(nights: Nights) -> None:
    root = nights.source / "root"
    work("btrfs", "subvolume", "create", root)
    fill(root / "srv")
    fill(root / "etc", 50)
    work("btrfs", "subvolume", "create", root / ".snapshots")

    def snapshot(number: int) -> None:
        (root / ".snapshots" / str(number)).mkdir()
        work("btrfs", "subvolume", "snapshot", "-r", root, root / ".snapshots" / str(number) / "snapshot")

    for number in range(1, 6):
        snapshot(number)
    nights.host("h", root)
    (warning,) = nights.run("h")["h"]["warnings"]
    assert f"{root}/.snapshots/1/snapshot (and 4 more folders of that kind) has the same files as {root}" in warning
    assert nights.run("h")["h"]["warnings"] == []

    for number in range(6, 10):
        snapshot(number)
    (warning,) = nights.run("h")["h"]["warnings"]
    type_command(nights, warning)
    text = nights.config.read_text() + "".join(file.read_text() for file in nights.config.with_suffix(".d").glob("*.toml"))
    assert f"{root}/.snapshots" in text
    assert nights.run("h")["h"]["warnings"] == []
    assert not (nights.data("h", root) / ".snapshots").exists()
    assert len(list((nights.data("h", root) / "srv").glob("*/*"))) == 300


def test_ordinary_trees_that_are_alike_are_not_reported(nights: Nights, tree: Path) -> None:
    """Packages that were installed twice have files with the same times, and two checkouts of a repository the same names."""
    for project in ("a", "b"):
        packages = tree / project / "node_modules"
        for number in range(400):
            path = packages / f"p{number % 9}" / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * (50 + number))
            os.utime(path, (499162500, 499162500))
    (repository := tree / "repository").mkdir()
    work("git", "-C", repository, "init", "-q")
    fill(repository)
    work("git", "-C", repository, "add", ".")
    work("git", "-C", repository, "-c", "user.name=u", "-c", "user.email=e", "commit", "-q", "-m", "m")
    work("git", "-C", repository, "worktree", "add", "-q", tree / "worktree", "HEAD~0")
    nights.host("h", tree)
    assert nights.run("h")["h"]["warnings"] == []
    assert sum(path.is_file() for path in nights.data("h", tree).rglob("*")) > 1000  # so it was searched


def test_a_bind_mount_is_named_by_connect_and_after_the_night(nights: Nights, tree: Path, sshd: Sshd) -> None:
    fill(tree / "data", 600)
    (tree / "other").mkdir()
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("h", tree, address=sshd.address, port=sshd.port)
    with bound(tree / "data", tree / "mnt"):
        named = [finding for finding in findings(nights, "check", "--connect") if "fetched twice" in finding["message"]]
        (warning,) = nights.run("h")["h"]["warnings"]
        assert f"{tree}/mnt" in warning
        assert f"{tree}/data" in warning
        ((finding),) = named
        assert finding["message"].startswith(f"{tree}/mnt has the same files as {tree}/data")
        type_command(nights, finding["hint"])
        assert not [each for each in findings(nights, "check", "--connect") if "fetched twice" in each["message"]]
        assert nights.run("h")["h"]["warnings"] == []


def test_a_key_that_permits_rsync_only_makes_it_unknown(nights: Nights, tree: Path, sshd: Sshd) -> None:
    (tree / "file").write_text("x")
    key = sshd.authorize('restrict,command="rrsync -ro /"')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("h", tree, address=sshd.address, port=sshd.port)
    found = findings(nights, "host", "test", "h")
    assert [each["level"] for each in found if "fetched twice" in each["message"]] == ["unknown"]
    assert [each["level"] for each in found if "reached" in each["message"]] == ["ok"]


@pytest.mark.parametrize("key", ["any command", "rsync only"])
def test_a_host_that_is_this_machine_and_has_the_pool_is_named(nights: Nights, sshd: Sshd, key: str) -> None:
    fill(nights.source, 60)
    restricted = sshd.authorize('restrict,command="rrsync -ro /"') if key == "rsync only" else sshd.key
    nights.settings("ssh", command="ssh -F none", key=str(restricted), known_hosts=str(sshd.known_hosts))
    nights.host("h", nights.top, address=sshd.address, port=sshd.port, exclude=[f"{nights.pool}/hosts"])  # or it would grow on
    errors = [each for each in findings(nights, "check", "--connect") if each["level"] == "error"]
    assert [each["message"] for each in errors] == [
        f"the pool of this server is at {nights.pool} of this host: each backup would contain all others"
    ]
    (warning,) = nights.run("h")["h"]["warnings"]
    assert "this host is the backup server itself" in warning
    type_command(nights, errors[0]["hint"] if key == "rsync only" else warning)
    assert not [each for each in findings(nights, "check", "--connect") if each["level"] == "error"]
    assert nights.run("h")["h"]["warnings"] == []
    assert not nights.data("h", nights.pool).exists()


def test_a_second_mount_of_the_pool_below_a_source_is_named(nights: Nights, tree: Path, sshd: Sshd) -> None:
    (tree / "file").write_text("x")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("h", tree, address=sshd.address, port=sshd.port)
    with bound(nights.pool, tree / "second"):
        errors = [each["message"] for each in findings(nights, "check", "--connect") if each["level"] == "error"]
    assert errors == [f"the pool of this server is at {tree}/second of this host: each backup would contain all others"]
