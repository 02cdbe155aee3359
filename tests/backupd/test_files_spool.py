"""Data that was spooled to a file is unchanged; Python's zipfile and Info-ZIP read the headers of a zip."""

import io
import os
import sys
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.files import spool, zip_headers
from backupd.files.spool import LinkTable, PackedBytes, SpoolTooLarge, ordered
from backupd.files.tree import Entry
from tests.beds import TOP, work
from tests.beds.leftout import needs_program, needs_root

FILE = Entry(b"/f", "file", 0, 0, 0o644, 4_000_000_000, 12, 1_500_000_000 * 10**9, 257, 1, 1)
NAMES = st.lists(st.binary(min_size=1, max_size=9).map(lambda name: name.replace(b"\0", b"\n")), max_size=60)


@given(NAMES, st.integers(1, 7))
def test_names_come_in_the_order_of_their_bytes_however_many_fit_in_memory(names: list[bytes], fit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "IN_MEMORY", fit)
        patch.setattr(spool, "_PIECE", 5)
        count, pieces = ordered(iter(names))
        assert (count, list(pieces)) == (len(names), sorted(names))


def test_without_a_place_for_files_names_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"%d" % (number * 7919 % 1000) for number in range(1000)]
    monkeypatch.setattr(spool, "IN_MEMORY", 10)
    for full in ("/nowhere", "/dev/full"):
        with monkeypatch.context() as patch:
            patch.setenv("TMPDIR", "/nowhere")
            if full == "/dev/full":  # a full disk: writes are refused
                patch.setattr(spool, "unnamed_file", partial(Path(full).open, "r+b", buffering=0))
            assert list(ordered(iter(names))[1]) == sorted(names)


def test_a_file_of_many_links_is_told_its_first_name_until_the_last_has_come() -> None:
    with closing(LinkTable()) as links:
        assert [links.seen(257, 3, name) for name in (b"a\xff\n", b"b", b"c")] == [None, b"a\xff\n", b"a\xff\n"]
        assert links.seen(257, 3, b"d") is None  # it was forgotten
        assert links.seen(2**62, 2, b"x" * 5000) is None
        assert links.seen(2**62, 2, b"y") == b"x" * 5000


@pytest.mark.slow
def test_who_asks_for_too_many_names_fills_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MOST", 1 << 20)
    with closing(LinkTable()) as links, pytest.raises(SpoolTooLarge, match="too many hard links"):
        consumed(links.seen(number, 2, os.urandom(1000)) for number in range(10_000))
    with closing(PackedBytes()) as packed, pytest.raises(SpoolTooLarge, match="too many hard links"):
        consumed(map(packed.write, (os.urandom(1000) for _ in range(10_000))))


@needs_root
@pytest.mark.parametrize("kind", ["links", "packed"])
def test_a_full_disk_of_these_files_is_no_full_disk_of_the_archive(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """SQLite writes its own temporary files to SQLITE_TMPDIR or TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(small_disk))
    code = {
        "links": "t = LinkTable(); [t.seen(n, 2, os.urandom(1000)) for n in range(30000)]",
        "packed": "p = PackedBytes(); [p.write(os.urandom(1000)) for n in range(30000)]",
    }[kind]
    code = (
        "import os\nfrom backupd.files.spool import *\nfrom backupd.files.to_tar import _failures_reported\n"
        f"with _failures_reported(): {code}"
    )
    done = work(sys.executable, "-c", code, check=False, cwd=TOP)
    assert f"the tar is incomplete: {small_disk} has no free space" in done.stderr, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    work("mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", tmp_path)
    yield tmp_path
    work("umount", tmp_path)


def consumed(every: Iterable[object]) -> None:
    deque(every, maxlen=0)


def test_what_is_packed_comes_out_as_it_was_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    written = [os.urandom(3000) * 20 for _ in range(60)]
    with closing(PackedBytes()) as packed:
        for name in written:
            packed.write(name)
        assert list(tmp_path.iterdir()) == []
        pieces = list(packed.pieces())
    assert b"".join(pieces) == b"".join(written)
    assert max(map(len, pieces)) <= 256 << 10


@needs_program("unzip")
@pytest.mark.slow
def test_a_zip_with_more_names_than_sixteen_bits_count_is_read_by_others(tmp_path: Path) -> None:
    out, index = io.BytesIO(), bytearray()
    for number in range(70_000):
        zip_member = zip_headers.member(FILE, b"%d" % number)
        index += zip_headers.record(zip_member, zip_headers.Sizes(), out.tell())
        out.write(zip_headers.header(zip_member, zip_headers.Sizes()))
    begun = out.tell()
    out.write(index + zip_headers.end(70_000, begun, len(index)))
    assert len(zipfile.ZipFile(out).namelist()) == 70_000
    (tmp_path / "zip").write_bytes(out.getvalue())
    assert len(work("unzip", "-Z1", tmp_path / "zip").stdout.splitlines()) == 70_000


def test_sizes_and_places_beyond_four_gibibytes_stand_in_the_index_as_zipfile_reads_them() -> None:
    zip_member = zip_headers.member(FILE, "\u00e4".encode())
    sizes, offset = zip_headers.Sizes(7, 5 << 32, 6 << 32), 9 << 32
    index = zip_headers.record(zip_member, sizes, offset)
    # A reader that finds the index at the start of the file assumes a truncated beginning, and counts from there.
    zip_info = zipfile.ZipFile(io.BytesIO(index + zip_headers.end(1, 0, len(index)))).infolist()[0]
    assert (zip_info.filename, zip_info.CRC, zip_info.compress_size, zip_info.file_size, zip_info.header_offset) == (
        "\u00e4",
        7,
        5 << 32,
        6 << 32,
        offset,
    )


def test_a_path_that_is_too_long_for_a_zip_is_no_broken_header() -> None:
    with pytest.raises(OSError, match="too long for a zip"):
        zip_headers.member(FILE, b"x" * 70_000)
