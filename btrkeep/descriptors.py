"""File descriptors: closed at the end of a `with`, pipes that hold more, and ioctl(2) with a writable buffer of any size.

CPython's fcntl.ioctl keeps the interpreter's lock during a call with a writable buffer of more than 1,024 bytes (3.11 to 3.13,
fcntl_ioctl_impl in Modules/fcntlmodule.c). A snapshot waits for a commit of the filesystem, and a FIEMAP for a file to be written
out: with the lock held, everything else in the process would stand still for as long, the event loop too, and two snapshots that
are asked for at once could not become one commit.
"""

import ctypes
import fcntl
import os
from contextlib import suppress

PIPE_BYTES = 1 << 20


class ClosingFd:
    """Gives the descriptor to a `with`, and closes it at the end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def widen_pipe(fd: int) -> None:
    """Makes a pipe hold PIPE_BYTES, so that its writer waits less often for its reader. Changes nothing if that is not possible.

    A pipe holds 64 KiB by default: a gibibyte takes 2.6 s with it, and 0.8 s with a mebibyte (two idle processors).
    """
    with suppress(OSError):  # no pipe, or more than the user may have (/proc/sys/fs/pipe-user-pages-soft)
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


_ioctl = ctypes.CDLL(None, use_errno=True).ioctl
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_ioctl.restype = ctypes.c_int


def iow(number: int, size: int) -> int:
    """Returns the number of a request of btrfs that reads `size` bytes from its caller: _IOW(BTRFS_IOCTL_MAGIC, ...)."""
    return 1 << 30 | size << 16 | 0x94 << 8 | number


def ior(number: int, size: int) -> int:
    """The same of one that writes them to its caller: _IOR."""
    return 2 << 30 | size << 16 | 0x94 << 8 | number


def iowr(number: int, size: int) -> int:
    """The same of one that does both: _IOWR."""
    return iow(number, size) | ior(number, size)


def ioctl(fd: int, request: int, buffer: bytearray) -> int:
    """Calls ioctl(2) with `buffer` as its argument and result. Returns the kernel's non-negative answer. Raises OSError."""
    answer = int(_ioctl(fd, request, ctypes.byref(ctypes.c_char.from_buffer(buffer))))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
