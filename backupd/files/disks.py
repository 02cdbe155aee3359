"""The filesystems that are written to beneath one folder: more than one where something is mounted below it, as below /."""

import contextlib
import os
from pathlib import Path

from btrkeep.pool.marker import filesystem_of
from btrkeep.pool.syncfs import Syncfs


class Disks:
    """One Syncfs for each filesystem, on a descriptor that was open before anything of it was written."""

    def __init__(self) -> None:
        self._devices: set[int] = set()
        self._open: dict[str | int, tuple[int, Syncfs, Path]] = {}

    def see(self, folder: int, path: Path) -> None:
        """Takes the filesystem of an open folder in, before anything is written there. Raises OSError."""
        device = os.fstat(folder).st_dev
        if device in self._devices:
            return
        key = filesystem_of(folder)
        if key not in self._open:
            fd = os.dup(folder)
            self._open[key] = fd, Syncfs(fd), path
        self._devices.add(device)

    def sync(self) -> None:
        """What was written is on all of them when this returns. Raises OSError when one did not take it, with the folder of it that
        was seen first; the others are synced all the same.
        """
        failed: OSError | None = None
        for _, disk, path in self._open.values():
            try:
                disk.sync()
            except OSError as error:
                failed = failed or OSError(error.errno, error.strerror, str(path))
        if failed:
            raise failed

    def close(self) -> None:
        """Closes the descriptors."""
        for fd, _, _ in self._open.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._open.clear()
