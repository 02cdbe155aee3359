"""Shared data of a btrfs, as btrfs-progs counts it."""

from dataclasses import dataclass
from pathlib import Path

from tests.beds.work import work


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes below a path: all data of its files, data without other references, and data with other references."""

    total: int
    exclusive: int
    set_shared: int


def shares(path: Path) -> Shares:
    """The result of `btrfs filesystem du -s --raw` for `path`, after a sync: unwritten data has no extents."""
    work("btrfs", "filesystem", "sync", path)
    last = work("btrfs", "filesystem", "du", "-s", "--raw", path).stdout.splitlines()[-1]
    total, exclusive, set_shared = (int(field) for field in last.split()[:3])
    return Shares(total, exclusive, set_shared)


def exclusive_bytes(path: Path) -> int:
    """Returns the bytes of data that would be free if `path` was deleted."""
    return shares(path).exclusive
