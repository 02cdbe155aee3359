"""Plain files are copied in groups: each gets its name when it is complete, and never replaces another file."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backupd.files.plain_files import BatchResult, compare, copy
from backupd.files.walking import PlainFile

pytestmark = pytest.mark.root

MODES = (0o600, 0o644, 0o666, 0o777, 0o1644, 0o000)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Open folders of the source, with a file of each mode, and of the destination."""
    for folder in ("source", "to"):
        (tmp_path / folder).mkdir()
    for number, mode in enumerate(MODES):
        path = tmp_path / "source" / f"file{number}"
        path.write_bytes(b"text " * number)
        path.chmod(mode)
        os.chown(path, number * 1000, number)
        path.chmod(mode)
        os.utime(path, ns=(0, 10**18 + number))
    fds = tuple(os.open(tmp_path / folder, os.O_RDONLY) for folder in ("source", "to"))
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


def _files(folder: int) -> list[PlainFile]:
    looks = [(os.fsencode(name), os.stat(name, dir_fd=folder)) for name in sorted(os.listdir(folder))]
    return [
        PlainFile(name, look.st_size, look.st_blocks * 512, look.st_mode & 0o7777, look.st_uid, look.st_gid, look.st_mtime_ns)
        for name, look in looks
    ]


def _without_size_on_disk(files: list[PlainFile]) -> list[PlainFile]:
    return [file._replace(allocated=0) for file in files]


def _copied(sides: tuple[int, int]) -> BatchResult:
    return copy(*sides, _files(sides[0]), reflinks=False, privileged=True)


@pytest.fixture(params=["nameless", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With "named" the filesystem has no files without a name."""
    real = os.open

    def opened(path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode, dir_fd=dir_fd)

    if request.param == "named":
        monkeypatch.setattr(os, "open", opened)
    return str(request.param)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_copies_are_as_their_files_whatever_the_umask(sides: tuple[int, int], way: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert _copied(sides)[:3] == ([], sum(5 * number for number in range(len(MODES))), [])
    finally:
        os.umask(before)
    assert _without_size_on_disk(_files(sides[1])) == _without_size_on_disk(_files(sides[0]))
    assert compare(*sides, _files(sides[0]), reflinks=False, privileged=True, content=True).left_over == []


def test_a_name_that_came_meanwhile_keeps_its_file(sides: tuple[int, int], tmp_path: Path, way: str) -> None:
    (tmp_path / "to" / "file2").write_text("theirs")
    assert _copied(sides).left_over == [2]
    assert (tmp_path / "to" / "file2").read_text() == "theirs"
    assert len(_files(sides[1])) == len(MODES)


def test_a_file_that_is_not_whole_has_no_name(sides: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = list[list[str]](), os.utime

    def looked(fd: int, *, ns: tuple[int, int]) -> None:
        seen.append(sorted(path.name for path in (tmp_path / "to").iterdir()))
        real(fd, ns=ns)

    monkeypatch.setattr(os, "utime", looked)
    _copied(sides)
    assert seen == [[f"file{earlier}" for earlier in range(number)] for number in range(len(MODES))]


def test_a_file_that_became_longer_is_given_back(sides: tuple[int, int], tmp_path: Path, way: str) -> None:
    files = _files(sides[0])
    with (tmp_path / "source" / "file3").open("ab") as file:
        file.write(b"!")
    assert copy(*sides, files, reflinks=False, privileged=True).left_over == [3]
    assert [file.name for file in _files(sides[1])] == [b"file%d" % number for number in range(len(MODES)) if number != 3]


def test_attributes_that_differ_are_seen(sides: tuple[int, int], tmp_path: Path) -> None:
    os.setxattr(tmp_path / "source" / "file1", "user.origin", b"here")
    _copied(sides)
    os.setxattr(tmp_path / "to" / "file1", "user.origin", b"elsewhere")
    os.setxattr(tmp_path / "to" / "file4", "user.more", b"")
    assert compare(*sides, _files(sides[0]), reflinks=False, privileged=True, content=False).left_over == [1, 4]
