"""Opens files in a backup without ever leaving it, because an untrusted host chose its names and symlinks.

A path is a sequence of names, in bytes. Each folder is opened by its name in the folder above, never through a symlink.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from btrkeep.errors import DAMAGED

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOATIME | os.O_CLOEXEC


def is_there(path: Path) -> bool:
    """Returns True if an entry has that name, even if the disk cannot read it; os.path.lexists() returns False then.

    Raises OSError for any other error.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
    return True


def by_descriptor(folder: int, name: bytes) -> bytes:
    """Returns a path for the calls that accept no folder's descriptor: those for extended attributes."""
    return b"/proc/self/fd/%d/%s" % (folder, name)


def open_folder(root: int, path: Iterable[bytes]) -> int:
    """Returns a descriptor of the folder at `path` below the open folder `root`.

    Raises OSError: ENOENT, and ENOTDIR if a component is not a folder or is a symlink. Raises ValueError for "..".
    """
    folder = root
    for name in path:
        try:
            inner = open_inner(folder, name)
        finally:
            if folder != root:
                os.close(folder)
        folder = inner
    return folder if folder != root else os.dup(root)


def open_inner(folder: int, name: bytes) -> int:
    """Returns a descriptor of the folder of that name in an open folder. Raises the same as `open_folder`."""
    if name in (b"..", b".", b"") or b"/" in name:
        raise ValueError(f"{name!r} is not the name of a folder")
    return os.open(name, FOLDER, dir_fd=folder)


def open_on_same_device(folder: int, name: bytes) -> int:
    """Does the same as `open_inner`, but raises OSError with EXDEV if another filesystem or subvolume is mounted there."""
    fd = open_inner(folder, name)
    try:
        require_device(fd, os.fstat(folder).st_dev)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_device(fd: int, device: int) -> None:
    """Raises OSError with EXDEV if an open file is not on that device: another filesystem or subvolume is mounted there."""
    if os.fstat(fd).st_dev != device:
        raise OSError(errno.EXDEV, "another filesystem is mounted there")
