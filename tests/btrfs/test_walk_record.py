"""A backup is walked again from a record of the first walk: it yields the same names, and opens the folders again."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backupd.files.batched_walk import PlainFolders, RepeatedWalk, Walked, walk_batched
from backupd.files.tree import Tree
from backupd.files.walking import LONG, PlainFiles, Unreadable, WalkEntry
from tests.beds import work
from tests.beds.everything import write
from tests.beds.random_tree import random_tree

pytestmark = [pytest.mark.root]

Walk = Callable[[Tree, bytes, Unreadable | None], Iterator[Walked]]


def _seen(walk: Walk, tree: Tree, path: bytes = b"/") -> list[object]:
    """Returns everything that a walk yields, with the inode of the open folder in place of its descriptor."""
    seen = list[object]()
    for visit in walk(tree, path, None):
        folder = os.fstat(visit.folder).st_ino
        if isinstance(visit, PlainFiles):
            seen.append((visit.above, folder, visit.files))
        elif isinstance(visit, PlainFolders):
            seen.append((visit.above, folder, visit.folders))
        else:
            seen.append((visit.entry, folder, visit.name, visit.left))
    return seen


@pytest.mark.parametrize("most", [64 << 20, 1000, 0])
def test_a_second_walk_yields_what_the_first_did(tmp_path: Path, most: int) -> None:
    random_tree(tmp_path / "tree", 5, names=900)
    paths = [b"/", *(os.fsencode(f"/{path.name}") for path in (tmp_path / "tree").iterdir())][:12]
    with Tree.of_folder(tmp_path / "tree") as tree:
        wanted = {path: _seen(walk_batched, tree, path) for path in paths}
        repeated = RepeatedWalk(most)
        for _ in range(3):
            assert {path: _seen(repeated.walk, tree, path) for path in paths} == wanted
    assert len(wanted[b"/"]) > 300


def test_folders_with_few_plain_files_come_as_such_and_nothing_is_missing(tmp_path: Path) -> None:
    random_tree(tmp_path / "tree", 6, names=900)
    for number in range(300):
        write(tmp_path / "tree" / "large" / f"file{number}")
        write(tmp_path / "tree" / "few" / f"folder{number}" / "file")
    names, whole = list[bytes](), 0
    with Tree.of_folder(tmp_path / "tree") as tree:
        repeated = RepeatedWalk()
        _seen(repeated.walk, tree)
        for visit in repeated.walk(tree, b"/"):
            if isinstance(visit, PlainFiles):
                names += [visit.above + b"/" + file.name for file in visit.files]
            elif isinstance(visit, PlainFolders):
                for folder in visit.folders:
                    path = visit.above + b"/" + folder.name
                    assert path != b"/large"
                    assert all(file.links == 1 for file in folder.files)
                    names += [path, *(path + b"/" + file.name for file in folder.files)]
                    whole += 1
            elif not visit.left:
                names.append(visit.entry.path)
    wanted = work("find", ".", "-print0", cwd=tmp_path / "tree").stdout.split("\0")[:-1]
    assert sorted(names) == sorted(os.fsencode("/" + name[2:]) for name in wanted)
    assert whole > 300


def test_folders_come_with_their_totals_and_symlinks_with_their_targets(tmp_path: Path) -> None:
    random_tree(tmp_path / "tree", 6, names=900)
    for number in range(5):
        top = tmp_path / "tree" / f"folder{number}"
        write(top / "file", "text" * number)
        for length in (1, LONG, LONG + 1):
            (top / f"link{length}").symlink_to("t" * length)
    seen = 0
    with Tree.of_folder(tmp_path / "tree") as tree:
        for visit in walk_batched(tree, b"/"):
            if isinstance(visit, PlainFolders):
                above = tmp_path / "tree" / os.fsdecode(visit.above[1:])
                paths = [path for each in visit.folders for path in (above / os.fsdecode(each.name)).iterdir()]
                files = [path.lstat() for path in paths if not path.is_symlink()]
                numbers = sum(status.st_size for status in files), sum(status.st_blocks * 512 for status in files)
                assert visit.totals == (len(visit.folders), len(files), len(paths) - len(files), *numbers)
                assert visit.totals.names == len(visit.folders) + len(paths)
                for folder in visit.folders:
                    for file in folder.files:
                        path = above / os.fsdecode(folder.name) / os.fsdecode(file.name)
                        target = os.fsencode(os.readlink(path)) if path.is_symlink() else None  # noqa: PTH115  a Path changes it
                        assert file.target == (target if target is None or len(target) <= LONG else b"")
                        seen += 1
    assert seen > 20


def test_names_are_not_looked_at_again(tmp_path: Path) -> None:
    write(tmp_path / "tree" / "folder" / "inside", "text")
    with Tree.of_folder(tmp_path / "tree") as tree:
        repeated = RepeatedWalk()
        wanted = _seen(repeated.walk, tree)
        (tmp_path / "tree" / "folder" / "inside").rename(tmp_path / "tree" / "folder" / "elsewhere")
        assert _seen(repeated.walk, tree) == wanted
        assert _seen(walk_batched, tree) != wanted


def _replace_by_symlink(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")


@pytest.mark.parametrize("change", ["gone", "symlink", "mount"])
def test_a_folder_that_cannot_be_opened_again_is_reported_and_the_others_are_walked(tmp_path: Path, change: str) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / "tree" / name / "below" / "inside", name)
    folder = tmp_path / "tree" / "b"
    with Tree.of_folder(tmp_path / "tree") as tree:
        repeated = RepeatedWalk()
        _seen(repeated.walk, tree)
        if change == "mount":
            work("mount", "-t", "tmpfs", "none", folder)
        elif change == "symlink":
            _replace_by_symlink(folder)
        else:
            folder.rename(tmp_path / "away")
        errors, left, files = list[tuple[bytes, int | None]](), list[bytes](), list[bytes]()
        try:
            for visit in repeated.walk(tree, b"/", lambda path, error: errors.append((path, error.errno))):
                if isinstance(visit, PlainFolders):
                    (below,) = visit.folders
                    files += [visit.above + b"/below/" + file.name for file in below.files]
                elif isinstance(visit, WalkEntry) and visit.left:
                    left.append(visit.entry.path)
        finally:
            if change == "mount":
                work("umount", folder)
    number = {"gone": errno.ENOENT, "symlink": errno.ENOTDIR, "mount": errno.EXDEV}[change]
    assert errors == [(b"/b", number)]
    assert files == [b"/a/below/inside", b"/c/below/inside"]
    assert left == [b"/a", b"/b", b"/c", b"/"]


def test_nothing_is_recorded_of_a_walk_that_could_not_read_everything(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    write(tmp_path / "tree" / "a" / "inside")
    (tmp_path / "tree" / "b" / "below").mkdir(parents=True)
    errors = list[bytes]()
    with Tree.of_folder(tmp_path / "tree") as tree:
        repeated = RepeatedWalk()
        for visit in repeated.walk(tree, b"/", lambda path, _: errors.append(path)):
            if isinstance(visit, WalkEntry) and visit.entry.path == b"/b" and not visit.left:
                (tmp_path / "tree" / "b" / "below").rmdir()
        assert errors == [b"/b/below"]
        write(tmp_path / "tree" / "b" / "new")
        assert _seen(repeated.walk, tree) == _seen(walk_batched, tree)


def test_a_walk_that_was_stopped_is_not_recorded(tmp_path: Path) -> None:
    random_tree(tmp_path / "tree", 3, names=100)
    with Tree.of_folder(tmp_path / "tree") as tree:
        repeated, wanted = RepeatedWalk(), _seen(walk_batched, tree)
        stopped = repeated.walk(tree, b"/", None)
        for _ in range(20):
            next(stopped)
        stopped.close()
        assert _seen(repeated.walk, tree) == wanted
        assert _seen(repeated.walk, tree) == wanted
