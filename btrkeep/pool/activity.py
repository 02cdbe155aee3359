"""Reads the load of a btrfs and its devices: their counters, pressure stall information, and the kernel's own operations.

The counters are those of /proc/diskstats, read from /sys/fs/btrfs/UUID/devices (Documentation/block/stat.rst), which also exist for
partitions and loop devices. They start at 0 when a device appears, so only differences are meaningful, and only within one boot and
for the same device: therefore the device's sequence number (diskseq, Linux 5.15) is in its key.
"""

import errno
import time
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from struct import Struct

from btrkeep.descriptors import iowr
from btrkeep.pool.balance_ioctl import exclusive_operation
from btrkeep.pool.marker import SYSFS, filesystem_uuid
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import PRESSURE, boot_id, pressure_totals

_SECTOR = 512  # bytes: the unit of the kernel's statistics, regardless of the device's sector size
_READS, _SECTORS_READ, _WRITES, _SECTORS_WRITTEN, _BUSY = 0, 2, 4, 6, 9
_SCRUB = Struct("=QQQQ992x")  # btrfs_ioctl_scrub_args: devid, start, end, flags; progress and unused
_SCRUB_PROGRESS = iowr(29, _SCRUB.size)


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative counters. `boot`: id of the boot, `clock`: seconds since it, including suspended time.

    `devices`: by name and sequence number ("sda1:9"): reads, bytes read, writes, bytes written, milliseconds busy. `pressure`:
    microseconds that processes waited ("io some"), empty on a kernel without pressure stall information.
    """

    boot: str
    clock: float
    devices: dict[str, tuple[int, ...]]
    pressure: dict[str, int]


def read_counters(path: Path) -> Counters:
    """Reads the counters of the btrfs of the folder `path`. A missing device has none. Raises OSError."""
    folder = SYSFS / filesystem_uuid(path) / "devices"
    counters = (_device(device) for device in folder.iterdir())
    return Counters(boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), dict(filter(None, counters)), _pressure())


def _device(device: Path) -> tuple[str, tuple[int, ...]] | None:
    try:
        fields = [int(field) for field in (device / "stat").read_text().split()]
    except (FileNotFoundError, NotADirectoryError):  # removed from the filesystem between the two reads
        return None
    counters = (fields[_READS], fields[_SECTORS_READ] * _SECTOR, fields[_WRITES], fields[_SECTORS_WRITTEN] * _SECTOR, fields[_BUSY])
    return f"{device.name}:{_sequence_number(device)}", counters


def _sequence_number(device: Path) -> str:
    """Returns the sequence number of the disk, also for a partition, whose folder is in that of the disk. "" before Linux 5.15."""
    real = device.resolve()
    for folder in (real, real.parent):
        try:
            return (folder / "diskseq").read_text().strip()
        except FileNotFoundError:
            continue
    return ""


def _pressure() -> dict[str, int]:
    pressure: dict[str, int] = {}
    for name in ("cpu", "io", "memory"):
        try:
            totals = pressure_totals(PRESSURE / name)
        except OSError:  # not built in, or switched off (psi=0: EOPNOTSUPP)
            continue
        pressure |= {f"{name} {kind}": total for kind, total in totals.items()}
    pressure.pop("cpu full", None)  # it has no meaning for a whole machine
    return pressure


def written_bytes(path: Path) -> int:
    """Returns the bytes written to all devices of the filesystem of `path` since each appeared. `path`: a folder. Raises OSError.

    From /sys/fs/btrfs/UUID/devices/*/stat (Documentation/block/stat.rst), which also exists for partitions and loop devices. Only a
    difference of two readings has a meaning: it counts the writes of all programs, and for partitions only those of the partition.
    Discards are not counted. A missing device has no statistics.
    """
    folder = SYSFS / filesystem_uuid(path) / "devices"
    return sum(counters[1][3] for device in folder.iterdir() if (counters := _device(device)))


def read_activity(path: Path, devids: list[int]) -> tuple[str, ...]:
    """Returns the running operations other than file I/O: "scrub", or an exclusive operation ("balance", ...)."""
    operation = exclusive_operation(path)
    operations = () if operation == "none" else (operation,)
    with opened(path.resolve()) as fd:
        return (*operations, "scrub") if any(_scrubs(fd, devid) for devid in devids) else operations


def _scrubs(fd: int, devid: int) -> bool:
    try:
        ioctl(fd, _SCRUB_PROGRESS, bytearray(_SCRUB.pack(devid, 0, 0, 0)))
    except OSError as error:
        if error.errno in (
            errno.ENOTCONN,
            errno.ENODEV,
            errno.EPERM,
            errno.EACCES,
        ):  # no scrub is running; no such device; not permitted
            return False
        raise
    return True
