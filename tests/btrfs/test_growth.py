"""The growth of a subvolume since a generation, compared with find and stat."""

import os
from pathlib import Path

import pytest

from btrkeep.pool.subvolume import describe, opened
from btrkeep.treescan import SubvolumeGrowth, growth
from tests.beds import work


def grown(subvolume: Path, buffer_size: int = 1 << 16) -> SubvolumeGrowth:
    """Returns the new data in it since its creation."""
    work("btrfs", "filesystem", "sync", subvolume)
    result = describe(subvolume)
    assert result
    with opened(subvolume) as fd:
        return growth(fd, result.created - 1, buffer_size=buffer_size)


@pytest.fixture
def base(shared_btrfs: Path) -> Path:
    base = shared_btrfs / "base"
    work("btrfs", "-q", "subvolume", "create", base)
    for number in range(1000):
        (base / f"{number}").write_bytes(b"x" * number)  # most of them are inline in the metadata
    (base / "large").write_bytes(os.urandom(1 << 20))
    os.link(base / "large", base / "link")
    (base / "folder").mkdir()
    return base


def test_all_names_and_all_data_of_a_new_subvolume_are_new(base: Path) -> None:
    subvolume_growth = grown(base)
    assert subvolume_growth == grown(base, 1 << 20)
    assert subvolume_growth.names == len(work("find", base, "-mindepth", "1").stdout.splitlines()) == 1003
    inline = [number for number in range(1000) if number <= 2048]
    assert sum(inline) + (1 << 20) <= subvolume_growth.bytes < sum(inline) + (1 << 20) + 1000 * 4096


def test_of_a_snapshot_only_what_was_written_since_is_new(base: Path) -> None:
    work("btrfs", "filesystem", "sync", base)
    snapshot = base.parent / "snapshot"
    work("btrfs", "-q", "subvolume", "snapshot", base, snapshot)
    assert grown(snapshot) == SubvolumeGrowth(0, 0)
    os.utime(snapshot / "large")
    work("cp", "--reflink=always", snapshot / "large", snapshot / "clone")  # a name, and no data
    assert grown(snapshot) == SubvolumeGrowth(1, 0)
    with (snapshot / "large").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    os.link(snapshot / "large", snapshot / "other")
    (snapshot / "1").unlink()
    assert grown(snapshot) == SubvolumeGrowth(2, 8192)
    with (snapshot / "hole").open("wb") as file:
        file.truncate(1 << 62)
    os.setxattr(snapshot / "hole", "user.large", b"x" * 10_000)
    assert grown(snapshot) == SubvolumeGrowth(3, 8192 + 10_000 + len("user.large"))


def crc32c_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


def one_checksum(number: int) -> tuple[bytes, bytes]:
    """Returns two names of attributes that btrfs stores in one item, because their crc32c, with btrfs's start value, is
    the same.
    """
    table, first = crc32c_table(), b"user.a%d" % number
    back = {entry >> 24: at for at, entry in enumerate(table)}

    def checksum(name: bytes) -> int:
        count = 0xFFFFFFFE
        for byte in name:
            count = table[(count ^ byte) & 255] ^ count >> 8
        return count

    target = checksum(first)
    for attempt in range(1000):
        name, wanted, steps = b"user.b%d_%d" % (number, attempt), target, []
        for _ in range(4):
            steps.append(back[wanted >> 24])
            wanted = (wanted ^ table[steps[-1]]) << 8 & 0xFFFFFFFF
        end, state = b"", checksum(name)
        for step in reversed(steps):
            end += bytes([(step ^ state) & 255])
            state = table[(state ^ end[-1]) & 255] ^ state >> 8
        if state == target and not {0, 10} & set(end):
            return first, name + end
    raise AssertionError("no such names")


def test_attributes_that_share_an_item_all_count(base: Path, tmp_path: Path) -> None:
    """Names of one checksum, which any host can choose; rsync brings them."""
    before, size = grown(base).bytes, 0
    source = tmp_path / "many"
    source.touch()
    for number in range(5):
        for name, value in zip(one_checksum(number), (b"", b"x" * 200), strict=True):
            os.setxattr(source, name, value)
            size += len(name) + len(value)
    work("rsync", "-aX", source, f"{base}/")
    assert len(os.listxattr(base / "many")) == 10
    assert grown(base).bytes - before == size


def test_room_that_is_only_reserved_counts(base: Path) -> None:
    before = grown(base).bytes
    with (base / "reserved").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 32 << 20)
    assert grown(base).bytes - before == 32 << 20
