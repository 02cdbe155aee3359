"""Opening folders in a backup without leaving it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from btrkeep.fs.openat import open_folder


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "backup" / "a" / "b").mkdir(parents=True)
    (tmp_path / "backup" / "file").touch()
    (tmp_path / "backup" / "out").symlink_to(tmp_path)
    (tmp_path / "backup" / "a" / "self").symlink_to("b")
    fd = os.open(tmp_path / "backup", os.O_RDONLY)
    yield fd
    os.close(fd)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_folder_is_opened_by_its_components(root: int, tmp_path: Path) -> None:
    fd = open_folder(root, [b"a", b"b"])
    assert Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / "backup" / "a" / "b"
    os.close(fd)


@pytest.mark.parametrize("path", [[b"out"], [b"out", b"backup"], [b"a", b"self"], [b"file"], [b"gone"], [b"a", b"gone", b"b"]])
def test_symlinks_files_and_what_is_not_there_are_errors_and_leave_nothing_open(root: int, path: list[bytes]) -> None:
    before = open_descriptors()
    with pytest.raises((NotADirectoryError, FileNotFoundError)):
        open_folder(root, path)
    assert open_descriptors() == before


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"/"])
def test_what_is_no_name_is_refused_and_leaves_nothing_open(root: int, name: bytes) -> None:
    before = open_descriptors()
    with pytest.raises(ValueError, match="is not the name of a folder"):
        open_folder(root, [b"a", name])
    assert open_descriptors() == before
