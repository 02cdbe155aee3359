"""Reads how much room a btrfs has."""

import contextlib
import os
import uuid
from pathlib import Path

import btrfs

from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.model import Room
from btrkeep.pool.mounts import mount_of
from btrkeep.pool.profiles import PROFILES

_BY_KERNEL = frozenset({"single", "dup", "raid0"})
"""Profiles of which statfs counts exactly what fits. Of raid1 on 900, 400 and 400 MB it counts 400: it mirrors small devices first,
the allocator large ones.
"""


def read_room(path: Path) -> Room:
    """Returns the room of the btrfs of `path`. Raises OSError.

    The total available is the kernel's own estimate (statfs, which drops to zero when metadata has no room left), or what its
    allocator can place where that is something else, less what the next commit will use: dirty data in memory and data written
    since the last one, which may be gigabytes. How much of it is free in block groups comes from the space info.
    """
    with btrfs.FileSystem(str(path)) as filesystem:
        spaces = filesystem.space_info()
        waiting = _waiting(filesystem.fsid)
    counted, allocation = os.statvfs(path), read_allocation(path if path.is_dir() else path.resolve().parent)
    free = sum(space.total_bytes - space.used_bytes for space in spaces if space.type & btrfs.BLOCK_GROUP_DATA)
    total, available = _capacity(counted.f_blocks * counted.f_frsize, counted.f_bavail * counted.f_frsize, free, allocation)
    available = max(0, available - waiting)
    free = max(0, free - waiting)
    metadata = sum(space.total_bytes - space.used_bytes for space in spaces if space.type & btrfs.BLOCK_GROUP_METADATA)
    reserve = sum(space.total_bytes for space in spaces if space.type & btrfs.SPACE_INFO_GLOBAL_RSV)
    return Room(
        total=total,
        free=min(free, available),
        unallocated=max(0, available - free),
        metadata_free=max(0, metadata - reserve),
    )


def _capacity(total: int, available: int, free: int, allocation: Allocation) -> tuple[int, int]:
    """Returns how much data fits in all and still, of the kernel's numbers and the allocator's.

    The kernel divides the size of all devices by the number of copies, whether devices of unequal size can hold them or not.
    """
    capacity, new_data = allocation.capacity, allocation.new_data
    if capacity is None or new_data is None:
        return total, available
    profile = allocation.data_profile
    is_without_choice = PROFILES[profile].least == len(allocation.devices) and not PROFILES[profile].striped
    if available and not (profile in _BY_KERNEL or is_without_choice):
        available = free + new_data
    return min(total, capacity), available


def _waiting(filesystem: uuid.UUID) -> int:
    """Bytes of data that were promised room (may_use) or given it (reserved) and are not committed.

    0 where sysfs does not say: of mixed block groups it counts metadata along.
    """
    data = Path("/sys/fs/btrfs") / str(filesystem) / "allocation" / "data"
    with contextlib.suppress(OSError):
        return sum(int((data / f"bytes_{state}").read_text()) for state in ("may_use", "reserved"))
    return 0


def statfs_type(path: Path) -> str:
    """The filesystem's name of the mount that holds `path`. Raises OSError."""
    return mount_of(path).filesystem


def mount_options(path: Path) -> frozenset[str]:
    """The options of the mount and of the filesystem that hold `path`: ro, noatime, nossd, ... Raises OSError."""
    mount = mount_of(path)
    return frozenset((*mount.mount_options, *mount.super_options))
