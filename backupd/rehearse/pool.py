"""The throwaway filesystem: on a sparse image in a folder, or on a spare device that is named. It never is one that is in use."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backupd.rehearse.model import VariantSettings
from backupd.rehearse.workspace import patiently, remove
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError
from btrkeep.pool.marker import is_on
from btrkeep.process.programs import ProgramFailed, run

MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")  # noqa: S108  each rehearsal makes a folder of its own there
BASES = (MEMORY, DISK)
_NOTHING = 2
"""blkid's exit status when there is nothing that it knows."""
_OVERHEAD = 32 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the filesystem goes: an image in `folder`, or `device`. `room`: bytes that are free there."""

    folder: Path
    device: Path | None
    room: int


def place_at(on: str | None, erase: str | None, wanted: int, filesystem: str | None) -> Place:
    """The place that is meant. Without `on` in memory, if `wanted` bytes take less than half of what is free, else on the disk.

    `erase`: the device whose content somebody has given up. `filesystem`: the UUID of the configured pool, which is never touched.
    Raises UsageError.
    """
    if on is None:
        folder = MEMORY if MEMORY.is_dir() and wanted * 2 < min(_free(MEMORY), _memory()) else DISK
    else:
        folder = Path(on)
        if not folder.exists():
            raise UsageError(f"there is no {on}", "name a folder, or a device")
        if stat.S_ISBLK(folder.stat().st_mode):
            return _spare(folder.absolute(), on, erase, filesystem)
        if not folder.is_dir():
            raise UsageError(f"{on} is neither a folder nor a device", "name a folder, or a device")
    if erase:
        raise UsageError("--erase names a device, and --on does not", "give the device to both: --on DEVICE --erase DEVICE")
    if filesystem and is_on(folder, filesystem):
        raise UsageError(f"{folder} is on the pool itself", "a rehearsal does not work on it: name a folder elsewhere")
    return Place(folder.resolve(), None, _free(folder))  # mounts are known by their real paths


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _memory() -> int:
    """Bytes that programs can still have, by the kernel's own estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _spare(device: Path, named: str, erase: str | None, filesystem: str | None) -> Place:
    """A device that nobody uses and that is empty, or given up by its exact name, as it is `named`. Raises UsageError."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)  # the kernel knows every user: mount, swap, md, dm, btrfs
    except OSError as error:
        raise UsageError(f"{device} is in use: {error.strerror}", "a rehearsal needs a device that nothing uses") from None
    with ClosingFd(fd):
        size = os.lseek(fd, 0, os.SEEK_END)
    found = run(["blkid", "--probe", "--cache-file", os.devnull, "--output", "export", str(device)], check=False)
    known = dict(line.split("=", 1) for line in found.stdout.splitlines() if "=" in line)
    if filesystem and filesystem in (known.get("UUID"), known.get("UUID_SUB")):
        raise UsageError(f"{device} belongs to the pool", "a rehearsal never works on the pool")
    if found.returncode != _NOTHING:
        what = known.get("TYPE") or known.get("PTTYPE") or "something"
        if erase is None:
            raise UsageError(f"{device} is not empty: {what}", f"if nobody needs it any more, add: --erase {named}")
        if erase != named:
            raise UsageError(f"--erase names {erase}, but --on names {named}", "give the same device to both")
    return Place(MEMORY if MEMORY.is_dir() else DISK, device, size)


def require_room(place: Place, size: int) -> None:
    """Raises UsageError when a pool of that size does not fit."""
    needed = size if place.device else size + _OVERHEAD
    if place.room < needed:
        where = place.device or place.folder
        raise UsageError(f"{where} has too little room: {place.room >> 20} MiB of {needed >> 20} MiB", "choose a smaller --size")


@contextmanager
def throwaway(work: Path, place: Place, settings: VariantSettings, size: int, notice: Callable[[str], None]) -> Iterator[Path]:
    """A new filesystem of `size` bytes, mounted; unmounted and thrown away at the end. Raises OperatorError.

    `notice` is told what could not be given back yet.
    """
    folder = work / "pool"
    folder.mkdir(mode=0o700)
    try:
        with _attached(folder, place, size) as device:
            point = folder / "mnt"
            point.mkdir()
            _make(device, settings, size, point)
            yield point
    finally:
        remove(folder, notice)
        if place.device:
            _wipe(place.device, notice)


def _wipe(device: Path, notice: Callable[[str], None]) -> None:
    try:
        patiently(["wipefs", "--all", "--quiet", str(device)])
    except ProgramFailed:
        notice(f"another program still holds {device}, with a rehearsal on it: wipefs --all {device} when that has ended")


@contextmanager
def _attached(folder: Path, place: Place, size: int) -> Iterator[str]:
    if place.device:
        yield str(place.device)
        return
    image = folder / "disk"
    with image.open("wb") as file:
        file.truncate(size)
    with Checkpoint("rehearsal's loop device attached"):
        done = run(["losetup", "--find", "--show", str(image)])
    yield done.stdout.strip()


def _make(device: str, settings: VariantSettings, size: int, point: Path) -> None:
    """Makes and mounts it. Data is stored once, whatever the pool does: profiles cost every setting the same."""
    words = ["-q", "-f", "-b", str(size), "-n", str(settings.nodesize), "-m", settings.metadata, "-d", "single"]
    with Checkpoint("rehearsal's filesystem made"):
        patiently(["mkfs.btrfs", *words, "-L", "btrkeep-rehearsal", device])
    with Checkpoint("rehearsal's filesystem mounted"):
        run(["mount", "-t", "btrfs", "-o", mount_options(settings), device, str(point)])


def mount_options(settings: VariantSettings) -> str:
    """Returns the options for mount."""
    packed = () if settings.compression == "none" else (f"compress={settings.compression}",)
    return ",".join(("noatime", "nodiscard", settings.allocator, *packed))
