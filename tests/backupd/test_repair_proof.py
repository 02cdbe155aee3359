"""A file may replace a damaged one without a recorded checksum only if it equals all readable data of that.

The damaged file is a real one. Reading it fails as on btrfs: a read that reaches an unreadable block is short, one that begins
there fails.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backupd.files.file_digest import FileRead
from backupd.repair.plan import RecordedSums, equal_where_readable
from backupd.repo.checksums import key_of

BLOCK, PIECE = 4096, 1 << 20
SIZE = PIECE + 10 * BLOCK + 100
CONTENT = (bytes(range(251)) * (SIZE // 251 + 1))[:SIZE]


class Files:
    """A damaged and another file, open. `unreadable`: numbers of blocks of the damaged file, and the error of reading them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = folder / "bad", folder / "good"
        for path in self.paths:
            path.write_bytes(CONTENT)
        self.bad, self.good = (os.open(path, os.O_RDWR) for path in self.paths)
        self.unreadable: set[int] = set()
        self.error = errno.EIO
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self.pread)

    def pread(self, fd: int, length: int, place: int) -> bytes:
        if fd == self.bad:
            ahead = [block * BLOCK for block in self.unreadable if place < (block + 1) * BLOCK and block * BLOCK < place + length]
            if ahead and min(ahead) <= place:
                raise OSError(self.error, os.strerror(self.error))
            length = min([length, *(start - place for start in ahead)])
        return self._pread(fd, length, place)

    def equal(self, goes_on: Callable[[], bool] = lambda: True) -> int | None:
        return equal_where_readable(self.bad, self.good, SIZE, goes_on)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    files = Files(tmp_path, monkeypatch)
    yield files
    os.close(files.bad)
    os.close(files.good)


@pytest.mark.parametrize("blocks", [(), (0,), (3,), (3, 4, 9), (255, 256), (266,)], ids=str)
def test_an_equal_file_is_taken_and_only_readable_bytes_count(files: Files, blocks: tuple[int, ...]) -> None:
    files.unreadable = set(blocks)
    lost = sum(100 if block == 266 else BLOCK for block in blocks)
    assert files.equal() == SIZE - lost


@pytest.mark.parametrize("place", [0, BLOCK - 1, 2 * BLOCK, 5 * BLOCK + 7, PIECE - 1, PIECE, SIZE - 1])
@pytest.mark.parametrize("blocks", [(), (1,), (1, 4), (1, 254, 257)], ids=str)
def test_one_other_readable_byte_is_enough_to_refuse_a_file(files: Files, blocks: tuple[int, ...], place: int) -> None:
    """Otherwise another file of the same size and time would take the place of the damaged one."""
    files.unreadable = set(blocks)
    os.pwrite(files.good, bytes([CONTENT[place] ^ 1]), place)
    assert files.equal() is None


def test_what_differs_only_in_an_unreadable_block_cannot_be_seen(files: Files) -> None:
    """Therefore a copy with unreadable blocks never counts as proven."""
    files.unreadable = {2}
    os.pwrite(files.good, b"other", 2 * BLOCK)
    assert files.equal() == SIZE - BLOCK


def test_data_where_the_other_file_has_a_hole_is_a_difference(files: Files) -> None:
    for path in files.paths:
        sparse = path.with_suffix(".sparse")
        with sparse.open("wb") as file:
            file.truncate(SIZE)
            if path.name == "good":
                file.seek(BLOCK)
                file.write(b"data")
    bad, good = (os.open(path.with_suffix(".sparse"), os.O_RDONLY) for path in files.paths)
    assert equal_where_readable(bad, good, SIZE, lambda: True) is None
    assert equal_where_readable(good, bad, SIZE, lambda: True) is None
    assert equal_where_readable(bad, bad, SIZE, lambda: True) == 0
    for fd in (bad, good):
        os.close(fd)


def test_a_comparison_that_was_stopped_proves_nothing(files: Files) -> None:
    answers = iter((True, False, False))
    assert files.equal(lambda: next(answers)) is None


def test_an_error_that_is_no_damage_is_reported(files: Files) -> None:
    files.unreadable, files.error = {0}, errno.EBADF
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.equal()


def read(digest: bytes, plain: bytes | None = None, bad: int | None = None) -> FileRead:
    return FileRead(b"/x", key_of(1, 1, 1), 1, digest, bad, plain)


@pytest.mark.parametrize(
    ("recorded", "file_read", "is_proven"),
    [
        (RecordedSums(b"p", b"d"), read(b"d", b"p"), True),
        (RecordedSums(b"p", b"other"), read(b"d", b"p"), True),  # the run's checksum takes precedence
        (RecordedSums(b"other", b"d"), read(b"d", b"p"), False),
        (RecordedSums(b"p", b"d"), read(b"d", None), False),
        (RecordedSums(None, b"d"), read(b"d"), True),
        (RecordedSums(None, b"d"), read(b"e"), False),
        (RecordedSums(None, b"d"), read(b"d", bad=0), False),  # a file that cannot be read completely proves nothing
        (RecordedSums(b"p", None), read(b"d", b"p", bad=5), False),
    ],
)
def test_only_a_file_with_the_recorded_checksum_is_proven(recorded: RecordedSums, file_read: FileRead, is_proven: bool) -> None:
    assert recorded.are_known
    assert recorded.matches(file_read) == is_proven
