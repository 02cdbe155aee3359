"""What an import changes in its backup by names that it found earlier: if a folder is a symlink by then, nothing outside moves."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.run.importing.copying import copy_tree
from backupd.run.importing.target_names import link_names, remove_names, require_folders


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """`a` and `deep` lead to a folder outside that has a file, a folder with a file, and a file to link."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder/kept").write_text("kept")
    (outside / "file").write_text("kept")
    (target / "real").mkdir(parents=True)
    (target / "z").write_text("linked")
    (target / "real/deep").symlink_to(outside)
    (target / "a").symlink_to(outside)
    return target


def all_below(top: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(top)), path.lstat().st_nlink) for path in top.rglob("*"))


@pytest.mark.parametrize(
    "names", [[b"a/file"], [b"a/folder"], [b"real/deep/folder/kept"], [b"real/deep/folder"], [b"a/folder/none"]]
)
def test_nothing_is_removed_or_linked_through_a_symlink(target: Path, names: list[bytes]) -> None:
    outside = target.parent / "outside"
    before = all_below(outside)
    for change in (lambda: remove_names(target, names), lambda: link_names(target, [[b"z", *names]])):
        with pytest.raises(NotADirectoryError) as refused:
            change()
        assert refused.value.filename == names[0].decode()
    with pytest.raises(NotADirectoryError):
        link_names(target, [[names[0], b"z"]])
    with pytest.raises(NotADirectoryError):
        require_folders(target, names)
    assert all_below(outside) == before
    assert (target / "z").read_text() == "linked"


def test_names_are_removed_linked_and_let_through_where_all_above_them_are_folders(target: Path) -> None:
    (target / "real/tree").mkdir()
    (target / "real/tree/file").write_text("x")
    (target / "real/new").mkdir()
    os.utime(target / "real/new", ns=(1, 2))
    require_folders(target, [b"", b"z", b"real/tree/file", b"real/none/file"])
    remove_names(target, [b"real/tree", b"a", b"real/none"])
    assert [path.name for path in (target / "real").iterdir() if path.name != "new"] == ["deep"]
    assert not (target / "a").is_symlink()
    assert (target.parent / "outside/folder/kept").exists()
    link_names(target, [[b"z", b"real/new/one", b"real/new/one", b"other"]])
    assert (target / "z").stat().st_nlink == 3
    assert (target / "real/new").stat().st_mtime_ns == 2


def test_a_folder_that_is_deeper_than_a_function_can_call_itself_is_removed(target: Path) -> None:
    fd = os.open(target / "real", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_names(target, [b"real/d"])
    assert not (target / "real/d").exists()


@pytest.mark.parametrize("kind", ["file", "fifo", "symlink"])
def test_a_file_that_is_exchanged_between_the_look_and_the_copy_is_refused(tmp_path: Path, kind: str) -> None:
    """Neither has the one's owner and mode with the other's content."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "home").mkdir(parents=True)
    target.mkdir()
    (source / "home/name").write_text("mine")
    other = tmp_path / "other"
    if kind == "file":
        other.write_text("secret")
        other.chmod(0o600)
    elif kind == "fifo":
        os.mkfifo(other)
    else:
        other.symlink_to("/etc/passwd")
    there, here = (os.open(folder, os.O_RDONLY) for folder in (source, target))
    exchanged = before_it_is_opened(b"name", lambda: other.rename(source / "home/name"))
    try:
        with pytest.raises(OSError, match="name") as refused:
            copy_tree(there, here, (), lambda: True)
    finally:
        os.close(there)
        os.close(here)
    assert exchanged == [True]
    assert refused.value.filename == "home/name"
    assert list((target / "home").iterdir()) == []


def before_it_is_opened(name: bytes, deed: Callable[[], object]) -> list[bool]:
    """Does it once, when this process is about to open that name. The list that it returns has an item from then on."""
    done: list[bool] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[0] == name and not done:
            done.append(True)
            deed()

    sys.addaudithook(hear)
    return done
