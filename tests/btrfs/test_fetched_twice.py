"""Files that a backup fetches several times, bind mounts and snapshots of the host, and the pool itself, are reported with their
pattern.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.run import fetched_twice
from backupd.run.fetched_twice import own_place, with_fetched_twice
from backupd.run.finalisation import WorkSubvolume
from btrkeep.config import HostConfig
from btrkeep.pool.marker import MARKER, open_pool
from btrkeep.process.progress import Cancellation
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
    """Runs the command at the end of a message."""
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
        named = [finding for finding in findings(nights, "check", "--connect") if "backed up twice" in finding["message"]]
        (warning,) = nights.run("h")["h"]["warnings"]
        assert f"{tree}/mnt" in warning
        assert f"{tree}/data" in warning
        assert shlex.join(["host", "test", "h"]) in warning
        assert any("backed up twice" in finding["message"] for finding in findings(nights, "host", "test", "h"))
        ((finding),) = named
        assert finding["message"].startswith(f"{tree}/mnt has the same files as {tree}/data")
        type_command(nights, finding["hint"])
        assert not [each for each in findings(nights, "check", "--connect") if "backed up twice" in each["message"]]
        assert nights.run("h")["h"]["warnings"] == []


def test_a_folder_that_is_fetched_twice_is_named_until_its_bind_mount_ends(nights: Nights, tree: Path) -> None:
    """The nights after the first one fetch little, so they do not search for such folders."""
    fill(tree / "data", 600)
    (tree / "other").mkdir()
    nights.host("h", tree)
    with bound(tree / "data", tree / "mnt"):
        nights.run("h")
        assert [key["kind"] for key in nights.record("h")["lasting"]] == ["fetched-twice"]
        first = nights.record("h")["started"]
        assert nights.run("h")["h"]["warnings"] == []
        words = " ".join(nights.backupd("status", "h").stdout.split())
        assert f"{tree}/mnt has been backed up since" in words
        assert (nights.record("h")["lasting"][0]["since"], nights.record("h")["lasting"][0]["times"]) == (first, 2)
    nights.run("h")
    assert "has been backed up" not in nights.backupd("status", "h").stdout
    assert "lasting" not in nights.record("h")


def test_what_was_fetched_twice_has_an_end_beside_files_of_its_own_and_by_either_exclude(nights: Nights, tree: Path) -> None:
    fill(tree / "data", 600)
    fill(tree / "mnt", 3)
    (tree / "other").mkdir()

    with bound(tree / "data", tree / "mnt"):
        for host, exclude in (("h", "data"), ("i", "mnt")):
            nights.host(host, tree)
            nights.run(host)
            nights.run(host)
            assert "lasting" in nights.record(host)
            nights.host(host, tree, exclude=[f"/{exclude}/"])
            nights.run(host)
            assert "lasting" not in nights.record(host)
        nights.host("k", tree)
        nights.run("k")
    nights.run("k")
    assert list((nights.data("k", tree) / "mnt").iterdir())
    assert "lasting" not in nights.record("k")


def test_a_filesystem_that_a_later_mount_hides_is_named_by_connect(nights: Nights, tree: Path, sshd: Sshd) -> None:
    """No backup has its files, and rsync does not report that."""
    (tree / "srv" / "db").mkdir(parents=True)
    (tree / "other").mkdir()
    with (nights.top / "disk").open("wb") as disk:
        disk.truncate(4 << 20)
    work("mkfs.ext4", "-q", nights.top / "disk")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("h", tree / "srv", address=sshd.address, port=sshd.port)

    def hidden() -> list[str]:
        return [each["message"] for each in findings(nights, "check", "--connect") if "hides it" in each["message"]]

    work("mount", "-o", "loop", nights.top / "disk", tree / "srv" / "db")
    try:
        assert hidden() == []
        with bound(tree / "other", tree / "srv"):
            (message,) = hidden()
            assert message.startswith(f"{tree}/srv/db cannot be read: a later mount at {tree}/srv hides it")
    finally:
        work("umount", tree / "srv" / "db")


def test_a_key_that_permits_rsync_only_is_a_note(nights: Nights, tree: Path, sshd: Sshd) -> None:
    (tree / "file").write_text("x")
    key = sshd.authorize('restrict,command="rrsync -ro /"')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("h", tree, address=sshd.address, port=sshd.port)
    actual_findings = findings(nights, "host", "test", "h")
    assert [each["level"] for each in actual_findings if "backed up twice" in each["message"]] == ["note"]
    assert [each["level"] for each in actual_findings if "reached" in each["message"]] == ["ok"]


@pytest.mark.parametrize("key", ["any command", "rsync only"])
def test_a_host_that_is_this_machine_and_has_the_pool_is_named(nights: Nights, sshd: Sshd, key: str) -> None:
    fill(nights.source, 60)
    restricted = sshd.authorize('restrict,command="rrsync -ro /"') if key == "rsync only" else sshd.key
    nights.settings("ssh", command="ssh -F none", key=str(restricted), known_hosts=str(sshd.known_hosts))
    nights.host("h", nights.top, address=sshd.address, port=sshd.port, exclude=[f"{nights.pool}/hosts"])  # or it would grow on
    errors = [each for each in findings(nights, "check", "--connect") if each["level"] == "error"]
    assert [each["message"] for each in errors] == [
        f"the pool of this server is at {nights.pool} of this host: each backup would contain all other backups"
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
    assert errors == [f"the pool of this server is at {tree}/second of this host: each backup would contain all other backups"]


def subvolume_of(nights: Nights, tree: Path) -> Path:
    return next(folder for folder in nights.data("h", tree).parents if (folder / "backup.json").is_file())


def searched(nights: Nights, tree: Path) -> list[str]:
    """Returns the warnings of a search of the host's newest backup, which is a real one."""
    subvolume = subvolume_of(nights, tree)
    prepared = WorkSubvolume(subvolume, None, fresh=True, id=0, uuid="")
    results = [PathResult(str(tree), PathOutcome.COMPLETE, numbers={"created": 2000})]
    host = HostConfig("h", paths=(str(tree),))
    (result,) = with_fetched_twice(open_pool(nights.pool), host, prepared, results, Cancellation(), "backupd").results
    return list(result.warnings)


def test_a_marker_of_a_hostile_host_ends_no_run(nights: Nights) -> None:
    marker = nights.source / "pool" / MARKER / "pool.json"
    marker.parent.mkdir(parents=True)
    marker.write_text("[" * 60_000)
    nights.host("h", nights.source)
    nights.run("h")
    pool = open_pool(nights.pool)
    assert own_place(subvolume_of(nights, nights.source), replace(pool, path=nights.source / "pool")) == ""


def test_an_internal_error_of_the_search_is_a_warning(nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tree / "data")
    nights.host("h", tree)
    nights.run("h")
    monkeypatch.setattr(fetched_twice, "repeated_folders", lambda _: dict[str, int]()["no such"])
    (warning,) = searched(nights, tree)
    assert "could not check whether folders were backed up several times: internal error: KeyError" in warning


def test_very_deep_folders_do_not_fill_the_memory(nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 files below 1000 folders each took 3.1 GiB and 24 s."""
    fill(tree / "/".join("d" * 60), 20)
    nights.host("h", tree)
    nights.run("h")
    assert searched(nights, tree) == []
    monkeypatch.setattr(fetched_twice, "_MOST_NAMES", 19 * 60**2)
    (warning,) = searched(nights, tree)
    assert warning == f"{tree}: could not check whether folders were backed up several times: there are too many deep folders"


def test_a_host_with_very_many_repeated_folders_has_few_warnings(nights: Nights, tree: Path) -> None:
    for number in range(30):
        fill(tree / f"a{number}", 40)
        work("cp", "-a", tree / f"a{number}", tree / f"b{number}")
    nights.host("h", tree)
    warnings = nights.run("h")["h"]["warnings"]
    assert len(warnings) == 21
    assert warnings[-1] == f"{tree}: 10 more folders were backed up several times"
