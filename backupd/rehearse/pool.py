"""The throwaway filesystem, and the folder of a rehearsal, with everything that depends on it: image, loop device, mount.

The filesystem is on a sparse image in a folder, or on a named spare device, never on one that is in use. The folder's name begins
with PREFIX and its rehearsal holds a flock on it. So the remains of a killed rehearsal are recognised by their name in the kernel's
own tables (mounts, loop devices) or in the folder, and by a lock that no process holds; the next rehearsal removes them.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backupd.rehearse.rehearsal_types import VariantSettings
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import is_on
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.procfs import mounts

MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")  # noqa: S108  each rehearsal makes a folder of its own there
BASES = (MEMORY, DISK)
_NOTHING = 2
"""blkid's exit status if it recognises nothing."""
_OVERHEAD = 32 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the throwaway filesystem."""

    folder: Path
    """The folder of the image, if `device` is None."""
    device: Path | None
    """The spare device; None: an image."""
    room: int
    """Free bytes in the folder, or the size of the device."""


def place_at(on: str | None, erase: str | None, wanted: int, filesystem: str | None) -> Place:
    """Returns the place. Without `on`: in memory if `wanted` bytes take less than half of the free memory, otherwise on the disk.

    `erase`: the device whose content may be lost. `filesystem`: the UUID of the configured pool, which is never used. Raises
    UsageError.
    """
    if on is None:
        folder = MEMORY if MEMORY.is_dir() and wanted * 2 < min(_free(MEMORY), _memory()) else DISK
    else:
        folder = Path(on)
        if not folder.exists():
            raise UsageError(f"{on} does not exist", "give --on an existing folder or a spare device")
        if stat.S_ISBLK(folder.stat().st_mode):
            return _spare(folder.absolute(), on, erase, filesystem)
        if not folder.is_dir():
            raise UsageError(f"{on} is neither a folder nor a device", "give --on an existing folder or a spare device")
    if erase:
        raise UsageError("--erase names a device, but --on does not", "give the device to both: --on DEVICE --erase DEVICE")
    if filesystem and is_on(folder, filesystem):
        raise UsageError(
            f"{folder} is on the pool itself", "give --on a folder on another filesystem: a rehearsal never uses the pool"
        )
    return Place(folder.resolve(), None, _free(folder))  # mounts are listed by their real paths


def _free(folder: Path) -> int:
    statvfs_result = os.statvfs(folder)
    return statvfs_result.f_bavail * statvfs_result.f_frsize


def _memory() -> int:
    """Bytes of memory that programs can still use, by the kernel's own estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _spare(device: Path, named: str, erase: str | None, filesystem: str | None) -> Place:
    """Returns a device that is not in use, and is empty or may be erased, confirmed by its exact name, as it is `named`. Raises
    UsageError.
    """
    try:
        fd = os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)  # fails if any of mount, swap, md, dm or btrfs uses it
    except OSError as error:
        raise UsageError(f"{device} is in use: {error.strerror}", "name a device that is not in use") from None
    with ClosingFd(fd):
        size = os.lseek(fd, 0, os.SEEK_END)
    finished = run(["blkid", "--probe", "--cache-file", os.devnull, "--output", "export", str(device)], check=False)
    properties = dict(line.split("=", 1) for line in finished.stdout.splitlines() if "=" in line)
    if filesystem and filesystem in (properties.get("UUID"), properties.get("UUID_SUB")):
        raise UsageError(f"{device} belongs to the pool", "a rehearsal never uses the pool: name another device")
    if finished.returncode != _NOTHING:
        content = properties.get("TYPE") or properties.get("PTTYPE") or "something"
        if erase is None:
            raise UsageError(f"{device} is not empty: {content}", f"if it is no longer needed, add: --erase {named}")
        if erase != named:
            raise UsageError(f"--erase names {erase}, but --on names {named}", "give the same device to both")
    return Place(MEMORY if MEMORY.is_dir() else DISK, device, size)


def require_room(place: Place, size: int) -> None:
    """Raises UsageError if a pool of that size does not fit."""
    needed = size if place.device else size + _OVERHEAD
    if place.room < needed:
        where = place.device or place.folder
        raise UsageError(
            f"{where} has too little free space: {place.room >> 20} MiB of {needed >> 20} MiB", "choose a smaller --size"
        )


@contextmanager
def throwaway(work: Path, place: Place, settings: VariantSettings, size: int, notice: Callable[[str], None]) -> Iterator[Path]:
    """Yields a new mounted filesystem of `size` bytes; it is unmounted and removed at the end. Raises OperatorError.

    `notice` is called with resources that could not be released yet.
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
        run_patiently(["wipefs", "--all", "--quiet", str(device)])
    except ProgramFailed:
        notice(
            f"another program still uses {device}, with a rehearsal on it: when the program has ended, run wipefs --all {device}"
        )


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
    """Creates and mounts the filesystem. Data is stored once, as profiles cost the same with every setting."""
    words = ["-q", "-f", "-b", str(size), "-n", str(settings.nodesize), "-m", settings.metadata, "-d", "single"]
    with Checkpoint("rehearsal's filesystem made"):
        run_patiently(["mkfs.btrfs", *words, "-L", "btrkeep-rehearsal", device])
    with Checkpoint("rehearsal's filesystem mounted"):
        run(["mount", "-t", "btrfs", "-o", mount_options(settings), device, str(point)])


def mount_options(settings: VariantSettings) -> str:
    """Returns the options for mount."""
    packed = () if settings.compression == "none" else (f"compress={settings.compression}",)
    return ",".join(("noatime", "nodiscard", settings.allocator, *packed))


PREFIX = "btrkeep-rehearsal-"
_PATIENCE, _PAUSE = 20.0, 0.2
_UNTIL_DETACHED = 5.0
"""Seconds."""
_DELETED = " (deleted)"
"""The kernel's suffix after the name of a deleted file."""
_LONG = 900.0
"""Seconds: an unmount waits for the tree that the cleaner is dropping."""


@contextmanager
def workspace(base: Path, notice: Callable[[str], None]) -> Iterator[Path]:
    """Yields a new folder in `base`, locked, which is removed at the end with everything that is mounted in it. Raises
    OperatorError.

    `notice` is called with resources that could not be released yet.
    """
    path, fd = _made(base)
    try:
        yield path
    finally:
        with ClosingFd(fd):
            remove(path, notice)


def _made(base: Path) -> tuple[Path, int]:
    """Creates and locks a folder. If another rehearsal removes it as a leftover before it is locked, creates another."""
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise OperatorError(f"{base}: could not create a folder: {error.strerror}", "give --on another folder") from None
        with suppress(FileNotFoundError):
            if (fd := _locked(path)) is not None:
                if path.exists():
                    return path, fd
                os.close(fd)


def _locked(path: Path) -> int | None:
    """Returns a descriptor that holds the folder's lock; None if another process has it. Raises FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def remove_leftovers(bases: Iterable[Path]) -> list[Path]:
    """Removes the remains of killed rehearsals: anywhere on this machine where something is mounted or attached, and folders in
    `bases`.

    Returns the folders.
    """
    gone = []
    for path in sorted(_named(bases)):
        try:
            fd = _locked(path)
        except OSError:  # not our folder: a link, missing, or a user's own filesystem, which even root may not enter
            continue
        if fd is None:
            continue
        with ClosingFd(fd):
            if os.fstat(fd).st_uid == os.geteuid():
                remove(path)
                gone.append(path)
    return gone


def _named(bases: Iterable[Path]) -> set[Path]:
    """Returns folders with the name of a rehearsal. Mounts are skipped: a user may have made a mount of that name that hangs."""
    mounted = mounts()
    inside = [mount.target for mount in mounted if mount.filesystem == "btrfs"] + [image for _, image in _loops()]
    paths = {top for path in inside if (top := _top(path))}
    for base in bases:
        with suppress(OSError):
            paths |= {path for path in base.iterdir() if path.name.startswith(PREFIX)}
    return paths - {mount.target for mount in mounted}


def _top(path: Path) -> Path | None:
    """Returns the folder of a rehearsal that contains a path."""
    return next((folder for folder in (path, *path.parents) if folder.name.startswith(PREFIX)), None)


def _loops() -> Iterator[tuple[str, Path]]:
    """Yields each loop device that has a file, and that file. A device whose file was deleted disappears with its last user."""
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # already detached
            image = os.fsdecode(file.read_bytes().rstrip(b"\n"))
            if not image.endswith(_DELETED):
                yield f"/dev/{file.parts[3]}", Path(image)


def run_patiently(command: Sequence[str]) -> None:
    """Repeats the command for some seconds until it succeeds: a killed program takes a moment to end, and other programs may open a
    device briefly.

    Raises ProgramFailed.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        done = run(command, timeout=_LONG, check=False)
        if not done.returncode:
            return
        if time.monotonic() > end:
            raise ProgramFailed(done)
        time.sleep(_PAUSE)


@Checkpoint("rehearsal removed")
def remove(folder: Path, notice: Callable[[str], None] = lambda _: None) -> None:
    """Unmounts everything that is mounted below the folder, detaches its loop devices, and removes it. Raises ProgramFailed,
    OSError.

    A program with mounts of its own (a container, `unshare`) may hold a filesystem that is unmounted everywhere else. The kernel
    detaches its device when that program ends; until then its image uses space, and `notice` is called.
    """
    for mount in reversed(mounts()):
        if mount.target.is_relative_to(folder):
            run_patiently(["umount", str(mount.target)])
    for device, image in _loops():
        if image.is_relative_to(folder):
            run(["btrfs", "device", "scan", "--forget", device], check=False)
            run(["losetup", "--detach", device], check=False)  # the kernel may have detached it already
    for device in _still_attached(folder):
        notice(f"another program still uses {device}; the kernel frees its space when that program ends")
    shutil.rmtree(folder)


def _still_attached(folder: Path) -> list[str]:
    """Returns the loop devices of the folder that are still in use after some seconds. Many programs open a device for a moment."""
    end = time.monotonic() + _UNTIL_DETACHED
    while left := [device for device, image in _loops() if image.is_relative_to(folder)]:
        if time.monotonic() > end:
            break
        time.sleep(_PAUSE / 10)
    return left
