"""File descriptors: closed at the end of a `with`, pipes with a larger buffer, and ioctl(2) with a writable buffer of any size.

CPython's fcntl.ioctl keeps the interpreter's lock during a call with a writable buffer of more than 1,024 bytes (3.11 to 3.13,
fcntl_ioctl_impl in Modules/fcntlmodule.c). A snapshot waits for a commit of the filesystem, and a FIEMAP until a file is written:
with the lock held, everything else in the process would stop during that time, including the event loop, and two snapshots
requested at the same time could not share one commit.
"""

import ctypes
import fcntl
import os
from contextlib import suppress
from typing import Self

PIPE_BYTES = 1 << 20


class Closing:
    """An object that a `with` closes at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ClosingFd:
    """Returns the descriptor for a `with`, and closes it at the end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def widen_pipe(fd: int) -> None:
    """Enlarges the buffer of a pipe to PIPE_BYTES, so that its writer waits less often for its reader. Changes nothing if that is
    not possible. The default is 64 KiB: a gibibyte takes 2.6 s with it, and 0.8 s with a mebibyte (two idle processors).
    """
    with suppress(OSError):  # not a pipe, or above the user's limit (/proc/sys/fs/pipe-user-pages-soft)
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


_ioctl = ctypes.CDLL(None, use_errno=True).ioctl
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_ioctl.restype = ctypes.c_int


def iow(number: int, size: int) -> int:
    """Returns the number of a request of btrfs that reads `size` bytes from its caller: _IOW(BTRFS_IOCTL_MAGIC, ...)."""
    return 1 << 30 | size << 16 | 0x94 << 8 | number


def ior(number: int, size: int) -> int:
    """Returns the number of a request that writes them to its caller: _IOR."""
    return 2 << 30 | size << 16 | 0x94 << 8 | number


def iowr(number: int, size: int) -> int:
    """Returns the number of a request that does both: _IOWR."""
    return iow(number, size) | ior(number, size)


def ioctl(fd: int, request: int, buffer: bytearray) -> int:
    """Calls ioctl(2) with `buffer` as its argument and result. Returns the kernel's non-negative answer. Raises OSError."""
    answer = int(_ioctl(fd, request, ctypes.byref(ctypes.c_char.from_buffer(buffer))))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
