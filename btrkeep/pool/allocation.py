"""Reads how much of a btrfs is allocated, used and free, by type of block group and by device, and its devices' error counters.

All of it comes from ioctls that read the kernel's memory: no tree is searched, no disk has to spin up. Layouts:
include/uapi/linux/btrfs.h. SPACE_INFO, DEV_INFO and GET_DEV_STATS need no privilege.
"""

import contextlib
import errno
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import btrfs
from btrfs import ctree, ioctl

from btrkeep.pool.marker import SYSFS
from btrkeep.pool.space_by_profile import PROFILES, Room, data_that_fits, space_for_chunks
from btrkeep.pool.subvolume import opened

_TYPES = {
    ctree.BLOCK_GROUP_DATA: "data",
    ctree.BLOCK_GROUP_SYSTEM: "system",
    ctree.BLOCK_GROUP_METADATA: "metadata",
    ctree.BLOCK_GROUP_DATA | ctree.BLOCK_GROUP_METADATA: "mixed",
}
_PROFILES = {  # with the device bytes used by a byte of data; None: depends on the number of devices of a chunk
    0: ("single", 1.0),
    ctree.BLOCK_GROUP_RAID0: ("raid0", 1.0),
    ctree.BLOCK_GROUP_RAID1: ("raid1", 2.0),
    ctree.BLOCK_GROUP_DUP: ("dup", 2.0),
    ctree.BLOCK_GROUP_RAID10: ("raid10", 2.0),
    ctree.BLOCK_GROUP_RAID1C3: ("raid1c3", 3.0),
    ctree.BLOCK_GROUP_RAID1C4: ("raid1c4", 4.0),
    ctree.BLOCK_GROUP_RAID5: ("raid5", None),
    ctree.BLOCK_GROUP_RAID6: ("raid6", None),
}

_ROUNDED = 16 << 20  # of each device: the smallest chunk
_RESERVED = 1 << 20  # at the beginning of each device: BTRFS_DEVICE_RANGE_RESERVED


@dataclass(frozen=True, slots=True)
class Space:
    """All block groups of one type and profile. `total` and `used`: bytes of files; `factor`: bytes of the devices for each of
    them, for raid5 and raid6 the average.
    """

    type: str
    profile: str
    total: int
    used: int
    factor: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device of a btrfs."""

    devid: int
    """Its number."""
    size: int
    """Bytes."""
    allocated: int
    """Bytes that belong to chunks."""
    errors: tuple[int, ...] | None
    """The counters, in the order of DEVICE_ERRORS; None: the kernel reports none, as for a missing device."""
    present: bool = True
    """False if the filesystem is mounted without it."""
    path: str = ""
    """The kernel's name of the device, which may be that of another one after a reboot."""
    uuid: str = ""
    """The filesystem's UUID of the device."""

    @property
    def unallocated(self) -> int:
        """Returns the bytes that new chunks may use: not the first MiB, and none of a missing device."""
        return max(0, self.size - self.allocated - _RESERVED) if self.present else 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation at one time. Totals are raw bytes of the devices: data stored twice counts twice, so that all three can be
    compared.
    """

    spaces: tuple[Space, ...]
    """By type and profile."""
    devices: tuple[DeviceUse, ...]
    """The devices."""

    @property
    def size(self) -> int:
        """Returns the size of all devices, without the part of unequal devices that chunks with the profile of data cannot use."""
        size = sum(device.size for device in self.devices)
        if self._is_unknown:
            return size
        usable = space_for_chunks(self.data_profile, [device.size for device in self.devices])
        return size if size - usable <= _ROUNDED * len(self.devices) else max(usable, self.allocated)

    @property
    def allocated(self) -> int:
        """Bytes that belong to chunks."""
        return sum(device.allocated for device in self.devices)

    @property
    def used(self) -> int:
        """Used bytes of these."""
        return sum(round(space.used * space.factor) for space in self.spaces)

    @property
    def data_profile(self) -> str:
        """Returns the profile of data, "" if there is no data or if there are several, as during a conversion."""
        profiles = {space.profile for space in self.spaces if space.type in ("data", "mixed")}
        return profiles.pop() if len(profiles) == 1 else ""

    @property
    def capacity(self) -> int | None:
        """Returns the bytes of data that would fit on its devices if everything was data; None if unknown, as with a missing
        device.

        Chunks are not moved: a device added to a full mirror cannot be used at all before a balance.
        """
        new = self.new_data
        if new is None:
            return None
        factor = max(space.factor for space in self.spaces if space.type in ("data", "mixed"))
        empty = data_that_fits(self.data_profile, [device.size - _RESERVED for device in self.devices])
        return min(empty, round(self.allocated / factor) + new)

    @property
    def new_data(self) -> int | None:
        """Bytes of data that fit into new chunks; None if unknown, as with a missing device."""
        return None if self._is_unknown else data_that_fits(self.data_profile, [device.unallocated for device in self.devices])

    @property
    def _is_unknown(self) -> bool:
        return self.data_profile not in PROFILES or not all(device.present for device in self.devices)


def read_allocation(path: Path) -> Allocation:
    """Reads the allocation of the btrfs of the folder `path`. Raises OSError."""
    with opened(path.resolve()) as fd:
        spaces = [space for space in ioctl.space_info(fd) if not space.flags & ctree.SPACE_INFO_GLOBAL_RSV]
        devices = tuple(_devices(fd))
    return Allocation(_spaces([(space.flags, space.total_bytes, space.used_bytes) for space in spaces], devices), devices)


_REDUNDANT = frozenset({"raid1", "raid10", "raid1c3", "raid1c4", "raid5", "raid6"})
"""Profiles that lose no data if one device fails."""


def may_have_lost_data(before: Allocation, after: Allocation) -> bool:
    """Returns True if data written and synced between the two readings may be lost, by the devices' counters of failed writes.

    The kernel reports a failed write of compressed data that came as it is (BTRFS_IOC_ENCODED_WRITE, as `btrfs receive` does) to no
    fsync and no syncfs: the file has a hole there (seen with Linux 6.18).
    """
    written = {device.devid: device.errors[0] if device.errors else 0 for device in before.devices}
    failing = [device for device in after.devices if device.errors is None or device.errors[0] > written.get(device.devid, 0)]
    return len(failing) > (after.data_profile in _REDUNDANT)


def _devices(fd: int) -> list[DeviceUse]:
    device_uses = []
    for devid in range(1, ioctl.fs_info(fd).max_id + 1):
        try:
            info = ioctl.dev_info(fd, devid)
        except OSError as error:
            if error.errno == errno.ENODEV:  # the device was removed
                continue
            raise
        present, uuid = bool(info.path), str(info.uuid)
        device_uses.append(DeviceUse(devid, info.total_bytes, info.bytes_used, _errors(fd, devid), present, info.path, uuid))
    return device_uses


def _errors(fd: int, devid: int) -> tuple[int, ...] | None:
    try:
        stats = ioctl.dev_stats(fd, devid)
    except OSError as error:
        if error.errno == errno.ENODEV:  # missing, or just removed
            return None
        raise
    return (stats.write_errs, stats.read_errs, stats.flush_errs, stats.corruption_errs, stats.generation_errs)


def _spaces(sums: list[tuple[int, int, int]], devices: tuple[DeviceUse, ...]) -> tuple[Space, ...]:
    """Returns the types of block groups; raid5 and raid6 share the allocated bytes of the devices that the others do not use."""
    profiles = [(type_of(flags), *_PROFILES.get(flags & ctree.BLOCK_GROUP_PROFILE_MASK, ("unknown", 1.0))) for flags, _, _ in sums]
    plain = sum(total * factor for (_, total, _), (_, _, factor) in zip(sums, profiles, strict=True) if factor)
    striped = sum(total for (_, total, _), (_, _, factor) in zip(sums, profiles, strict=True) if not factor)
    average = max((sum(device.allocated for device in devices) - plain) / striped, 1.0) if striped else 1.0
    return tuple(
        Space(type_, profile, total, used, factor or average)
        for (_, total, used), (type_, profile, factor) in zip(sums, profiles, strict=True)
    )


def profile_of(flags: int) -> str:
    """Returns the name of the profile in the flags of a chunk or a block group."""
    return _PROFILES.get(flags & ctree.BLOCK_GROUP_PROFILE_MASK, ("unknown", 1.0))[0]


def type_of(flags: int) -> str:
    """Returns the name of the type in the flags of a chunk or a block group."""
    return _TYPES.get(flags & ctree.BLOCK_GROUP_TYPE_MASK, "unknown")


_BY_KERNEL = frozenset({"single", "dup", "raid0"})
"""Profiles for which statfs returns exactly what fits. For raid1 on 900, 400 and 400 MB it returns 400: it mirrors small devices
first, the allocator large ones.
"""


def read_room(path: Path) -> Room:
    """Returns the free space of the btrfs of `path`. Raises OSError.

    The total available is the kernel's own estimate (statfs, which is zero if metadata has no free space left), or what its
    allocator can place if that is different, minus what the next commit will use: dirty data in memory and data written since the
    last one, which may be gigabytes. How much of it is free in block groups comes from the space info.
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
    """Returns how much data fits in all and how much still fits, from the numbers of the kernel and of the allocator.

    The kernel divides the size of all devices by the number of copies, whether devices of unequal size can store them or not.
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
    """Returns the bytes of data whose space is promised (may_use) or reserved (reserved), but not yet committed.

    0 if sysfs does not report them: in mixed block groups metadata is included.
    """
    data = SYSFS / str(filesystem) / "allocation" / "data"
    with contextlib.suppress(OSError):
        return sum(int((data / f"bytes_{state}").read_text()) for state in ("may_use", "reserved"))
    return 0
