"""How much was written to the devices of a btrfs: data, metadata and superblocks, every copy of them."""

from pathlib import Path

from btrkeep.pool.marker import filesystem_uuid

_SECTOR = 512  # of the kernel's statistics, whatever the device's own is
_SECTORS_WRITTEN = 6


def written_bytes(path: Path) -> int:
    """Bytes written to all devices of the filesystem of `path` since each came up. `path` is a folder. Raises OSError.

    From /sys/fs/btrfs/UUID/devices/*/stat (Documentation/block/stat.rst), which partitions and loop devices have as well. Only a
    difference of two looks has a meaning: it counts everybody's writes, and on partitions those of the partition alone. Discards
    are no writes. A missing device has no statistics.
    """
    devices = Path("/sys/fs/btrfs") / filesystem_uuid(path) / "devices"
    return sum(_sectors_written(device) for device in devices.iterdir()) * _SECTOR


def _sectors_written(device: Path) -> int:
    try:
        return int((device / "stat").read_text().split()[_SECTORS_WRITTEN])
    except FileNotFoundError:  # removed from the filesystem between the two looks
        return 0
