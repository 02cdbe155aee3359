"""Two disks whose power can be cut at any moment: a btrfs for the pool, and an ext4 for the state folder.

Both images lie on a btrfs of their own, so a cut is two FICLONEs: each copies a whole image at one moment, in milliseconds, and
takes no room but for what is written later. What the filesystems in the images have not written yet is lost in the copies, as it
is when the power goes; nothing is reordered, so this is a disk that keeps the order of its writes.
"""

import fcntl
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from btrkeep.pool.subvolume import create, snapshot
from tests.beds import btrfs, work

OPTIONS = "commit=300,noatime,nossd"  # as in fstab: delayed writes are held back, and expire has an option to put back
_POOL, _STATE, _ALL = 512 << 20, 48 << 20, "3G"
_FICLONE = 0x40049409


@dataclass(frozen=True, slots=True)
class Cut:
    """What both disks hold after a power cut. `ended`: how many commands had come to their end; `moment`: when it was, in words."""

    number: int
    ended: int
    moment: str
    pool: Path
    state: Path


class CutDisks:
    """The pool is at `pool`, the state folder at `state`, until the stack of `mount` ends; then a copy can be there."""

    def __init__(self) -> None:
        self.images = btrfs.make(size=_ALL)
        self.bed = self.images.parent
        self.pool, self.state = self.bed / "pool", self.bed / "state"
        for point in (self.pool, self.state):
            point.mkdir()
        for name, size in (("pool.img", _POOL), ("state.img", _STATE)):
            with (self.images / name).open("wb") as file:
                file.truncate(size)
        work("mkfs.btrfs", "-q", "-m", "single", self.images / "pool.img")
        work("mkfs.ext4", "-q", self.images / "state.img")
        self._commits = 0

    def mount(self, stack: ExitStack, pool: Path | None = None, state: Path | None = None) -> None:
        """Mounts both, or those copies of them, until the stack ends."""
        _attach(stack, state or self.images / "state.img", self.state, "-t", "ext4", "-o", "noatime")
        _attach(stack, pool or self.images / "pool.img", self.pool, "-t", "btrfs", "-o", OPTIONS)

    def prepare_commits(self) -> None:
        """Makes the subvolume for them, and brings all to the disks."""
        create(self.pool / "other")
        work("sync", "-f", self.pool)
        work("sync", "-f", self.state)

    def commit(self) -> None:
        """What another host's snapshot does: a commit of all metadata, while data that were written go on waiting."""
        self._commits += 1
        snapshot(self.pool / "other", self.pool / f"other-{self._commits}")

    def cut(self, number: int, ended: int, moment: str) -> Cut:
        """Copies both disks as they are now."""
        pool, state = (self.images / f"{kind}-{number}" for kind in ("pool", "state"))
        _clone(self.images / "pool.img", pool)
        _clone(self.images / "state.img", state)
        return Cut(number, ended, moment, pool, state)


def _clone(source: Path, copy: Path) -> None:
    with source.open("rb") as read, copy.open("wb") as written:
        fcntl.ioctl(written, _FICLONE, read.fileno())


def _attach(stack: ExitStack, image: Path, point: Path, *words: str) -> None:
    loop = btrfs.attach(image)
    stack.callback(_detach, loop)
    work("mount", *words, loop, point)
    stack.callback(_unmount, point, words[1] == "btrfs")


def _unmount(point: Path, is_btrfs: bool) -> None:
    if is_btrfs:
        btrfs.unmount(point)
    else:
        work("umount", point)


def _detach(loop: str) -> None:
    """And waits until the kernel has let go of it: its image is another's at once."""
    work("btrfs", "device", "scan", "--forget", loop, check=False)
    work("losetup", "--detach", loop)
    backing = Path("/sys/block") / Path(loop).name / "loop" / "backing_file"
    for _ in range(500):
        if not backing.exists():
            return
        time.sleep(0.01)
