"""ioctl(2) with a writable buffer of any size, which lets the other threads run meanwhile; and the numbers of btrfs's requests.

CPython's fcntl.ioctl keeps the interpreter's lock during a call with a writable buffer of more than 1,024 bytes (3.11 to 3.13,
fcntl_ioctl_impl in Modules/fcntlmodule.c). A snapshot waits for a commit of the filesystem, and a FIEMAP for a file to be written
out: with the lock held, everything else in the process would stand still for as long, the event loop too, and two snapshots that
are asked for at once could not become one commit.
"""

import ctypes
import os

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
