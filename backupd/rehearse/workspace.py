"""The folder that a rehearsal works in, and everything that hangs on it: an image, a loop device, a mount. All of it goes again.

The folder's name begins with PREFIX and its rehearsal holds a flock on it. So what a killed one left is known by its name in the
kernel's own tables (mounts, loop devices) or in the folder, and by a lock that nobody holds; the next rehearsal removes it.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.process.programs import ProgramFailed, run
from btrkeep.procfs import mounts

PREFIX = "btrkeep-rehearsal-"
_PATIENCE, _PAUSE = 20.0, 0.2
_UNTIL_DETACHED = 5.0
"""Seconds."""
_DELETED = " (deleted)"
"""What the kernel puts after the name of a file that is gone."""
_LONG = 900.0
"""Seconds: an unmount waits for the tree that the cleaner is dropping."""


@contextmanager
def workspace(base: Path, notice: Callable[[str], None]) -> Iterator[Path]:
    """A new folder in `base`, locked, and removed at the end with all that is mounted in it. Raises OperatorError.

    `notice` is told what could not be given back yet.
    """
    path, fd = _made(base)
    try:
        yield path
    finally:
        with ClosingFd(fd):
            remove(path, notice)


def _made(base: Path) -> tuple[Path, int]:
    """Another rehearsal may take it for one that was left, as long as it is not locked: then there is another one."""
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise OperatorError(f"{base}: no folder can be made: {error.strerror}", "name another one with --on") from None
        with suppress(FileNotFoundError):
            if (fd := _locked(path)) is not None:
                if path.exists():
                    return path, fd
                os.close(fd)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when somebody else has it. Raises FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def remove_left(bases: Iterable[Path]) -> list[Path]:
    """Removes what killed rehearsals left: anywhere on this machine where something is mounted or attached, and folders in `bases`.

    Returns the folders.
    """
    gone = []
    for path in sorted(_named(bases)):
        try:
            fd = _locked(path)
        except OSError:  # no folder of ours: a link, not there, or a user's own filesystem, which lets not even root in
            continue
        if fd is None:
            continue
        with ClosingFd(fd):
            if os.fstat(fd).st_uid == os.geteuid():
                remove(path)
                gone.append(path)
    return gone


def _named(bases: Iterable[Path]) -> set[Path]:
    """Folders with the name of a rehearsal's. None is a mount itself: a user may make one with that name, which never answers."""
    mounted = mounts()
    inside = [mount.target for mount in mounted if mount.filesystem == "btrfs"] + [image for _, image in _loops()]
    found = {top for path in inside if (top := _top(path))}
    for base in bases:
        with suppress(OSError):
            found |= {path for path in base.iterdir() if path.name.startswith(PREFIX)}
    return found - {mount.target for mount in mounted}


def _top(path: Path) -> Path | None:
    """The folder of a rehearsal that a path lies in."""
    return next((one for one in (path, *path.parents) if one.name.startswith(PREFIX)), None)


def _loops() -> Iterator[tuple[str, Path]]:
    """Yields each loop device that has a file, and that file. One whose file was deleted goes by itself, with its last user."""
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # detached meanwhile
            image = os.fsdecode(file.read_bytes().rstrip(b"\n"))
            if not image.endswith(_DELETED):
                yield f"/dev/{file.parts[3]}", Path(image)


def patiently(command: Sequence[str]) -> None:
    """Runs it until it succeeds, for some seconds: a program that was killed takes a moment to be gone, and others look at devices.

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
    """Unmounts all that is mounted below the folder, detaches its loop devices, and removes it. Raises ProgramFailed, OSError.

    A program with mounts of its own (a container, `unshare`) may hold a filesystem that is unmounted everywhere else. Its device is
    detached by the kernel when that program ends, and its image takes room until then: `notice` is told.
    """
    for mount in reversed(mounts()):
        if mount.target.is_relative_to(folder):
            patiently(["umount", str(mount.target)])
    for device, image in _loops():
        if image.is_relative_to(folder):
            run(["btrfs", "device", "scan", "--forget", device], check=False)
            run(["losetup", "--detach", device], check=False)  # the kernel may have let go of it by itself meanwhile
    for device in _still_attached(folder):
        notice(f"another program still holds {device}; the kernel gives its room back when that program ends")
    shutil.rmtree(folder)


def _still_attached(folder: Path) -> list[str]:
    """The loop devices of the folder that somebody still uses after some seconds. Many a program opens a device for a moment."""
    end = time.monotonic() + _UNTIL_DETACHED
    while left := [device for device, image in _loops() if image.is_relative_to(folder)]:
        if time.monotonic() > end:
            break
        time.sleep(_PAUSE / 10)
    return left
