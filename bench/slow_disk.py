"""A btrfs on a disk that delays each write, to simulate a night on rotating disks on a machine that has none.

nbdkit's delay filter (nbdkit-delay-filter(1)) stands before the image.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from btrkeep.units import parse_size
from tests.beds import btrfs, nbd, work


@contextmanager
def slow_btrfs(folder: Path, size: str, delay: str, options: str = "") -> Iterator[Path]:
    """Yields the mount point of a new btrfs in `folder`; each write to its disk takes `delay` ("5ms")."""
    if why := nbd.why_not():
        sys.exit(f"no slow disk: {why}")
    image, point = folder / "slow", folder / "slow-mount"
    with image.open("wb") as file:
        file.truncate(parse_size(size))
    point.mkdir()
    with ExitStack() as stack:
        disk = nbd.filtered(stack, image, "delay", f"wdelay={delay}")
        loop = btrfs.attach(disk)
        stack.callback(work, "losetup", "--detach", loop)
        work("mkfs.btrfs", "-q", loop)
        work("mount", "-t", "btrfs", *(("-o", options) if options else ()), loop, point)
        stack.callback(work, "umount", point)
        yield point
