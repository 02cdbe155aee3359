"""Folders of this machine to which a restore is limited if its user may not choose any place.

All places are reached from the root by names, each folder opened in the one before and never through a symlink, so a place is where
its names say. A filesystem that is mounted below such a folder lies elsewhere and is not entered.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from backupd.files.tree import components
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError
from btrkeep.fs.openat import FOLDER, open_folder
from btrkeep.pool.mounts import mount_id

Names = tuple[bytes, ...]
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def names_of(path: Path) -> Names:
    """The names of an absolute path. Raises ValueError for ".."."""
    return tuple(components(os.fsencode(path)))


class AllowedFolders:
    """`folders` are absolute, and not reached through symlinks. One that is not there lets nothing in."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._mounts = {names: _mount(names) for names in map(names_of, folders)}

    def containing(self, names: Names) -> Names | None:
        """The folder that a place is at or below; None when it is outside of all."""
        return next((folder for folder in self._mounts if names[: len(folder)] == folder), None)

    def require(self, fd: int, names: Names) -> None:
        """Raises PermissionError if the open file `fd`, reached by these names, must not be restored into.

        Folders on the way to an allowed one may only be read.
        """
        folder = self.containing(names)
        if folder is None:
            if not any(inner[: len(names)] == names for inner in self._mounts):
                raise PermissionError(errno.EPERM, "it is outside of what may be restored into")
        elif mount_id(fd) != self._mounts[folder]:
            raise PermissionError(errno.EPERM, "something else is mounted there, which may not be restored into")

    def open(self, path: Path, *, make: bool) -> tuple[int, bool]:
        """A descriptor of a folder that all is restored into, and whether it was made for that, for root alone.

        Raises OSError; UsageError when it is one that others can write to, who might lead the restore astray.
        """
        names = names_of(path)
        with ClosingFd(_open(names[:-1])) as above:
            made = bool(names) and make and _made(above, names)
            fd = os.open(names[-1] if names else b".", FOLDER, dir_fd=above)
        try:
            self.require(fd, names)
            found = os.fstat(fd)
            if names and (found.st_uid or found.st_mode & _OTHERS):
                raise UsageError(f"{path} can be written by others than root", "take it away, or: chown root, chmod go-w")
        except BaseException:
            os.close(fd)
            raise
        return fd, made


def _made(above: int, names: Names) -> bool:
    try:
        os.mkdir(names[-1], 0o700, dir_fd=above)
    except FileExistsError:
        return False
    return True


def _open(names: Names) -> int:
    with ClosingFd(os.open("/", FOLDER)) as root:
        return open_folder(root, names)


def _mount(names: Names) -> int:
    """Returns the mount id, or -1, which no mount has, if the place does not exist."""
    try:
        fd = _open(names)
    except OSError:
        return -1
    with ClosingFd(fd):
        return mount_id(fd)
