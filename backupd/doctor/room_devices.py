"""Makes and removes the temporary devices of `doctor --fix room`: files with loop devices, or devices that somebody names."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import is_on
from btrkeep.pool.mounts import mount_of
from btrkeep.pool.temporary_devices import TemporaryDevice, loop_of
from btrkeep.process.programs import run
from btrkeep.procfs import sysfs_text

_FILE = "temporary-device-{number}"
_SYS = Path("/sys/class/block")
_FORGETFUL = ("tmpfs", "ramfs", "overlay")
_PERSISTENT = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs")
_SPARE = 1 << 30  # bytes that stay free where the files are made, or a tenth of them for small ones
_NOTHING_FOUND = 2  # exit status of blkid -p


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
    devices = tuple(TemporaryDevice(folder / _FILE.format(number=number), True, size) for number in range(1, count + 1))
    if strange := [device.path for device in devices if os.path.lexists(device.path)]:  # ours are recorded before they are made
        raise OperatorError(f"{strange[0]} exists already, and no record has it", f"move it away, or {use}")
    return devices


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
    """Detaches the loop device of a file and deletes the file. A named device stays as it is. Raises OperatorError, OSError.

    The kernel wipes a device that it removes from a filesystem. A file with anything on it is still a part of one.
    """
    if not device.is_file:
        return
    if device.path.exists() and (content := _content(device.path)):
        raise OperatorError(f"{device.path} is not deleted, it is not empty: {content}", "see `losetup --list` for what uses it")
    if loop := loop_of(device):
        run(["losetup", "--detach", str(loop)])
    device.path.unlink(missing_ok=True)


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
