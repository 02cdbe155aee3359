"""Opens a mounted btrfs by any path on it, and explains errors."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrkeep.capabilities import privilege_hint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.mounts import mount_of


@contextmanager
def open_btrfs(path: Path, unusable: type[OperatorError] = PoolUnusable) -> Iterator[int]:
    """Yields a descriptor on the btrfs of `path`, any folder or file. Raises `unusable`.

    Errors while its trees are read within the context are converted as well: missing privilege, or a kernel without support.
    """
    _require_btrfs(path, unusable)
    try:
        with ClosingFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            yield fd
    except PermissionError:
        raise unusable(f"the trees of the btrfs at {path} may not be read", privilege_hint()) from None
    except OSError as error:
        what = f"the btrfs at {path} cannot be read: {error.strerror}"
        raise unusable(what, "look at the kernel's messages (dmesg)") from None


def _require_btrfs(path: Path, unusable: type[OperatorError]) -> None:
    try:
        kind, mount = path.stat().st_mode, mount_of(path)
    except PermissionError:
        raise unusable(f"{path} may not be looked at", privilege_hint("CAP_DAC_READ_SEARCH")) from None
    except OSError as error:
        raise unusable(f"{path}: {error.strerror}", "name where a btrfs is mounted: `findmnt -t btrfs` lists them") from None
    if stat.S_ISBLK(kind):
        raise unusable(f"{path} is a device", f"name where it is mounted: `findmnt {path}` says it")
    if mount.filesystem != "btrfs":
        raise unusable(f"{path} is on {mount.filesystem}, not on btrfs", "`findmnt -t btrfs` lists what is mounted")
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise unusable(f"{path} is neither a folder nor a file", f"name the folder that it is in: {path.parent}")
