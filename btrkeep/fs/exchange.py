"""Two names that change places at once: renameat2(2) with RENAME_EXCHANGE, which Python has not."""

import ctypes
import os
from pathlib import Path

_AT_FDCWD, _EXCHANGE = -100, 2
_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, other: Path) -> None:
    """Exchanges two names atomically: both exist at all times. Raises OSError."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
