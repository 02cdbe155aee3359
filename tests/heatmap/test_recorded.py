"""Recorded states: they are loaded as saved, every damage of the file is detected, and old files stay readable for ever."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import whole_file
from heatmap import recorded
from heatmap.filesystem_state import FilesystemState
from heatmap.picture import output_name
from heatmap.recorded import FORMAT, MAGIC, Unreadable, load, packed, read_header, save, unpacked
from tests.heatmap.states import GIB, TIB, Pool

GOLDEN = Path(__file__).with_name("golden") / "state-1.heatmap"
SMALL = Pool((40 * GIB, 24 * GIB)).state()


def assert_same(filesystem_state: FilesystemState, two: FilesystemState) -> None:
    for field in fields(FilesystemState):
        ours, theirs = getattr(filesystem_state, field.name), getattr(two, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            assert ours.tobytes() == theirs.tobytes(), field.name
        else:
            assert ours == theirs, field.name


def of_columns(column: Callable[[str], Any], **plain: Any) -> FilesystemState:
    """Returns a state whose arrays `column` returns for their names."""
    about = {"fsid": "f", "label": "", "taken": datetime.now(UTC), "nodesize": 4096, "sectorsize": 4096, **plain}
    return FilesystemState(
        **about, **{field.name: column(field.name) for field in fields(FilesystemState) if field.name not in about}
    )


def of_extremes() -> FilesystemState:
    top = 2**64 - 1
    u64 = np.array([top, 0, 1, top - 4095, 4096], np.uint64)
    special = {
        "ch_stripes": np.arange(5) - 2,
        "st_chunk": np.array([4, 4, 0, 1, 2]),
        "score": np.array([np.nan, -0.0, np.inf, 1e-45, -1], np.float32),
    }
    taken = datetime(2026, 11, 20, 22, 0, 3, 123456, UTC)
    return of_columns(lambda name: special.get(name, u64), label="täst \n\x1b", taken=taken, nodesize=65536)


def empty() -> FilesystemState:
    kinds = {"ch_stripes": np.int64, "st_chunk": np.int64, "score": np.float32}
    return of_columns(lambda name: np.zeros(0, kinds.get(name, np.uint64)))


def interrupted() -> FilesystemState:
    """Returns a state read while the filesystem changed: device extents and stripes do not match."""
    return replace(SMALL, de_vaddr=SMALL.de_vaddr[::-1].copy())


@pytest.mark.parametrize("state", [SMALL, of_extremes(), empty(), interrupted(), replace(SMALL, score=None, generation=None)])
def test_what_is_loaded_is_what_was_saved_to_the_last_bit(state: FilesystemState, tmp_path: Path) -> None:
    save(state, str(tmp_path / "x"))
    assert_same(load(tmp_path / "x"), state)


@pytest.mark.slow
def test_42_tib_are_recorded_in_a_few_hundred_kilobytes() -> None:
    pool = Pool((42 * TIB,), filled=0.95)
    for _ in range(30):
        pool.day()
    state = pool.state()
    assert len(state.bg_vaddr) > 35_000
    assert len(packed(state)) < 500_000
    assert len(packed(replace(state, score=None, generation=None))) < 300_000


def test_whatever_bit_is_turned_is_seen() -> None:
    data = packed(replace(SMALL, score=None, generation=None))
    for place in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(Unreadable) as seen:
            unpacked(bytes(damaged), "x")
        assert "\n" not in seen.value.message
        assert seen.value.message.startswith("x ")
        assert seen.value.hint


def test_a_file_that_was_cut_short_or_grew_is_seen() -> None:
    data = packed(SMALL)
    for end in (0, 1, 7, 8, 20, 28, 29, len(data) // 2, len(data) - 1):
        with pytest.raises(Unreadable, match=r"damaged|not a recorded state"):
            unpacked(data[:end], "x")
    with pytest.raises(Unreadable, match="damaged"):
        unpacked(data + b"\0", "x")


def test_a_file_of_a_newer_program_is_refused_by_its_number() -> None:
    data = bytearray(packed(SMALL))
    struct.pack_into("<I", data, len(MAGIC), FORMAT + 1)
    with pytest.raises(Unreadable, match=f"is of format {FORMAT + 1}; this program reads up to {FORMAT}"):
        unpacked(bytes(data), "x")


def rewritten(data: bytes, change: str) -> bytes:
    """Returns the file with another head and a right checksum, as another program might write it."""
    _, version, head, _, _ = struct.unpack_from("<8sIIQI", data)
    about, columns = json.loads(data[28 : 28 + head]), data[28 + head :]
    if change == "more":
        about["weather"], plain = "fine", zlib.decompress(columns)
        about["columns"].append(["later", "u8", 2, 1])
        columns = zlib.compress(plain + bytes(16))
    elif change == "no zone":
        about["taken"] = "2026-01-01T00:00:00"
    elif change == "no column":
        about["columns"] = about["columns"][1:]
    elif change == "lengths":
        about["columns"][-1][2] -= 1
    elif change == "too much":
        about["columns"][0][2] = 10**12
    elif change == "no name":
        del about["fsid"]
    new = json.dumps(about).encode()
    lengths = struct.pack("<IQ", len(new), len(columns))
    return MAGIC + struct.pack("<I", version) + lengths + struct.pack("<I", zlib.crc32(lengths + new + columns)) + new + columns


def test_what_later_versions_add_is_passed_over() -> None:
    assert_same(unpacked(rewritten(packed(SMALL), "more"), "x"), SMALL)


@pytest.mark.parametrize("change", ["no zone", "no column", "lengths", "too much", "no name"])
def test_a_file_that_is_whole_but_makes_no_sense_is_one_line(change: str) -> None:
    with pytest.raises(Unreadable, match="x is not a state that can be drawn"):
        unpacked(rewritten(packed(SMALL), change), "x")


def test_a_first_look_tells_when_and_of_what() -> None:
    moment = read_header(GOLDEN)
    assert (moment.label, moment.taken) == ("golden", datetime(2025, 11, 24, 22, tzinfo=UTC))
    assert moment.devid.tolist() == [1, 2]


def test_a_state_of_the_first_version_is_still_read() -> None:
    """The file was written when format 1 was made, and must never be written again."""
    state = load(GOLDEN)
    assert (state.fsid, state.label, state.nodesize, state.sectorsize) == (
        "3f6c1c9e-5d0b-4c52-9a37-0d2f3b8a7e11",
        "golden",
        16384,
        4096,
    )
    assert state.total_bytes.tolist() == [8589934592, 4294967296]
    assert state.de_devid.tolist() == GOLDEN_NUMBERS["de_devid"]
    assert state.bg_vaddr.tolist() == GOLDEN_NUMBERS["bg_vaddr"]
    assert state.bg_used.tolist() == GOLDEN_NUMBERS["bg_used"]
    assert state.de_vaddr.tolist() == GOLDEN_NUMBERS["de_vaddr"]
    assert state.generation is not None
    assert state.generation.tolist() == GOLDEN_NUMBERS["generation"]
    assert state.score is not None
    assert [None if np.isnan(row) else round(float(row), 3) for row in state.score] == GOLDEN_NUMBERS["score"]


def fail_with(error: type[BaseException], path: Path) -> None:
    with whole_file(str(path)) as file:
        file.write(b"half")
        raise error


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before")
    path.chmod(0o640)
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            fail_with(error, path)
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    with whole_file(str(path)) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    null = Path("/dev/null").stat()
    with whole_file("/dev/null") as file:
        file.write(b"gone")
    assert Path("/dev/null").stat().st_rdev == null.st_rdev
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"before")
    link.symlink_to(target)
    with whole_file(str(link)) as file:
        file.write(b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"


@pytest.mark.parametrize(("place", "words"), [("/dev/full", "No space left"), ("nowhere/x", "no folder"), (".", "is a folder")])
def test_what_cannot_be_written_is_one_line_and_a_hint(
    place: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OperatorError, match=words) as seen:
        save(SMALL, place)
    assert "\n" not in seen.value.message
    assert seen.value.hint
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_a_file_is_no_larger_to_read_than_its_head_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_LARGEST", 1000)
    with pytest.raises(Unreadable, match="are incomplete"):
        unpacked(packed(SMALL), "x")


GOLDEN_NUMBERS = json.loads(GOLDEN.with_suffix(".json").read_text()) if GOLDEN.exists() else {}


@pytest.mark.root
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, is_folder: bool) -> None:
    """Root may use `-o /tmp/pictures/`, where any user may create the link first."""
    (tmp_path / "private").mkdir()
    target = tmp_path / "private" / "picture.png"
    target.write_bytes(b"before")
    link = tmp_path / ("folder" if is_folder else "picture.png")
    link.symlink_to(target.parent if is_folder else target)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    name = str(link / "picture.png") if is_folder else str(link)
    with pytest.raises(OperatorError, match="is a symlink of another user"), whole_file(name) as file:
        file.write(b"after")
    assert target.read_bytes() == b"before"
    if is_folder:
        with pytest.raises(OperatorError, match="is a symlink of another user"):
            output_name(f"{link}/made/", ["fsid"], datetime.now(UTC), "png")
        assert not (target.parent / "made").exists()


def test_a_link_that_is_made_while_a_file_is_written_is_replaced(tmp_path: Path) -> None:
    target, name = tmp_path / "target", tmp_path / "name"
    target.write_bytes(b"before")
    with whole_file(str(name)) as file:
        file.write(b"after")
        name.symlink_to(target)
    assert (target.read_bytes(), name.read_bytes(), name.is_symlink()) == (b"before", b"after", False)
