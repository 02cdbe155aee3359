"""Filesystems of every shape, with fragmented space, and a moment when nothing in them changes."""

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import btrfs

from btrkeep.treescan.block_groups import chunks
from tests.beds.work import work

SECTOR = 4096
MIB = 1 << 20


@dataclass(frozen=True)
class Shape:
    """How a filesystem is made, and what must be visible in it afterwards, because otherwise the test shows nothing."""

    devices: int = 1
    mkfs: tuple[str, ...] = ()
    options: str = ""
    size: str = "1100M"
    profile: int = 0
    nodesize: int = 16384


RAID = {"RAID0": 8, "RAID1": 16, "DUP": 32, "RAID10": 64, "RAID5": 128, "RAID6": 256, "RAID1C3": 512}
SHAPES = {
    "single": Shape(mkfs=("-d", "single", "-m", "single")),
    "dup": Shape(mkfs=("-m", "dup")),
    "raid1": Shape(2, ("-d", "raid1", "-m", "raid1"), profile=RAID["RAID1"]),
    "raid10": Shape(4, ("-d", "raid10", "-m", "raid10"), size="512M", profile=RAID["RAID10"]),
    "raid5": Shape(3, ("-d", "raid5", "-m", "raid1"), size="512M", profile=RAID["RAID5"]),
    "raid1c3": Shape(3, ("-d", "raid1c3", "-m", "raid1c3"), profile=RAID["RAID1C3"]),
    "mixed": Shape(mkfs=("--mixed",), size="256M", nodesize=4096),
    "nodes of 4 KiB": Shape(mkfs=("-n", "4k"), nodesize=4096),
    "nodes of 64 KiB": Shape(mkfs=("-n", "64k"), nodesize=65536),
    "no skinny metadata": Shape(mkfs=("-O", "^skinny-metadata")),
    "no free space tree": Shape(options="clear_cache,nospace_cache"),
    "space cache of version 1": Shape(options="clear_cache,space_cache=v1"),
}


def fragment(point: Path, seed: int = 7) -> None:
    """Files take turns at the space until it is full, and some of them are deleted: the most fragmented parts first, then coarser
    ones.

    So some block groups are bitmaps, some are not, some are nearly full. Before that small files, reflinks, and a snapshot whose
    source changes, bring references of every kind.
    """
    volume = point / "volume"
    work("btrfs", "-q", "subvolume", "create", volume)
    for number in range(250):
        (volume / f"file{number:03}").write_bytes(os.urandom(300 if number % 3 else 9000))
    for number in range(3):
        work("cp", "--reflink=always", volume / "file000", volume / f"copy{number}")
    work("btrfs", "-q", "subvolume", "snapshot", "-r", volume, point / "snapshot")
    for number in range(0, 250, 40):
        (volume / f"file{number:03}").write_bytes(os.urandom(9000))
    work("btrfs", "filesystem", "sync", point)
    rng = random.Random(seed)
    for name, largest, total in (("fine", 9, 90 * MIB), ("middle", 300, 60 * MIB), ("coarse", 3000, 0)):
        take_turns(point, name, rng.choices(range(1, largest), k=20), total)
    work("btrfs", "filesystem", "sync", point)


def take_turns(point: Path, name: str, sizes: list[int], total: int) -> None:
    """Writes three files in turn; with a `total` of 0, until the filesystem is full. One of them is removed, with its pieces."""
    fds = [os.open(point / f"{name}{number}", os.O_CREAT | os.O_RDWR) for number in range(3)]
    try:
        ends = [0, 0, 0]
        for turn in range(10**6):
            which, length = turn % 3, sizes[turn % len(sizes)] * SECTOR
            if total and sum(ends) >= total:
                break
            os.posix_fallocate(fds[which], ends[which], length)
            ends[which] += length
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        for fd in fds:
            os.close(fd)
    (point / f"{name}1").unlink()


@dataclass
class Read:
    """A filesystem, and its state read while it did not change."""

    point: Path
    fd: int
    chunk: Any
    theirs: Any = field(repr=False)

    @property
    def uuid(self) -> str:
        return str(self.theirs.fsid)


@contextmanager
def settled(point: Path) -> Iterator[Read]:
    """Waits until the state is stable: the kernel removes empty block groups at any time."""
    with btrfs.FileSystem(str(point)) as theirs:
        before: list[Any] = []
        for _ in range(50):
            work("btrfs", "filesystem", "sync", point)
            now = [generation(theirs), [(group.vaddr, group.used) for group in theirs.block_groups()]]
            if now == before:
                break
            before = now
            time.sleep(0.1)
        yield Read(point, theirs.fd, chunks(theirs.fd), theirs)
        assert generation(theirs) == before[0], "the filesystem changed while it was read"


def generation(theirs: Any) -> int:
    return int(next(iter(theirs.subvolumes(min_id=2, max_id=2))).generation)


def rows(*columns: Any) -> list[Any]:
    return list(zip(*(column.tolist() for column in columns), strict=True))
