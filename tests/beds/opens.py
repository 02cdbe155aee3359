"""Whether a file was opened by any process, in any way: reported by the kernel (inotify)."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_OPEN = 0x20
_libc = ctypes.CDLL(None, use_errno=True)


class Opens:
    """Counts how often watched files were opened. A descriptor with O_PATH does not count."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def count(self) -> int:
        """How many came since the last look."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return 0
        return len(data) // 16  # an event of a single file has no name behind its 16 bytes


@contextmanager
def watched(*paths: Path) -> Iterator[Opens]:
    """Makes the kernel report each opening of one of `paths`, until the context ends."""
    fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    try:
        for path in paths:
            done = _libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN)
            assert done >= 0, os.strerror(ctypes.get_errno())
        yield Opens(fd)
    finally:
        os.close(fd)
