"""Two disks whose power can be cut at any moment: a btrfs for the pool, and an ext4 for the state folder.

Both images are on a separate btrfs, so a cut is two FICLONEs: each copies a whole image at one moment, in milliseconds, and takes
space only for later writes. Data that the filesystems in the images have not written yet is missing in the copies, as after a
power cut; nothing is reordered, so this is a disk that keeps the order of its writes. Disks with a cache (cut_cache.py) also lose
any part of the writes since the last flush. Of disks that are recorded, every write and flush is
in a log (cut_log.py), and the copies are the disks at each flush.
"""

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cut_log import Replay, base_of, clone, entries, flushes
from btrkeep.pool.subvolume import create, snapshot
from tests.beds import TOP, btrfs, nbd, work

KINDS = ("plain", "cached", "recorded")
IN_A_MACHINE = ("killed", "logged")  # bench/cut_machine.py
OPTIONS = "commit=300,noatime,nossd"  # as in fstab: with delayed writes, and with an option that expire has to restore
_POOL, _STATE, _ALL = 512 << 20, 48 << 20, 3 << 30  # bytes
_OF_A_FILE = (8 << 10, 512, 48 << 10)  # bytes of the three for each small file, when there are many
_NAMES = ("pool.img", "state.img")


@dataclass(frozen=True, slots=True)
class Cut:
    """The content of both disks after a power cut. `ended`: how many commands had ended; `moment`: when it was, in words."""

    number: int
    ended: int
    moment: str
    pool: Path
    state: Path


class CutDisks:
    """Mounts the pool at `pool` and the state folder at `state` until the stack of `mount` ends; after that, copies can be mounted
    there.

    `kind`: one of KINDS or IN_A_MACHINE. Those that are cached are cut by the dice of `seed`. The copies are plain. All are larger
    when a host has so many `files` that it would not fit.
    """

    def __init__(self, kind: str = "plain", seed: int = 0, files: int = 0) -> None:
        self.kind, self._seed = kind, seed
        pool, state, everything = (max(least, each * files) for least, each in zip((_POOL, _STATE, _ALL), _OF_A_FILE, strict=True))
        self.scale = pool / _POOL  # of what a command writes and how long it takes
        self.images = btrfs.make(size=str(everything))
        self._log = self.images / "log"
        self.bed = self.images.parent
        self.pool, self.state = self.bed / "pool", self.bed / "state"
        for point in (self.pool, self.state):
            point.mkdir()
        for name, size in zip(_NAMES, (pool, state), strict=True):
            with (self.images / name).open("wb") as file:
                file.truncate(size)
        work("mkfs.btrfs", "-q", "-m", "single", self.images / "pool.img")
        work("mkfs.ext4", "-q", self.images / "state.img")
        self._commits = 0

    def mount(self, stack: ExitStack, pool: Path | None = None, state: Path | None = None) -> None:
        """Mounts both disks, or those copies of them, until the stack ends."""
        if not (pool and state):
            pool, state = self.images / "pool.img", self.images / "state.img"
            if self.kind in ("cached", "recorded"):
                pool, state = self._served(stack, pool, state)
        _attach(stack, state, self.state, "-t", "ext4", "-o", "noatime")
        _attach(stack, pool, self.pool, "-t", "btrfs", "-o", OPTIONS)

    def _served(self, stack: ExitStack, *images: Path) -> list[Path]:
        """Starts a process that serves the images until the stack ends, with a cache or recorded; returns them as files."""
        control, log = self.images / "control", [f"--log={self._log}"] if self.kind == "recorded" else []
        words: list[str | Path] = [sys.executable, "-m", "bench.cut_cache", *log, control, *images]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=TOP)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        nbd.wait_for(control.exists)
        self._control = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._control.connect(str(control))
        return [nbd.shown(stack, image) for image in images]

    def prepare_commits(self) -> None:
        """Makes the subvolume for `commit`, and writes everything to the disks."""
        create(self.pool / "other")
        work("sync", "-f", self.pool)
        work("sync", "-f", self.state)

    def commit(self) -> None:
        """Does the same as another host's snapshot: commits all metadata, while written data still wait."""
        self._commits += 1
        snapshot(self.pool / "other", self.pool / f"other-{self._commits}")

    def cut(self, number: int, ended: int, moment: str) -> Cut | None:
        """Copies both disks in their present state. For recorded disks it only writes a mark: see `recorded`."""
        if self.kind == "recorded":
            self._send_line(f"{ended} {moment}")
            return None
        if self.kind == "cached":
            self._send_line(f"{self._seed + number} {number}")
        else:
            for name in _NAMES:
                clone(self.images / name, self.images / f"{name}-{number}")
        return self._cut(number, ended, moment)

    def keep(self, step: int) -> None:
        """Copies both disks with all data that was written to them, as the start of a step."""
        for place, name in ((self.pool, _NAMES[0]), (self.state, _NAMES[1])):
            work("sync", "-f", place)
            clone(self.images / name, self.images / f"{name}-kept-{step}")

    def kept(self, step: int) -> list[Path]:
        """Returns these copies."""
        return [self.images / f"{name}-kept-{step}" for name in _NAMES]

    def again(self, number: int, step: int, moment: str) -> Cut:
        """Returns a cut that is still to be made, from the disks at the start of that step."""
        cut = self._cut(number, step, moment)
        for source, copy in zip(self.kept(step), (cut.pool, cut.state), strict=True):
            clone(source, copy)
        return cut

    def recorded(self) -> list[Cut]:
        """Returns all flushes, after the disks were unmounted. Only `bring` makes the copies."""
        if self.kind != "recorded":
            return []
        self._replay = Replay(entries(self._log), [base_of(self.images / name) for name in _NAMES])
        return [self._cut(flush.number, flush.step, f"a flush after {flush.moment}") for flush in flushes(self._log)]

    def bring(self, cut: Cut) -> None:
        """Makes the copies of a flush; flushes are requested in the order of their numbers."""
        if self.kind == "recorded":
            self._replay.copies(cut.number, (cut.pool, cut.state))

    def _send_line(self, line: str) -> None:
        self._control.sendall(f"{line}\n".encode())
        assert self._control.recv(1), "the process that serves the disks is gone"

    def _cut(self, number: int, ended: int, moment: str) -> Cut:
        pool, state = (self.images / f"{name}-{number}" for name in _NAMES)
        return Cut(number, ended, moment, pool, state)


def _attach(stack: ExitStack, image: Path, point: Path, *words: str) -> None:
    loop = btrfs.attach(image)
    stack.callback(_detach, loop)
    work("mount", *words, loop, point)
    stack.callback(_unmount, point, words[1] == "btrfs")


def _unmount(point: Path, is_btrfs: bool) -> None:
    if is_btrfs:
        btrfs.unmount(point)
    else:
        btrfs.umount(point)


def _detach(loop: str) -> None:
    """Detaches the loop device, and waits until the kernel has released it, because its image is used again at once."""
    work("btrfs", "device", "scan", "--forget", loop, check=False)
    work("losetup", "--detach", loop)
    backing = Path("/sys/block") / Path(loop).name / "loop" / "backing_file"
    for _ in range(500):
        if not backing.exists():
            return
        time.sleep(0.01)
