"""The files of an initial copy on a carried disk: an interrupted copy is continued, and only written data is received."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backupd.replicate.initial_copy import (
    InitialCopyDamaged,
    InitialCopySender,
    begin_initial_copy,
    end_host,
    has_host,
    part_file,
    read_description,
    unusable_hosts,
    write_parts,
)
from backupd.replicate.wire import END, OBJECT, PIECE, AnswerReader, object_frame

POOL, UUID, NAME = "11111111-1111-1111-1111-111111111111", "2" * 36, "2026-03-01T220000Z"
STREAM = os.urandom(25_000)
PART = 10_000


def pieces(content: bytes = STREAM, size: int = 3_000) -> Iterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def parts_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.part"))]


@pytest.fixture
def initial_copy(tmp_path: Path) -> Path:
    """An initial copy with one host, web1, in three parts."""
    folder = tmp_path / "seed"
    begin_initial_copy(folder, POOL)
    (folder / "web1").mkdir()
    parts = write_parts(folder / "web1", pieces(), PART, lambda _: None)
    end_host(folder / "web1", {"backups": [[NAME, UUID, "complete"]]}, {"notes": {}, "bytes": 25_000}, parts)
    return folder


def answer(initial_copy: Path, verb: str, asked: dict[str, Any] | None = None) -> list[tuple[bytes, bytes]]:
    """Returns the frames with which an initial copy answers, read from a real pipe."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)  # it fits into a pipe
        InitialCopySender(initial_copy, writing).verbs[verb](asked or {})
        os.write(writing, object_frame({}, END))
        return list(AnswerReader(reading, patience=5).answer())
    finally:
        os.close(reading)
        os.close(writing)


SEND = {"host": "web1", "uuid": UUID}


def stream_of(initial_copy: Path) -> bytes:
    return b"".join(content for kind, content in answer(initial_copy, "send", SEND) if kind == PIECE)


# Written


def test_parts_are_the_stream_with_the_checksums_that_sha256sum_has(tmp_path: Path) -> None:
    counts: list[int] = []
    parts = write_parts(tmp_path, pieces(), PART, counts.append)
    assert b"".join(parts_of(tmp_path)) == STREAM
    assert [part.length for part in parts] == [PART, PART, 5_000]
    assert [part.sha256 for part in parts] == [hashlib.sha256(part).hexdigest() for part in parts_of(tmp_path)]
    assert counts[-1] == len(STREAM)


@pytest.mark.parametrize(
    "before",
    [
        [STREAM[:PART], STREAM[PART : PART + 50]],
        [STREAM[:PART], STREAM[PART:]],
        [b"x" * PART, STREAM[PART : 2 * PART]],
        [STREAM[:4_000] + b"x" * 20_000],
        [STREAM[:PART], STREAM[PART : 2 * PART], STREAM[2 * PART :], b"left of a longer one", b"another"],
        [b""],
    ],
    ids=["cut off", "longer", "other content", "differs within", "more parts", "empty"],
)
def test_whatever_an_earlier_attempt_left_the_parts_are_the_stream(tmp_path: Path, before: list[bytes]) -> None:
    """With bytes of another stream in a part, the disk would have to be carried again."""
    for number, content in enumerate(before, 1):
        part_file(tmp_path, number).write_bytes(content)
    parts = write_parts(tmp_path, pieces(), PART, lambda _: None)
    assert parts_of(tmp_path) == [STREAM[:PART], STREAM[PART : 2 * PART], STREAM[2 * PART :]]
    assert [part.sha256 for part in parts] == [hashlib.sha256(part).hexdigest() for part in parts_of(tmp_path)]


def test_parts_that_are_whole_are_not_written_again(tmp_path: Path) -> None:
    """Terabytes on a slow disk: existing parts are only read."""
    write_parts(tmp_path, pieces(), PART, lambda _: None)
    for path in tmp_path.glob("*.part"):
        os.utime(path, (1, 1))
    write_parts(tmp_path, pieces(size=777), PART, lambda _: None)
    assert [path.stat().st_mtime for path in tmp_path.glob("*.part")] == [1, 1, 1]


def test_a_part_is_never_written_through_a_symlink(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    part_file(tmp_path, 1).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_parts(tmp_path, pieces(), PART, lambda _: None)
    assert victim.read_text() == "precious"


def test_a_folder_with_other_files_or_another_pool_is_not_used(tmp_path: Path, initial_copy: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday").touch()
    with pytest.raises(InitialCopyDamaged, match="has other files"):
        begin_initial_copy(tmp_path / "photos", POOL)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["holiday"]
    begin_initial_copy(initial_copy, POOL)  # continues
    with pytest.raises(InitialCopyDamaged, match="of another pool"):
        begin_initial_copy(initial_copy, "another")


def test_a_host_is_there_only_with_all_parts_of_that_very_backup(initial_copy: Path) -> None:
    assert has_host(initial_copy / "web1", UUID)
    assert not has_host(initial_copy / "web1", "3" * 36)
    assert not has_host(initial_copy / "web2", UUID)
    os.truncate(part_file(initial_copy / "web1", 2), PART - 1)
    assert not has_host(initial_copy / "web1", UUID)
    part_file(initial_copy / "web1", 2).unlink()
    assert not has_host(initial_copy / "web1", UUID)


# Read


def test_a_whole_seed_is_sent_as_it_was_written(initial_copy: Path) -> None:
    assert stream_of(initial_copy) == STREAM
    assert [json.loads(content)["pool"] for _, content in answer(initial_copy, "hello")] == [POOL]
    assert [json.loads(content)["host"] for _, content in answer(initial_copy, "list")] == ["web1"]
    announced = next(content for kind, content in answer(initial_copy, "send", SEND) if kind == OBJECT)
    assert json.loads(announced)["bytes"] == len(STREAM)


def flip(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def replace_by_symlink(part: Path) -> None:
    part.rename(part.with_name("other"))
    part.symlink_to(part.with_name("other"))


def replace_by_pipe(part: Path) -> None:
    part.unlink()
    os.mkfifo(part)


@pytest.mark.parametrize(
    "harm",
    [
        flip,
        lambda part: os.truncate(part, 10),
        lambda part: part.write_bytes(part.read_bytes() + b"\0"),
        lambda part: part.unlink(),
        replace_by_symlink,
        replace_by_pipe,
    ],
    ids=["one bit", "shorter", "longer", "missing", "a symlink", "a pipe"],
)
@pytest.mark.parametrize("number", [1, 3])
def test_a_part_that_is_not_what_was_written_ends_the_receiving_with_its_name(
    initial_copy: Path, harm: Callable[[Path], object], number: int
) -> None:
    """The kernel would receive a damaged stream as a whole backup."""
    part = part_file(initial_copy / "web1", number)
    harm(part)
    with pytest.raises(InitialCopyDamaged) as refused:
        answer(initial_copy, "send", SEND)
    assert str(part) in refused.value.message


@pytest.mark.parametrize(
    "asked",
    [{**SEND, "uuid": "3" * 36}, {**SEND, "parent": UUID}, {**SEND, "host": "../web1"}, {**SEND, "host": ".."}],
    ids=["another backup", "a difference", "a path", "the folder above"],
)
def test_only_the_backups_of_the_seed_are_sent(initial_copy: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(InitialCopyDamaged):
        answer(initial_copy, "send", asked)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 1}', '{"format": 2}', '{"format": 1, "listed": {"backups": []}, "announced": {}, "parts": []}'],
)
def test_a_host_whose_seed_is_not_understood_is_named_and_costs_no_other(initial_copy: Path, text: str) -> None:
    (initial_copy / "web2").mkdir()
    (initial_copy / "web2" / "seed.json").write_text(text)
    (initial_copy / "web3").mkdir()  # was not written to its end
    assert sorted(unusable_hosts(initial_copy)) == ["web2", "web3"]
    assert [json.loads(content)["host"] for _, content in answer(initial_copy, "list")] == ["web1"]
    with pytest.raises(InitialCopyDamaged):
        answer(initial_copy, "send", {"host": "web2", "uuid": UUID})


def test_a_folder_that_is_no_seed_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(InitialCopyDamaged, match="is not an initial copy") as refused:
        InitialCopySender(tmp_path, 1)
    assert "`backupd replicate --seed-to`" in (refused.value.hint or "")
    (tmp_path / "seed.json").write_text('{"format": 1, "pool": 5}')
    with pytest.raises(InitialCopyDamaged, match="the UUID of the pool is missing"):
        InitialCopySender(tmp_path, 1)
    (tmp_path / "seed.json").write_text('{"format": 2, "pool": "x"}')
    with pytest.raises(InitialCopyDamaged, match="newer btrkeep"):
        read_description(tmp_path)
    (tmp_path / "seed.json").unlink()
    os.mkfifo(tmp_path / "seed.json")
    with pytest.raises(InitialCopyDamaged, match="not a plain file"):
        read_description(tmp_path)
