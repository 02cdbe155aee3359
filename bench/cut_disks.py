"""Two disks whose power can be cut at any moment: a btrfs for the pool, and an ext4 for the state folder.

Both images lie on a btrfs of their own, so a cut is two FICLONEs: each copies a whole image at one moment, in milliseconds, and
takes no room but for what is written later. What the filesystems in the images have not written yet is lost in the copies, as it
is when the power goes; nothing is reordered, so this is a disk that keeps the order of its writes. Disks with a cache
(cut_cache.py) lose any part of what was written since the last flush besides.
"""

import fcntl
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from btrkeep.pool.subvolume import create, snapshot
from tests.beds import TOP, btrfs, nbd, work

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
    """The pool is at `pool`, the state folder at `state`, until the stack of `mount` ends; then a copy can be there.

    `cached`: what is cut has a write cache, by the dice of `seed`; the copies have none.
    """

    def __init__(self, cached: bool = False, seed: int = 0) -> None:
        self.cached, self._seed = cached, seed
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
        if not (pool and state):
            pool, state = self.images / "pool.img", self.images / "state.img"
            if self.cached:
                pool, state = self._behind_a_cache(stack, pool, state)
        _attach(stack, state, self.state, "-t", "ext4", "-o", "noatime")
        _attach(stack, pool, self.pool, "-t", "btrfs", "-o", OPTIONS)

    def _behind_a_cache(self, stack: ExitStack, *images: Path) -> list[Path]:
        """The images as files that write into a cache of a process of its own, until the stack ends."""
        control = self.images / "control"
        process = subprocess.Popen([sys.executable, "-m", "bench.cut_cache", control, *images], stdin=subprocess.DEVNULL, cwd=TOP)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        nbd.wait_for(control.exists)
        self._control = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._control.connect(str(control))
        return [nbd.shown(stack, image) for image in images]

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
        if self.cached:
            self._control.sendall(f"{self._seed + number} {number}\n".encode())
            assert self._control.recv(1), "the disks' cache is gone"
            pool, state = (self.images / f"{kind}.img-{number}" for kind in ("pool", "state"))
        else:
            clone(self.images / "pool.img", pool)
            clone(self.images / "state.img", state)
        return Cut(number, ended, moment, pool, state)


def clone(source: Path, copy: Path) -> None:
    """A copy on the same btrfs that shares what the source has now."""
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
