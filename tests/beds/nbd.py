"""A disk image behind a filter of nbdkit's: a file for a loop device whose reads or writes take time, or fail.

nbdkit serves the image, nbdfuse shows it as a file again. Debian's packages: nbdkit, libnbd-bin, fuse3.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.beds import btrfs

_PROGRAMS = {"nbdkit": "nbdkit", "nbdfuse": "libnbd-bin", "fusermount3": "fuse3"}
_PATIENCE = 60.0


def why_not() -> str:
    """Returns why this machine cannot do that, or ""."""
    if missing := [package for name, package in _PROGRAMS.items() if not shutil.which(name)]:
        return f"{', '.join(missing)}: not installed"
    return "" if Path("/dev/fuse").exists() else "no FUSE"


def filtered(stack: ExitStack, image: Path, name: str, *settings: str) -> Path:
    """Returns a file beside `image` that shows it through nbdkit's filter `name`, or several, with those settings, until `stack`
    ends.
    """
    socket = image.with_name(f"{image.name}-socket")
    filters = (f"--filter={text}" for text in name.split())
    _start(stack, "nbdkit", "--exit-with-parent", "--foreground", "--unix", socket, *filters, "file", image, *settings)
    return shown(stack, image)


def shown(stack: ExitStack, image: Path) -> Path:
    """Returns a file beside `image` that shows the data served at IMAGE-socket, now or soon, until `stack` ends."""
    socket, disk = image.with_name(f"{image.name}-socket"), image.with_name(f"{image.name}-disk")
    disk.touch()
    wait_for(socket.exists)
    _start(stack, "nbdfuse", disk, "--unix", socket)
    stack.callback(btrfs.umount, disk, "fusermount3", "-u")
    wait_for(lambda: disk.stat().st_size > 0)
    return disk


def _start(stack: ExitStack, *words: str | Path) -> None:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def wait_for(subject: Callable[[], bool]) -> None:
    """Waits until it is true, for example until a socket exists."""
    deadline = time.monotonic() + _PATIENCE
    while not subject():
        assert time.monotonic() < deadline, "nbdkit or nbdfuse did not come up"
        time.sleep(0.02)
