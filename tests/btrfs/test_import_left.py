"""An import with remains of an import or of a night, and with too few threads."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.old_trees import data, dated, differing, imported
from tests.beds.watch import killed

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="400M"))


def one_file(source: Path, _: int) -> None:
    (source / "file").write_text("x")


def test_with_too_few_threads_it_makes_all_or_says_so_before_it_begins(nights: Nights, ext4: Path) -> None:
    root = dated(ext4, 2, one_file)
    program = (sys.executable, "-m", "tests.beds.no_more_threads")
    for threads in range(4):
        words = (str(threads), "--config", nights.config, "import", "tree", root, "--host", f"old{threads}")
        done = work(*program, *words, check=False, cwd=TOP)
        assert "Traceback" not in done.stderr
        if threads < 2:  # for each host
            assert (done.returncode, "the limit of processes is reached" in done.stderr) == (1, True)
            assert not (nights.pool / f"hosts/old{threads}").exists()
            continue
        assert done.returncode == 0, done.stderr
        for place, name in enumerate(nights.names(f"old{threads}")):
            assert differing(root / f"2026-03-0{place + 1}", data(nights, f"old{threads}", name)) == ""


def test_the_unfinished_backup_of_a_night_is_worth_more(nights: Nights, ext4: Path) -> None:
    (nights.source / "large").write_bytes(os.urandom(8 << 20))
    nights.host("web", nights.source)
    nights.in_the_middle(1 << 20, end="dies")
    nights.backupd("run", "web", check=False)
    working = nights.pool / "hosts/web/.working"
    assert working.exists()
    root = dated(ext4, 1, one_file)
    answer = imported(nights, "tree", root, "--host", "web", status=1)
    assert "unfinished backup" in answer["failed"]["web"]
    assert working.exists()


def unlike(ext4: Path, *, days: int) -> tuple[Path, Path]:
    """A vault of dirvish and its source, whose database has other content than the old copies, of the same size and time."""
    vault, source, stamp = ext4 / "web1", ext4 / "srv", 1_700_000_000_000_000_000
    (vault / "dirvish").mkdir(parents=True)
    source.mkdir()
    for day in range(1, days + 1):
        tree = vault / f"2026030{day}" / "tree"
        tree.mkdir(parents=True)
        if day == 1:
            (tree / "a database").write_bytes(b"old" * 5000)
            os.utime(tree / "a database", ns=(stamp, stamp))
        else:
            os.link(vault / "20260301/tree/a database", tree / "a database")
        output = f"client: web1\ntree: {source}\nBackup-begin: 2026-03-0{day} 23:30:05\nStatus: success\n"
        (tree.parent / "summary").write_text(output)
    (source / "a database").write_bytes(b"new" * 5000)
    os.utime(source / "a database", ns=(stamp, stamp))
    return vault, source


def test_a_first_copy_that_a_night_has_begun_of_the_tree_s_path_is_not_taken_for_the_import_s(nights: Nights, ext4: Path) -> None:
    """Without exclude patterns the host has the same settings as an import."""
    vault, source = unlike(ext4, days=1)
    (source / "large").write_bytes(os.urandom(8 << 20))
    nights.settings("backup", exclude=[])
    nights.host("web1", source)
    nights.in_the_middle(1 << 20, end="dies")
    nights.backupd("run", "web1", check=False)
    left = nights.record("web1", ".working")["uuid"]
    answer = imported(nights, "dirvish", vault, status=1)
    assert "unfinished backup" in answer["failed"]["web1"]
    assert nights.record("web1", ".working")["uuid"] == left

    nights.ssh("")
    nights.run("web1")
    assert nights.differences("web1", source) == []


def test_what_a_killed_import_left_is_its_own_and_a_night_does_not_go_on_with_it(nights: Nights, ext4: Path) -> None:
    vault, source = unlike(ext4, days=2)
    nights.settings("backup", exclude=[])
    nights.host("web1", source)
    words = ("import", "dirvish", str(vault))
    killed(nights, "before", "filesystem synced", *words)
    left = nights.record("web1", ".working")["uuid"]
    nights.run("web1")
    assert nights.record("web1")["uuid"] != left
    assert nights.differences("web1", source) == []

    for step in ("after working subvolume named", "before filesystem synced"):
        killed(nights, *step.split(" ", 1), *words)
        assert (nights.pool / "hosts/web1/.working").exists(), step
    assert len(imported(nights, "dirvish", vault)["backups"]) == 2
    for day, name in enumerate(nights.names("web1")[:2], 1):
        assert differing(vault / f"2026030{day}/tree", nights.data("web1", source, name)) == ""
    assert not (nights.pool / "hosts/web1/.working").exists()


@pytest.mark.parametrize("text", ["", "{", None])
def test_what_a_power_cut_left_of_an_import_is_begun_anew(nights: Nights, ext4: Path, text: str | None) -> None:
    """The record is empty, truncated, or was never written; a night would discard that backup as well."""
    place = dated(ext4, 3, one_file)
    killed(nights, "after", "backup named", "import", "tree", str(place), "--host", "attic")
    killed(nights, "before", "filesystem synced", "import", "tree", str(place), "--host", "attic")
    working = nights.backup("attic", ".working")
    assert working.exists()
    (working / "backup.json").unlink(missing_ok=True)
    if text is None:
        work("sh", "-c", f"rm -rf {working}/data")
    else:
        (working / "backup.json").write_text(text)
    imported(nights, "tree", place, "--host", "attic")
    assert len(nights.names("attic")) == 3
    assert not working.exists()
    assert nights.json("rebuild")["trouble"] == []


_RENAMES = "import os, sys; os.chdir(sys.argv[1])\nwhile True: os.rename('mine', 'mine too'); os.rename('mine too', 'mine')"


@contextmanager
def never_at_rest(folder: Path) -> Iterator[None]:
    """Lets a user rename a file all the time."""
    (folder / "mine").write_text("x")
    process = subprocess.Popen([sys.executable, "-c", _RENAMES, folder])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def many_at_home(source: Path, number: int) -> None:
    """Copying it takes long enough for the attacker's process to run."""
    (source / "home").mkdir(exist_ok=True)
    for value in range(200):
        (source / "home" / f"file{number}-{value}").write_text(f"{number}")
    (source / f"other{number}").write_bytes(os.urandom(10_000))


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_a_tree_that_is_never_at_rest_is_given_up_and_the_others_are_imported(nights: Nights, ext4: Path, busy: int) -> None:
    """The owner of a folder in the old history must not block the import of the other trees."""
    root = dated(ext4, 3, many_at_home)
    trees = {f"2026-03-0{day}T000000Z": root / f"2026-03-0{day}" for day in (1, 2, 3)}
    moved = f"2026-03-0{busy}T000000Z"
    with never_at_rest(trees[moved] / "home"):
        answer = imported(nights, "tree", root, "--host", "old1", status=1)
    assert nights.names("old1") == sorted(trees.keys() - {moved})
    assert [row["tree"] for row in answer["not_imported"]] == [str(trees[moved])]
    assert answer["not_imported"][0]["host"] == "old1"
    assert str(trees[moved]) in answer["failed"]["old1"]
    assert [comparison["name"] for comparison in answer["compared"]] == nights.names("old1")[-1:]
    assert not (nights.pool / "hosts/old1/.working").exists()
    for name in nights.names("old1"):
        assert differing(trees[name], data(nights, "old1", name)) == ""

    done = nights.backupd("import", "tree", root, "--host", "old1")  # he sleeps
    assert "1 backup imported, 2 were imported already" in done.stdout
    for name, tree in trees.items():
        assert differing(tree, data(nights, "old1", name)) == ""


def test_what_is_given_up_is_said_with_what_to_do_next(nights: Nights, ext4: Path) -> None:
    root = dated(ext4, 1, many_at_home)
    with never_at_rest(root / "2026-03-01/home"):
        done = nights.backupd("import", "tree", root, "--host", "old1", check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert f"{root}/2026-03-01: some of its files could not be copied: " in output
    assert "1 tree not imported" in output
    assert "run the same command again" in output


def test_a_file_that_is_changed_in_all_trees_meanwhile_is_seen_and_comes_with_a_backup_made_again(
    nights: Nights, ext4: Path
) -> None:
    """Its inode is that of the tree before, so it is not read again: the backups have its content from the time of the
    first one.
    """

    def fill(source: Path, number: int) -> None:
        (source / f"file {number}").write_bytes(os.urandom(5000))
        if not number:
            (source / "in all").write_bytes(b"before" + os.urandom(5000))

    root = dated(ext4, 4, fill)
    killed(nights, "after", "backup named", "import", "tree", str(root), "--host", "old1", count=2)
    with (root / "2026-03-01" / "in all").open("r+b") as file:
        file.write(b"since ")
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "all", status=1)
    assert [comparison["differences"] for comparison in answer["compared"]] == [
        1,
        1,
        0,
        0,
    ]  # listed before, and imported after the kill
    names = nights.names("old1")
    nights.backupd("delete", "--now-without-grace", *(f"old1@{name}" for name in names[:2]))
    assert [data(nights, "old1", name).joinpath("in all").read_bytes()[:6] for name in names[2:]] == [b"since "] * 2
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0, 0]
    for name, tree in zip(names, sorted(root.iterdir()), strict=True):
        assert differing(tree, data(nights, "old1", name)) == ""


def test_what_is_imported_again_after_it_was_deleted_by_hand_has_not_expired(nights: Nights, ext4: Path) -> None:
    """An administrator may import again before the grace period ends. The new backup has the old one's name."""
    root = dated(ext4, 3, one_file)
    words = ("tree", root, "--host", "web1", "--verify", "none")
    imported(nights, *words)
    first, second, _ = before = nights.names("web1")
    notes = nights.pool / "hosts/web1/notes.json"
    nights.backupd("delete", f"web1@{first}", f"web1@{second}")
    nights.backupd("hold", f"web1@{second}")
    for name in (first, second):
        work("btrfs", "subvolume", "delete", nights.backup("web1", name))
    imported(nights, *words)
    assert {name: list(row) for name, row in json.loads(notes.read_text())["backups"].items()} == {second: ["hold"]}
    nights.backupd("expire", "web1", "--skip-grace", "--wait")
    assert nights.names("web1") == before
