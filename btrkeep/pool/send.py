"""BTRFS_IOC_SEND: a read-only subvolume as a stream, whole or as the difference to a parent.

The layout is that of include/uapi/linux/btrfs.h; `btrfs receive` reads the stream. python-btrfs has no call for it.
"""

import ctypes
import struct
from pathlib import Path

from btrkeep.ioctl import ioctl, iow
from btrkeep.pool.subvolume import opened

_ARGS = struct.Struct("=qQQQQI28x")  # fd, number of clone sources, their address, parent's id, flags, version
_SEND = iow(38, _ARGS.size)
_VERSION, _COMPRESSED = 1 << 3, 1 << 4
NEWEST = 2
_KNOWN = Path("/sys/fs/btrfs/features/send_stream_version")


def newest_stream() -> int:
    """The newest version of the stream that this kernel sends, as far as it is known here; before Linux 6.0 there was one."""
    try:
        return min(NEWEST, int(_KNOWN.read_text()))
    except (OSError, ValueError):
        return 1


def send(subvolume: Path, out: int, parent: int | None, version: int) -> None:
    """Writes a send stream to the pipe `out`, incremental to the subvolume with the id `parent`. Raises OSError.

    From version 2 on compressed extents are sent as they are on disk. Blocks while the reader is slow; other threads run meanwhile.
    """
    source = ctypes.c_uint64(parent or 0)
    flags = _VERSION | _COMPRESSED if version > 1 else 0
    args = _ARGS.pack(out, int(parent is not None), ctypes.addressof(source) if parent else 0, parent or 0, flags, version)
    with opened(subvolume) as fd:
        ioctl(fd, _SEND, bytearray(args))
