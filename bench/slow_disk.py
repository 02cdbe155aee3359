"""A btrfs on a disk that takes its time for each write: what a night on rotating disks is like, on a machine that has none.

nbdkit's delay filter (nbdkit-delay-filter(1)) serves the image, nbdfuse shows it as a file, and that file gets a loop device.
Debian's packages: nbdkit, libnbd-bin, fuse3.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from btrkeep.units import parse_size
from tests.beds import btrfs, work

_PROGRAMS = {"nbdkit": "nbdkit", "nbdfuse": "libnbd-bin", "fusermount3": "fuse3"}
_PATIENCE = 10.0


@contextmanager
def slow_btrfs(folder: Path, size: str, delay: str, options: str = "") -> Iterator[Path]:
    """The mount point of a new btrfs in `folder`, each write to whose disk takes `delay` ("5ms"). Ends with the block."""
    if missing := [package for name, package in _PROGRAMS.items() if not shutil.which(name)]:
        sys.exit(f"no slow disk: apt-get install {' '.join(missing)}")
    image, socket, disk, point = (folder / name for name in ("slow-image", "slow-socket", "slow-disk", "slow"))
    with image.open("wb") as file:
        file.truncate(parse_size(size))
    disk.touch()
    point.mkdir()
    with ExitStack() as stack:
        _start(
            stack,
            "nbdkit",
            "--exit-with-parent",
            "--foreground",
            "--unix",
            socket,
            "--filter=delay",
            "file",
            image,
            f"wdelay={delay}",
        )
        _wait_for(socket.exists)
        _start(stack, "nbdfuse", disk, "--unix", socket)
        stack.callback(work, "fusermount3", "-u", disk)
        _wait_for(lambda: disk.stat().st_size > 0)
        loop = btrfs.attach(disk)
        stack.callback(work, "losetup", "--detach", loop)
        work("mkfs.btrfs", "-q", loop)
        work("mount", "-t", "btrfs", *(("-o", options) if options else ()), loop, point)
        stack.callback(work, "umount", point)
        yield point


def _start(stack: ExitStack, *words: str | Path) -> None:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not what():
        if time.monotonic() > deadline:
            sys.exit("no slow disk: nbdkit or nbdfuse did not come up")
        time.sleep(0.02)
