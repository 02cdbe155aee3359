"""Temporary devices of a pool: what is recorded of them, loop devices on files, and whether a named device is empty.

The record is a file in the state folder, written before each step: a process that was killed leaves a pool with one more device,
and the next one finds out by this file which one that is.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import is_on
from btrkeep.pool.mounts import mount_of
from btrkeep.process.programs import run
from btrkeep.procfs import sysfs_text

RECORD = "temporary-devices.json"
_FORMAT = 1
_FILE = "temporary-device-{number}"
_SYS = Path("/sys/class/block")
_FORGETFUL = ("tmpfs", "ramfs", "overlay")
_PERSISTENT = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs")
_SPARE = 1 << 30  # bytes that stay free where the files are made, or a tenth of them for small ones
_NOTHING_FOUND = 2  # exit status of blkid -p


@dataclass(frozen=True, slots=True)
class TemporaryDevice:
    """`path`: a block device, or a file of ours for a loop device (`is_file`). `size`: bytes of the file, 0 for a device."""

    path: Path
    is_file: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class TemporaryRecord:
    """What is recorded. `highest`: address of the last block group before anything was moved, -1 before the devices are added.

    `is_returning`: the devices are being emptied. `goal`: unallocated bytes that the lasting devices are to have. `round`: how
    often block groups were moved and moved back, from 1.
    """

    filesystem: str
    started: str
    goal: int
    devices: tuple[TemporaryDevice, ...]
    highest: int = -1
    is_returning: bool = False
    round: int = 1


def read_record(state: Path) -> TemporaryRecord | None:
    """Reads the record, None if there is none. Raises OperatorError if it cannot be read or understood."""
    path = state / RECORD
    try:
        return _parsed(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}", "run this as root") from error
    except (ValueError, KeyError, TypeError) as error:
        hint = "see with `btrfs filesystem show` which device is temporary; remove it, then delete this file"
        raise OperatorError(f"{path} cannot be understood: {error}", hint) from error


def _parsed(record: dict[str, Any]) -> TemporaryRecord:
    if record.pop("format") != _FORMAT:
        raise ValueError("another version wrote it")
    devices = tuple(TemporaryDevice(Path(one["path"]), bool(one["is_file"]), int(one["size"])) for one in record.pop("devices"))
    return TemporaryRecord(devices=devices, **record)


@Checkpoint("temporary devices recorded")
def write_record(state: Path, record: TemporaryRecord) -> None:
    """Replaces the record. Raises OSError."""
    fields = asdict(record) | {"devices": [asdict(one) | {"path": str(one.path)} for one in record.devices]}
    write_atomically(state / RECORD, json.dumps({"format": _FORMAT, **fields}, indent=1) + "\n")


@Checkpoint("temporary devices forgotten")
def delete_record(state: Path) -> None:
    """Deletes the record. Raises OSError."""
    (state / RECORD).unlink(missing_ok=True)


def left_devices(state: Path) -> tuple[str, ...]:
    """Returns the names of the recorded devices; that of the record itself if it cannot be read."""
    try:
        record = read_record(state)
    except OperatorError:
        return (str(state / RECORD),)
    return tuple(str(device.path) for device in record.devices) if record else ()


# --- files with loop devices


def planned_files(folder: Path, filesystem: str, count: int, size: int) -> tuple[TemporaryDevice, ...]:
    """Returns the devices that `make_file` will make in a folder. Raises OperatorError if that is no place for them."""
    folder = folder.resolve()  # the kernel names the file of a loop device without symlinks
    kind = mount_of(folder).filesystem
    use = "name an empty device with --device"
    if is_on(folder, filesystem):
        raise OperatorError(f"{folder} is on the pool itself: a temporary device cannot be there", use)
    if kind not in _PERSISTENT:
        why = "a restart would lose it" if kind in _FORGETFUL else "a temporary device must be on a local disk"
        raise OperatorError(f"{folder} is on {kind}: {why}", use)
    there, needed = os.statvfs(folder), count * size
    if there.f_bavail * there.f_frsize < needed + min(_SPARE, needed // 10):
        raise OperatorError(f"{folder} does not have {needed >> 20:,} MiB free for a temporary device", use)
    return tuple(TemporaryDevice(folder / _FILE.format(number=number), True, size) for number in range(1, count + 1))


@Checkpoint("temporary file made")
def make_file(device: TemporaryDevice) -> None:
    """Makes the file of a recorded device, with all of its blocks: the pool must never find that its disk is full. Raises OSError.

    An empty one is from a process that was killed, and is made again. One with content is kept: maybe the pool has used it.
    """
    if device.path.exists() and _content(device.path):
        return
    device.path.unlink(missing_ok=True)
    with ClosingFd(os.open(device.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as fd:
        os.posix_fallocate(fd, 0, device.size)
        os.fsync(fd)


def loop_of(device: TemporaryDevice) -> Path | None:
    """Returns the loop device of a file, None if it has none."""
    for folder in Path("/sys/block").glob("loop*"):
        if sysfs_text(folder / "loop" / "backing_file") == str(device.path):
            return Path("/dev") / folder.name
    return None


@Checkpoint("temporary file attached")
def attach(device: TemporaryDevice) -> Path:
    """Returns the loop device of the file, which it gets if it has none. Raises OperatorError.

    It takes no discards: they would give blocks of the file back.
    """
    loop = loop_of(device)
    if loop is None:
        loop = Path(run(["losetup", "--find", "--show", str(device.path)]).stdout.strip())
    with contextlib.suppress(OSError):  # a kernel that has no such file discards nothing
        (Path("/sys/block") / loop.name / "queue" / "discard_max_bytes").write_text("0")
    return loop


@Checkpoint("temporary file deleted")
def drop(device: TemporaryDevice) -> None:
    """Detaches the loop device of a file and deletes the file. A named device stays as it is. Raises OperatorError, OSError."""
    if not device.is_file:
        return
    if loop := loop_of(device):
        run(["losetup", "--detach", str(loop)])
    device.path.unlink(missing_ok=True)


def block_device(device: TemporaryDevice) -> Path | None:
    """Returns the block device, None if a file has none now."""
    return loop_of(device) if device.is_file else device.path


def is_same_device(path: Path, other: Path | None) -> bool:
    """Returns True if both name one block device."""
    if other is None:
        return False
    with contextlib.suppress(OSError):
        first, second = path.stat(), other.stat()
        return stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(second.st_mode) and first.st_rdev == second.st_rdev
    return False


# --- devices that somebody names


def require_empty(path: Path, size: int) -> None:
    """Raises OperatorError unless it is a block device of at least so many bytes, in no use, with nothing on it that is known."""
    choose = "name another device, which has nothing on it"
    try:
        if not stat.S_ISBLK(path.stat().st_mode):
            raise OperatorError(f"{path} is not a block device", choose)
        fd = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        why = "it is in use" if error.errno == errno.EBUSY else error.strerror
        raise OperatorError(f"{path}: {why}", choose) from error
    with ClosingFd(fd):
        length = os.lseek(fd, 0, os.SEEK_END)
    folder = _SYS / path.resolve().name
    if length < size:
        raise OperatorError(f"{path} has {length >> 20:,} MiB, and {size >> 20:,} MiB are needed", choose)
    if sysfs_text(folder / "ro") == "1":
        raise OperatorError(f"{path} is read-only", choose)
    if holders := _names(folder / "holders"):
        raise OperatorError(f"{path} is in use by {', '.join(holders)}", choose)
    if any((folder / name / "partition").exists() for name in _names(folder)):
        raise OperatorError(f"{path} has partitions", choose)
    if content := _content(path):
        raise OperatorError(f"{path} is not empty: {content}", choose)


def _content(path: Path) -> str:
    """Returns what blkid finds on a device or in a file, "" if that is nothing."""
    probed = run(["blkid", "--probe", str(path)], check=False)
    if probed.returncode == _NOTHING_FOUND:
        return ""
    return (probed.stdout or probed.stderr).strip() or f"blkid ended with {probed.returncode}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def paths_of(devices: Iterable[TemporaryDevice]) -> str:
    """Returns their names for a message."""
    return ", ".join(str(device.path) for device in devices)
