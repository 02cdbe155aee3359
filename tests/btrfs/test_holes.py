"""Holes in files that rsync wrote without holes, on a real btrfs. Holes are checked with find, filefrag, cmp and btrfs itself."""

import os
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.repo.holes import punch, punch_written
from btrkeep.errors import PoolUnusable
from btrkeep.process.progress import Cancellation
from tests.beds import differences, exclusive_bytes, manifest, shares, work
from tests.beds.cancelling import CancelledWhen

RSYNC = (
    *("rsync", "-aHAX", "--numeric-ids", "--relative", "--inplace", "--no-whole-file"),
    *("--delete-delay", "--delete-excluded", "--modify-window=-1"),
)
KIB, MIB = 1 << 10, 1 << 20


def pull(fakessh: Path, source: Path, backup: Path, *options: str) -> None:
    work(*RSYNC, *options, "-e", shlex.quote(str(fakessh)), f"host:{source}/./", backup / "data/")


def snapshot(backup: Path, name: str = ".working") -> Path:
    work("btrfs", "-q", "subvolume", "snapshot", backup, backup.with_name(name))
    return backup.with_name(name)


@pytest.fixture
def source(shared_btrfs: Path) -> Path:
    source = shared_btrfs / "source"
    source.mkdir()
    (source / "file").write_bytes(b"there from the first night on")
    return source


@pytest.fixture
def working(shared_btrfs: Path, source: Path, fakessh: Path) -> Path:
    """The second night: a writable snapshot of a complete backup."""
    first = shared_btrfs / "first"
    work("btrfs", "-q", "subvolume", "create", first)
    pull(fakessh, source, first, "--sparse")
    return snapshot(first)


def write(path: Path, size: int, *places: int, length: int = MIB) -> None:
    """Writes a sparse file with random data in some places."""
    with path.open("wb") as file:
        file.truncate(size)
        for place in places:
            file.seek(place)
            file.write(os.urandom(min(length, size - place)))


def dense(path: Path, *parts: int | bytes) -> None:
    """Writes a file without holes: a number stands for that many random bytes, bytes for themselves."""
    path.write_bytes(b"".join(part if isinstance(part, bytes) else os.urandom(part) for part in parts))
    work("btrfs", "filesystem", "sync", path.parent)


def allocated(path: Path) -> int:
    """Returns bytes, after a sync: without it, unwritten data counts as written."""
    work("btrfs", "filesystem", "sync", path.parent)
    return int(work("stat", "-c", "%b", path).stdout) * 512


def holes(path: Path) -> list[tuple[int, int]]:
    """Returns (start, end) of the ranges without extents in the output of filefrag, in bytes."""
    numbers, position = [], 0
    for line in work("filefrag", "-s", "-b1", "-v", path).stdout.splitlines():
        if match := re.match(r"\s*\d+:\s*(\d+)\.\.\s*(\d+):", line):
            if int(match[1]) > position:
                numbers.append((position, int(match[1])))
            position = int(match[2]) + 1
    size = path.stat().st_size
    return numbers + ([(position, size)] if position < size else [])


def test_a_sparse_file_that_is_new_in_the_second_night_has_its_holes(source: Path, working: Path, fakessh: Path) -> None:
    write(source / "image", 64 * MIB, 0, 20 * MIB, 40 * MIB + 12 * KIB, 63 * MIB)
    write(source / "hole only", 8 * MIB)
    write(source / "odd end", 5 * MIB + 1234, 0, 5 * MIB - 100 * KIB)
    write(source / "open end", 3 * MIB + 777, 0)
    work("setfacl", "-m", "u:1234:r", source / "image")
    pull(fakessh, source, working)
    assert allocated(working / "data" / "image") == 64 * MIB  # the hazard: it arrived dense
    result = punch(working, [b"image", b"hole only", b"odd end", b"open end", b"file"])
    assert result.files == 4
    work("btrfs", "filesystem", "sync", working)
    assert differences(manifest(source, blocks=True), manifest(working / "data", blocks=True)) == []
    work("btrfs", "filesystem", "sync", source)
    assert shares(working).total == shares(source).total
    itemised = work(*RSYNC, "-n", "-i", "-e", shlex.quote(str(fakessh)), f"host:{source}/./", working / "data/").stdout
    assert itemised == ""  # so the next night does not compare them again


def test_what_is_not_on_disk_yet_gets_its_holes_too(shared_btrfs: Path) -> None:
    (shared_btrfs / "data").mkdir()
    work("btrfs", "filesystem", "sync", shared_btrfs)
    (shared_btrfs / "data" / "file").write_bytes(os.urandom(MIB) + bytes(7 * MIB))
    assert punch(shared_btrfs, [b"file"]).bytes == 7 * MIB
    assert allocated(shared_btrfs / "data" / "file") == MIB


def test_the_room_of_the_zeros_is_free_again(make_btrfs: Callable[..., Path]) -> None:
    """A hole alone frees no space while a block of its extent is in use, as the used space of the filesystem shows."""
    point = make_btrfs(size="1G")
    (point / "data").mkdir()
    before = used(point)
    parts: list[int | bytes] = []
    for _ in range(64):
        parts += [64 * KIB, bytes(960 * KIB)]
    dense(point / "data" / "image", *parts)
    assert used(point) - before == 64 * MIB
    assert punch(point, [b"image"]).bytes == 60 * MIB
    assert used(point) - before == 4 * MIB


def used(point: Path) -> int:
    """Returns the bytes of data on disk."""
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "filesystem", "sync", point)  # extents that the first one freed are free after the next commit
    return number(r"Data, single: total=\d+, used=(\d+)", work("btrfs", "filesystem", "df", "--raw", point).stdout)


def number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match, text
    return int(match[1])


def test_what_is_shared_with_the_base_stays_shared_and_only_changed_zeros_become_holes(shared_btrfs: Path, fakessh: Path) -> None:
    """An image of a virtual machine: many zeros are written data in the base; some of it changed, to data and to zeros."""
    source, first = shared_btrfs / "source", shared_btrfs / "first"
    source.mkdir()
    work("btrfs", "-q", "subvolume", "create", first)
    dense(source / "image", 16 * MIB, bytes(16 * MIB), 16 * MIB)
    pull(fakessh, source, first)
    working = snapshot(first)
    with (source / "image").open("r+b") as image:
        image.seek(4 * MIB)
        image.write(os.urandom(MIB))
        image.seek(40 * MIB)
        image.write(bytes(2 * MIB))
        image.seek(20 * MIB)
        image.write(os.urandom(MIB))
    pull(fakessh, source, working)
    before = shares(working)
    # rsync writes whole blocks of its own size, so a little more than changed
    assert 4 * MIB <= before.exclusive < 4.5 * MIB
    result = punch(working, [b"image"])
    after = shares(working)
    assert result.files == 1
    assert 2 * MIB <= result.bytes < 2.5 * MIB
    assert after.exclusive == before.exclusive - result.bytes
    assert after.set_shared == before.set_shared
    assert work("cmp", source / "image", working / "data" / "image").stdout == ""
    [hole] = holes(working / "data" / "image")
    assert 40 * MIB - 256 * KIB < hole[0] <= 40 * MIB
    assert 42 * MIB <= hole[1] < 42 * MIB + 256 * KIB


def test_a_file_whose_zeros_are_all_shared_is_not_touched(shared_btrfs: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", shared_btrfs / "first")
    (shared_btrfs / "first" / "data").mkdir()
    dense(shared_btrfs / "first" / "data" / "zeros", bytes(4 * MIB))
    working = snapshot(shared_btrfs / "first")
    before = work("stat", "-c", "%z %y %b", working / "data" / "zeros").stdout
    assert punch(working, [b"zeros"]).files == 0
    assert work("stat", "-c", "%z %y %b", working / "data" / "zeros").stdout == before
    assert exclusive_bytes(working) == 0


def test_owner_mode_capabilities_and_times_stay(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    dense(data / "program", 100 * KIB, bytes(MIB), 100 * KIB)
    work("chown", "1234:5678", data / "program")
    work("chmod", "6755", data / "program")
    work("setcap", "cap_net_raw+ep", data / "program")
    work("setfattr", "-n", "user.origin", "-v", "here", data / "program")
    work("touch", "-d", "2001-02-03 04:05:06.789012345", data / "program")
    before = manifest(data)
    assert punch(shared_btrfs, [b"program"]).bytes == MIB
    assert differences(before, manifest(data)) == []


def test_nothing_outside_of_the_backup_is_reached(shared_btrfs: Path) -> None:
    backup, outside = shared_btrfs / "backup", shared_btrfs / "outside"
    (backup / "data").mkdir(parents=True)
    outside.mkdir()
    for folder in (outside, backup):
        dense(folder / "zeros", bytes(MIB))
    (backup / "data" / "folder").symlink_to(outside)
    (backup / "data" / "file").symlink_to(outside / "zeros")
    (backup / "data" / "dots").symlink_to("..")
    names = [b"folder/zeros", b"file", b"dots/zeros", b"../zeros", b"../../outside/zeros", b"folder/../zeros", b".."]
    assert punch(backup, names) == punch(backup, [])
    assert allocated(outside / "zeros") == allocated(backup / "zeros") == MIB


def test_what_is_no_regular_file_or_is_not_there_or_is_small_is_left_out(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    os.mkfifo(data / "fifo")
    os.mknod(data / "tty", 0o020600, os.makedev(5, 0))
    (data / "folder").mkdir()
    (data / "empty").touch()
    dense(data / "small", bytes(32 * KIB))
    names = [b"fifo", b"tty", b"folder", b"folder/", b"empty", b"small", b"gone", b"gone/gone", b"small/x", b"", b"/", b"n" * 300]
    assert punch(shared_btrfs, names).files == 0
    assert punch(shared_btrfs, [b"small"], at_least=32 * KIB).bytes == 32 * KIB


def test_odd_names_and_several_folders_are_dug(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    names = [b"one/a", b"one/b\n", b"two/\xff", b"two/deep/er/c", b"one/c", b"top"]
    for name in names:
        path = data / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        dense(path, bytes(MIB))
    assert punch(shared_btrfs, [b"/" + name for name in names]).files == len(names)
    assert work("find", data, "-type", "f", "-size", "+0", "!", "-size", "0b", "-printf", "%b ").stdout == "0 " * len(names)


def test_compressed_and_preallocated_extents_are_left_alone(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    (data / "compressed").touch()
    work("btrfs", "property", "set", data / "compressed", "compression", "zstd")
    dense(data / "compressed", bytes(4 * MIB))
    work("fallocate", "-l", "4M", data / "preallocated")
    assert "encoded" in work("filefrag", "-v", data / "compressed").stdout
    assert punch(shared_btrfs, [b"compressed", b"preallocated"]).files == 0
    assert allocated(data / "preallocated") == 4 * MIB


def test_a_file_without_checksums_gets_holes_too(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    (data / "nocow").touch()
    work("chattr", "+C", data / "nocow")
    dense(data / "nocow", MIB, bytes(MIB), MIB)
    before = manifest(data)
    assert punch(shared_btrfs, [b"nocow"]).bytes == MIB
    assert differences(before, manifest(data)) == []
    assert holes(data / "nocow") == [(MIB, 2 * MIB)]


def test_short_runs_and_runs_that_are_no_whole_blocks_stay(shared_btrfs: Path) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    dense(data / "program", 64 * KIB, bytes(12 * KIB), 64 * KIB + 100, bytes(18 * KIB), MIB)
    assert punch(shared_btrfs, [b"program"]).files == 0
    assert allocated(data / "program") == (data / "program").stat().st_size // 4096 * 4096 + 4096


def test_a_file_of_thousands_of_extents_is_dug_to_its_end(shared_btrfs: Path) -> None:
    """More extents than one answer of fiemap can have: single blocks that were written in a scattered order."""
    data = shared_btrfs / "data"
    data.mkdir()
    write(data / "image", 48 * MIB)
    places = list(range(0, 48 * MIB, 32 * KIB))
    random.Random(1).shuffle(places)
    with (data / "image").open("r+b") as image:
        for part in range(3):
            for place in places[part::3]:
                image.seek(place)
                image.write(bytes(16 * KIB) if part else os.urandom(16 * KIB))
            os.fsync(image.fileno())
    before = manifest(data)
    assert number(r"(\d+) extents? found", work("filefrag", data / "image").stdout) > 512  # otherwise this test proves nothing
    assert punch(shared_btrfs, [b"image"]).bytes == 2 * 8 * MIB
    assert differences(before, manifest(data)) == []
    assert allocated(data / "image") == 8 * MIB


@pytest.mark.parametrize("seed", range(8))
def test_any_layout_keeps_its_content_and_has_the_holes_that_fallocate_digs(shared_btrfs: Path, seed: int) -> None:
    """Compared with util-linux's `fallocate --dig-holes`, which makes holes of every block of zeros; runs here are long enough for
    both.
    """
    chance = random.Random(seed)
    data = shared_btrfs / "data"
    data.mkdir()
    parts: list[int | bytes] = []
    for _ in range(chance.randint(1, 60)):
        length = chance.randint(4, 300) * 4 * KIB
        parts.append(bytes(length) if chance.random() < chance.choice([0.1, 0.5, 0.9]) else length)
    parts.append(chance.randint(1, 5000))
    dense(data / "ours", *parts)
    work("cp", "--reflink=never", "--sparse=never", data / "ours", data / "peer")
    work("fallocate", "--dig-holes", data / "peer")
    dug = punch(shared_btrfs, [b"ours"])
    work("cmp", data / "ours", data / "peer")
    assert allocated(data / "ours") == allocated(data / "peer")
    assert holes(data / "ours") == holes(data / "peer")
    assert dug.bytes == sum(end - start for start, end in holes(data / "ours"))


def test_a_read_only_backup_is_an_unusable_pool_and_not_a_traceback(shared_btrfs: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", shared_btrfs / "final")
    (shared_btrfs / "final" / "data").mkdir()
    dense(shared_btrfs / "final" / "data" / "zeros", bytes(MIB))
    work("btrfs", "property", "set", "-ts", shared_btrfs / "final", "ro", "true")
    with pytest.raises(PoolUnusable):
        punch(shared_btrfs / "final", [b"zeros"])


def test_the_files_that_were_written_are_found_without_being_named(shared_btrfs: Path) -> None:
    first = shared_btrfs / "first"
    work("btrfs", "-q", "subvolume", "create", first)
    (first / "data" / "folder").mkdir(parents=True)
    for name in ("old", "folder/changed", "renamed"):
        dense(first / "data" / name, bytes(4 * MIB))
    working = snapshot(first)
    data = working / "data"
    with (data / "folder" / "changed").open("r+b") as file:
        file.seek(MIB)
        file.write(bytes(MIB))
    for number in range(300):
        (data / "folder" / f"new{number}\n").write_bytes(bytes(128 * KIB))
    (data / "little").write_bytes(bytes(32 * KIB))
    (data / "renamed").rename(data / "folder" / "other name")
    (working / "beside").write_bytes(bytes(MIB))
    before = manifest(working)
    dug = punch_written(working, Cancellation())
    assert (dug.files, dug.bytes) == (301, 300 * 128 * KIB + MIB)
    assert differences(before, manifest(working)) == []
    assert exclusive_bytes(working) == 32 * KIB + MIB


@pytest.mark.parametrize("pieces", [0, 1, 5, 9, 20])
def test_digging_stops_between_pieces_and_leaves_every_file_as_it_was(shared_btrfs: Path, pieces: int) -> None:
    data = shared_btrfs / "data"
    data.mkdir()
    for name in ("one", "two"):
        dense(data / name, MIB, bytes(8 * MIB), MIB)
        work("setcap", "cap_net_raw+ep", data / name)
    before, asked = manifest(data), iter(range(pieces))
    punch(shared_btrfs, [b"one", b"two"], cancelled=CancelledWhen(lambda: next(asked, None) is None))
    assert next(asked, None) is None
    assert differences(before, manifest(data)) == []
    assert allocated(data / "two") == 10 * MIB
