"""Faults of disks for a filesystem: a disk fails to write data, or the power is cut. On loop devices, without a device mapper."""

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from btrkeep.units import parse_size
from tests.beds import btrfs, leftout, nbd, session
from tests.beds.work import work


@dataclass(frozen=True, slots=True)
class FailingDisk:
    """A btrfs at `point` of two disks: metadata is on both, data on one. Writes to that fail while `flag` is there.

    Or of that one disk alone: then the filesystem becomes read-only with the first commit that fails.
    """

    point: Path
    device: str
    flag: Path

    def fail(self) -> None:
        """Makes the disk fail from now on. Earlier writes are on the disk."""
        work("sync", "-f", self.point)
        self.flag.touch()

    def read_again(self) -> None:
        """Unmounts and mounts it, so that later reads come from the disk, not from memory."""
        btrfs.unmount(self.point)
        work("mount", "-t", "btrfs", self.device, self.point)

    def failed_writes(self) -> int:
        """Returns the number of failed writes that the filesystem has counted."""
        lines = work("btrfs", "device", "stats", self.point).stdout.splitlines()
        return sum(int(line.split()[-1]) for line in lines if "write_io_errs" in line)


@contextmanager
def failing_disk(*, alone: bool = False) -> Iterator[FailingDisk]:
    """Yields a disk that does not fail yet, until the block ends."""
    if why := nbd.why_not():
        pytest.skip(leftout.reason("on a failing disk", why))
    folder = Path(tempfile.mkdtemp(prefix="failing-", dir=session.folder(1 << 30)))
    good, bad, flag, point = (folder / name for name in ("good", "bad", "fails", "mnt"))
    for image, size in ((good, "400M"), (bad, "1200M")):
        with image.open("wb") as file:
            file.truncate(parse_size(size))
    point.mkdir()
    with ExitStack() as stack:
        stack.callback(session.remove, folder)
        rate = ("error-pwrite=EIO", "error-pwrite-rate=100%", "error-pread-rate=0", f"error-file={flag}")
        disk = nbd.filtered(stack, bad, "error", *rate)
        first = btrfs.attach(disk)  # mkfs puts the first data on the first, the kernel on the larger
        others = [] if alone else [btrfs.attach(good)]
        stack.callback(work, "losetup", "--detach", first, *others)
        work("mkfs.btrfs", "-q", "-m", "single" if alone else "raid1", "-d", "single", first, *others)
        stack.callback(work, "btrfs", "device", "scan", "--forget", first, *others)
        work("mount", "-t", "btrfs", "-o", ",".join(["nossd", *(f"device={other}" for other in others)]), first, point)
        stack.callback(btrfs.unmount, point)  # until the kernel has released it: its devices are removed next
        stack.callback(flag.unlink, missing_ok=True)
        yield FailingDisk(point, first, flag)


def cut(point: Path) -> Path:
    """Returns a copy of the image of the filesystem at `point`, which is on one device: its content after a power cut now."""
    image = Path(work("losetup", "--noheadings", "--output", "BACK-FILE", btrfs.devices_of(point)[0]).stdout.strip())
    copy = image.with_name(f"cut-{time.monotonic_ns()}")
    work("cp", "--sparse=always", image, copy)
    return copy


def after_cut(point: Path, copy: Path) -> None:
    """Replaces the filesystem at `point` by that copy; no process has an open file there."""
    (loop,) = btrfs.devices_of(point)
    image = Path(work("losetup", "--noheadings", "--output", "BACK-FILE", loop).stdout.strip())
    btrfs.unmount(point)
    work("btrfs", "device", "scan", "--forget", loop)
    work("losetup", "--detach", loop)
    image.unlink()
    work("mount", "-t", "btrfs", btrfs.attach(copy), point)


def damage(top: Path, *contents: bytes, devices: Sequence[int] = (0,)) -> list[int]:
    """Overwrites those bytes on these devices of the btrfs that is mounted there. It is unmounted for this.

    Their checksum is wrong from then on. Returns their position on the last device.
    """
    loops, places = btrfs.devices_of(top), list[int]()
    with _unmounted(top, loops):
        for number in devices:
            places = _overwrite(loops[number], contents)
    return places


def put_right(top: Path, place: int, content: bytes) -> None:
    """Restores the bytes that `damage` has overwritten, on the only device."""
    (loop,) = btrfs.devices_of(top)
    with _unmounted(top, [loop]), Path(loop).open("r+b") as disk:
        disk.seek(place)
        disk.write(content)


def damage_in_use(top: Path, *contents: bytes) -> None:
    """Does the same as `damage` on the only device while it is mounted: cached data is unchanged."""
    work("sync", "-f", top)
    (loop,) = btrfs.devices_of(top)
    _overwrite(loop, contents)
    work("blockdev", "--flushbufs", loop)


def _overwrite(loop: str, contents: Sequence[bytes]) -> list[int]:
    image = Path(work("losetup", "--noheadings", "--output", "BACK-FILE", loop).stdout.strip())
    data, places = image.read_bytes(), []
    with image.open("r+b") as file:
        for content in contents:
            place = data.find(content)
            assert place > 0
            places.append(place)
            file.seek(place)
            file.write(bytes(len(content)))
    return places


def leaves(subvolume: Path, top: Path, key: str = "") -> list[int]:
    """Returns the addresses of the leaves of a subvolume's tree, in the order of keys; only leaves with a key that starts with this
    text, such as "257 DIR_INDEX". Its btrfs, of one device, is mounted at `top`.
    """
    work("btrfs", "filesystem", "sync", top)
    id_ = work("btrfs", "inspect-internal", "rootid", subvolume).stdout.strip()
    shown = work("btrfs", "inspect-internal", "dump-tree", "-t", id_, *btrfs.devices_of(top)).stdout
    matches = re.findall(r"^leaf (\d+) items(.*?)(?=^(?:leaf|node) \d+ (?:items|level) |\Z)", shown, re.MULTILINE | re.DOTALL)
    return [int(address) for address, items in matches if re.search(rf"^\titem \d+ key \({key}", items, re.MULTILINE)]


def damage_metadata(top: Path, *blocks: int) -> None:
    """Overwrites the only copy of these tree blocks, like `damage`."""
    (loop,) = btrfs.devices_of(top)
    places = [work("btrfs-map-logical", "-l", str(block), loop).stdout.split() for block in blocks]
    with _unmounted(top, [loop]), Path(loop).open("r+b") as disk:
        for words in places:
            disk.seek(int(words[words.index("physical") + 1]) + 3000)
            disk.write(b"spoilt")


@contextmanager
def _unmounted(top: Path, loops: Sequence[str]) -> Iterator[None]:
    btrfs.unmount(top)
    yield
    for loop in loops:
        work("blockdev", "--flushbufs", loop)
    others = ["-o", ",".join(f"device={loop}" for loop in loops[1:])] if loops[1:] else []
    work("mount", "-t", "btrfs", *others, loops[0], top)
