"""Filesystems that are made once and of which each run gets a copy of its own, byte for byte: both sides find the same.

A copy has the UUID of its original, so only one of them is attached at a time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.beds import session, work

_LONG = 1800.0  # seconds: an unmount waits for what the cleaner has in its hands
_SECTOR = 512  # of the kernel's statistics, whatever the device's own is


@dataclass(frozen=True, slots=True)
class Writes:
    """The writes of a device since it appeared: requests, after neighbouring ones were merged, and bytes."""

    requests: int
    bytes: int

    def since(self, before: "Writes") -> "Writes":
        """Returns the difference of two readings."""
        return Writes(self.requests - before.requests, self.bytes - before.bytes)


@dataclass(frozen=True, slots=True)
class Mounted:
    """A filesystem at `point`, on the loop device `device`."""

    point: Path
    device: str

    def writes(self) -> Writes:
        """Reads Documentation/block/stat.rst: the fields 5 and 7."""
        fields = Path("/sys/block", Path(self.device).name, "stat").read_text().split()
        return Writes(int(fields[4]), int(fields[6]) * _SECTOR)

    def sync(self) -> None:
        """Commits the transaction."""
        work("btrfs", "filesystem", "sync", self.point, timeout=_LONG)


class Images:
    """Originals by name in a folder, and one mounted filesystem at a time, always at the same place, `point`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.point = self.run / "mnt"

    def original(self, name: str) -> Path:
        """Returns the path of an original."""
        return self.folder / f"{name}.img"

    @contextmanager
    def made(self, name: str, size: int, options: str, mkfs: tuple[str, ...] = ()) -> Iterator[Mounted]:
        """Yields a new filesystem; at the end it is unmounted and becomes the original of that name."""
        self.run.mkdir()
        disk = self.run / "disk"
        with disk.open("wb") as file:
            file.truncate(size)
        work("mkfs.btrfs", "-q", *mkfs, disk)
        try:
            with self._mounted(options) as mounted:
                yield mounted
                work("fstrim", self.point, check=False)  # blocks that were written and freed again need not be copied
            disk.rename(self.original(name))
        finally:
            session.remove(self.run)

    @contextmanager
    def copy(self, name: str, options: str) -> Iterator[Mounted]:
        """Yields a mounted copy of the original of that name, and deletes it at the end. It is on the disk before the
        work starts.
        """
        self.run.mkdir()
        try:
            work("cp", "--sparse=always", "--reflink=auto", self.original(name), self.run / "disk", timeout=_LONG)
            work("sync", "-f", self.run, timeout=_LONG)
            with self._mounted(options) as mounted:
                yield mounted
        finally:
            session.remove(self.run)

    @contextmanager
    def _mounted(self, options: str) -> Iterator[Mounted]:
        device = _attach(self.run / "disk")
        self.point.mkdir()
        work("mount", "-t", "btrfs", "-o", options, device, self.point)
        yield Mounted(self.point, device)
        work("umount", self.point, timeout=_LONG)
        for _ in range(50):  # a program such as blkid may hold the device open for a moment
            if work("btrfs", "device", "scan", "--forget", device, check=False).returncode == 0:
                break
            time.sleep(0.1)
        work("losetup", "--detach", device)


def _attach(image: Path) -> str:
    """Returns a loop device. Other processes also take free loop devices: if one was faster, the next one is tried."""
    for _ in range(9):
        done = work("losetup", "--find", "--show", image, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return work("losetup", "--find", "--show", image).stdout.strip()
