"""The kernel copies data, and the comparison reads it byte by byte from the disk instead of from memory."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from btrkeep.descriptors import ClosingFd
from btrkeep.fs.file_data import PIECE, PieceBuffer, SourceUnreadable, bypass_page_cache, copy_run

SIZES = (1, 4095, 4096, 70_001, PIECE)


def _file(path: Path, data: bytes) -> ClosingFd:
    path.write_bytes(data)
    return ClosingFd(os.open(path, os.O_RDWR))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_the_last_byte_counts(tmp_path: Path, size: int, direct: bool) -> None:
    data = os.urandom(size)
    other = data[:-1] + bytes([data[-1] ^ 1])
    pieces = PieceBuffer(), PieceBuffer(), PieceBuffer()
    with (
        _file(tmp_path / "a", data) as first,
        _file(tmp_path / "b", data) as second,
        _file(tmp_path / "c", other) as third,
    ):
        for fd, piece in zip((first, second, third), pieces, strict=True):
            bypass_page_cache(fd, wanted=direct)
            piece.read(fd, 0, size)
    assert pieces[0].equals(pieces[1], size)
    assert not pieces[0].equals(pieces[2], size)


def test_what_lies_at_no_block_is_read_too(tmp_path: Path) -> None:
    data = os.urandom(20_000)
    with _file(tmp_path / "a", data) as whole, _file(tmp_path / "b", data[777:]) as rest:
        bypass_page_cache(whole, wanted=True)
        piece, other = PieceBuffer(), PieceBuffer()
        piece.read(whole, 777, 19_223)
        other.read(rest, 0, 19_223)
        assert piece.equals(other, 19_223)


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_ends_before_is_an_error(tmp_path: Path, direct: bool) -> None:
    with _file(tmp_path / "a", bytes(5000)) as fd:
        bypass_page_cache(fd, wanted=direct)
        with pytest.raises(OSError, match="shorter than its reported size"):
            PieceBuffer().read(fd, 0, 9000)


def test_reading_past_the_memory_can_be_turned_off_again(tmp_path: Path) -> None:
    with _file(tmp_path / "a", b"text") as fd:
        if bypass_page_cache(fd, wanted=True):
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        assert not bypass_page_cache(fd, wanted=True)
        bypass_page_cache(fd, wanted=False)
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT


@pytest.mark.parametrize("is_known", [True, False])
def test_a_run_is_copied_to_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    if not is_known:

        def refused(*_: object) -> int:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(os, "sendfile", refused)
    data = os.urandom(3 * PIECE + 17)
    with _file(tmp_path / "a", data) as source, _file(tmp_path / "b", b"") as copy:
        assert sum(copy_run(source, copy, 4096, len(data))) == len(data) - 4096
        with pytest.raises(OSError, match="shorter than its reported size"):
            list(copy_run(source, copy, len(data) - 1, len(data) + 1))
    assert (tmp_path / "b").read_bytes() == bytes(4096) + data[4096:]


@pytest.mark.parametrize("reads", [True, False])
def test_an_error_of_a_copy_has_its_side(tmp_path: Path, reads: bool) -> None:
    """A folder cannot be read as a file, and a file opened for reading cannot be written to."""
    (tmp_path / "a").write_bytes(b"a" * 100)
    (tmp_path / "b").touch()
    paths = (tmp_path, tmp_path / "b") if reads else (tmp_path / "a", tmp_path / "b")
    source, copy = os.open(paths[0], os.O_RDONLY), os.open(paths[1], os.O_RDWR if reads else os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Is a directory" if reads else "Bad file descriptor") as caught:
            list(copy_run(source, copy, 0, 100))
    finally:
        os.close(source)
        os.close(copy)
    assert isinstance(caught.value, SourceUnreadable) is reads
