"""Opens a mounted btrfs, and explains errors."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrkeep.errors import OperatorError
from btrkeep.treescan.devices import filesystem

_IS_ANOTHER = (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # what others say to an ioctl that is not theirs


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yields a descriptor on the btrfs of `path`, any folder or file. Raises OperatorError.

    Errors while its trees are read within the context are converted as well.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        raise OperatorError(f"{path} may not be opened", "run this as root") from None
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}", "name where a btrfs is mounted: `findmnt -t btrfs` lists them") from None
    try:
        _require_btrfs(fd, path)
        yield fd
    except PermissionError:
        raise OperatorError(f"the trees of the btrfs at {path} may not be read", "run this as root") from None
    except OSError as error:
        raise OperatorError(
            f"the btrfs at {path} cannot be read: {error.strerror}", "look at the kernel's messages (dmesg)"
        ) from None
    finally:
        os.close(fd)


def _require_btrfs(fd: int, path: Path) -> None:
    if stat.S_ISBLK(os.fstat(fd).st_mode):
        raise OperatorError(f"{path} is a device", f"name where it is mounted: `findmnt {path}` tells, if it is")
    try:
        filesystem(fd)
    except OSError as error:
        if error.errno not in _IS_ANOTHER:
            raise
        hint = "is it mounted? `findmnt -t btrfs` lists what is"
        raise OperatorError(f"{path} is not on a btrfs", hint) from None
