"""The names of a tree in batches, compared with `find`."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.files import walking as module
from backupd.files.tree import Tree
from backupd.files.walking import FolderNames, name_batches


def refuse(path: bytes, error: OSError) -> None:
    raise error


def handed_out(top: Path, unreadable: Callable[[bytes, OSError], None] = refuse) -> list[list[FolderNames]]:
    with Tree.of_folder(top) as tree:
        rows = list(name_batches(tree, unreadable))
    for batch in rows:
        for folder_names in batch:
            os.close(folder_names.folder)
    return rows


def names(batches: list[list[FolderNames]]) -> list[bytes]:
    return sorted(folder_names.above + b"/" + name for batch in batches for folder_names in batch for name in folder_names.names)


def by_find(top: Path) -> list[bytes]:
    process = subprocess.run(("find", top, "!", "-type", "d", "-printf", "/%P\\0"), capture_output=True, check=True)
    return sorted(process.stdout.split(b"\0")[:-1])


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / f"few{number}/inner").mkdir(parents=True)
        (tmp_path / f"few{number}/inner/file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "many").mkdir()
    for number in range(150):
        (tmp_path / "many" / str(number)).touch()
    (tmp_path / os.fsdecode(b"caf\xe9\n")).touch()
    (tmp_path / "elsewhere").symlink_to("/etc")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def test_every_name_that_is_no_folder_comes_once(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    rows = handed_out(top)
    assert names(rows) == by_find(top)
    assert max(sum(len(folder_names.names) for folder_names in batch) for batch in rows) < 128
    assert max(map(len, rows)) <= 8
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monkeypatch.setattr(module, "IN_MEMORY", 3)  # of the folders in one folder
    assert names(handed_out(top)) == by_find(top)


def test_names_deeper_than_folders_are_kept_open_come_too(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("deep", dir_fd=place)
        below = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(os.open("file", os.O_CREAT, dir_fd=place))
    os.close(place)
    assert names(handed_out(tmp_path)) == [b"/deep" * 200 + b"/file"]


def test_a_folder_that_cannot_be_entered_is_told_and_the_others_are_listed(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, scandir = list[bytes](), os.scandir
    broken = (top / "many").stat().st_ino

    def fails(folder: int) -> object:
        if os.fstat(folder).st_ino == broken:
            raise OSError(5, "Input/output error")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", fails)
    actual_names = names(handed_out(top, lambda path, _: pieces.append(path)))
    assert pieces == [b"/many"]
    assert actual_names == [name for name in by_find(top) if not name.startswith(b"/many/")]
