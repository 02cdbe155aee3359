"""The log of `checksums`: many records are not rewritten for a few new ones."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from backupd.repo.checksums import CHECKSUMS, CHECKSUMS_LOG, Checksums, Key, ReadBefore, key_of

MANY = 60_000
NOW = 1_700_000_000_000_000


def made_sums(first: int, number: int, at: int = NOW) -> dict[Key, ReadBefore]:
    return {
        key_of(ino, ino * 7, ino * 3): ReadBefore(at, False, sha256(b"%d" % ino).digest()) for ino in range(first, first + number)
    }


def write(folder: Path, by_name: Mapping[Key, ReadBefore]) -> None:
    with Checksums(folder) as checksums:
        checksums.write(by_name, NOW)


def missing(folder: Path, by_name: Mapping[Key, ReadBefore]) -> int:
    with Checksums(folder) as checksums:
        return sum(checksums.find(key) != read_before for key, read_before in by_name.items())


@pytest.fixture
def large(tmp_path: Path) -> Path:
    write(tmp_path, made_sums(0, MANY))
    assert not (tmp_path / CHECKSUMS_LOG).exists()
    return tmp_path


@pytest.mark.slow
def test_a_few_new_checksums_do_not_write_all_others_again(large: Path) -> None:
    before = (large / CHECKSUMS).stat()
    for night in range(3):
        write(large, made_sums(MANY + night * 100, 100))
    newer = made_sums(5, 10, NOW + 1)
    write(large, newer)
    assert (large / CHECKSUMS).stat().st_ino == before.st_ino
    assert (large / CHECKSUMS_LOG).stat().st_size == 310 * 72
    assert missing(large, made_sums(0, MANY + 300) | newer) == 0


@pytest.mark.slow
def test_a_long_log_becomes_part_of_the_file(large: Path) -> None:
    write(large, made_sums(MANY, 100))
    write(large, made_sums(2 * MANY, 200_000))
    assert not (large / CHECKSUMS_LOG).exists()
    assert (large / CHECKSUMS).stat().st_size == (1 + MANY + 100 + 200_000) * 72
    assert missing(large, made_sums(MANY - 5, 105)) == 0


def test_half_a_record_hides_none_that_follows(large: Path) -> None:
    write(large, made_sums(MANY, 3))
    log = large / CHECKSUMS_LOG
    log.write_bytes(log.read_bytes()[:-30])
    write(large, made_sums(MANY + 10, 3))
    assert missing(large, made_sums(MANY, 2) | made_sums(MANY + 10, 3)) == 0
    assert missing(large, made_sums(MANY + 2, 1)) == 1


def test_a_checksum_record_changed_on_disk_is_ignored_and_the_others_are_read(large: Path) -> None:
    write(large, made_sums(MANY, 3))
    log = large / CHECKSUMS_LOG
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    assert missing(large, made_sums(MANY, 3)) == 1


def test_a_checksum_log_without_its_file_is_ignored(large: Path) -> None:
    write(large, made_sums(MANY, 3))
    (large / CHECKSUMS).unlink()
    assert missing(large, made_sums(MANY, 3)) == 3
    write(large, made_sums(1, 1))
    assert not (large / CHECKSUMS_LOG).exists()


@pytest.mark.slow
def test_a_checksum_log_left_by_a_kill_after_its_merge_changes_nothing(large: Path) -> None:
    write(large, made_sums(MANY, 3))
    log = (large / CHECKSUMS_LOG).read_bytes()
    write(large, made_sums(2 * MANY, 200_000))
    (large / CHECKSUMS_LOG).write_bytes(log)
    write(large, made_sums(MANY + 1, 1, NOW + 5))
    assert missing(large, made_sums(MANY, 1) | made_sums(MANY + 1, 1, NOW + 5) | made_sums(MANY + 2, 1)) == 0
