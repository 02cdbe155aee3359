"""FIDEDUPERANGE: two files share the data that they have alike. The kernel locks and compares both, so no content changes.

Times, owner and attributes stay. Root may do it with files that are open for reading, also in a read-only subvolume.
"""

import errno
from collections.abc import Iterator
from struct import Struct

from btrkeep.fs.sparse import data_runs
from btrkeep.ioctl import ioctl

PIECE = 16 << 20
"""Bytes of one call: what btrfs compares at a time, and so what a cancellation waits for."""
OF_ONE_FILE = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EXDEV,
        errno.EINVAL,
        errno.EIO,
        errno.EOPNOTSUPP,
        errno.ETXTBSY,
    )
)
"""Errors of one file: missing, of another kind, behind a symlink or a mount, without checksums, not to be read or shared."""
_FIDEDUPERANGE = 0xC0189436
_RANGE = Struct("=QQHHIqQQiI")  # source offset, length, count; of the one destination: fd, offset, bytes shared, status
_SAME = 0


def shared_pieces(source: int, destination: int, size: int) -> Iterator[int]:
    """Makes `destination` share the data of `source` by pieces; yields the bytes that it shares now of each piece, 0 if unlike.

    Both files have `size` bytes. Holes of the destination stay. Raises OSError, EINVAL where only one of the two has checksums, EIO
    where data cannot be read.
    """
    for start, end in data_runs(destination, size):
        for at in range(start, end, PIECE):
            yield _share(source, destination, at, min(PIECE, end - at))


def _share(source: int, destination: int, at: int, length: int) -> int:
    buffer = bytearray(_RANGE.pack(at, length, 1, 0, 0, destination, at, 0, 0, 0))
    ioctl(source, _FIDEDUPERANGE, buffer)
    *_, shared, status, _ = _RANGE.unpack(buffer)
    if status < 0:
        raise OSError(-status, "the data cannot be shared")
    return int(shared) if status == _SAME else 0
