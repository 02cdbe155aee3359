"""Which subvolumes, and which files in them, refer to the data at an address, by LOGICAL_INO_V2: the kernel walks back.

A reference in the extent tree names one tree, or one tree block, and snapshots share tree blocks: who shares an extent is not to be
read there. The kernel follows the tree blocks up to every root. Layouts: struct btrfs_ioctl_logical_ino_args and
btrfs_data_container in linux/btrfs.h (Linux 4.15).
"""

import ctypes
import errno
from array import array
from fcntl import ioctl
from struct import Struct

from btrfs import ioctl as numbers

Reference = tuple[int, int, int]
"""(inode, offset in the file, subvolume)."""
_ARGS = Struct("=QQ24xQQ")  # logical, size of the buffer, flags, address of the buffer
_COUNTS = Struct("=LLLL")  # bytes left, bytes missing, elements, elements missed
_WHOLE_EXTENT = 1  # references to any part of the extent, not only to the byte at the address
_SMALL, _LARGE = 64 << 10, 16 << 20  # the largest that the kernel takes
_NOTHING_THERE = (errno.ENOENT, errno.EINVAL)  # free space; a tree block


class Owners:
    """Asks about one address after the other, with one buffer. `fd` is any folder of the filesystem."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = ctypes.create_string_buffer(_SMALL)

    def of(self, vaddr: int) -> frozenset[int] | None:
        """Returns the ids of the subvolumes that refer to the data extent containing `vaddr`; None if there is no data.

        As of the last commit. Empty if nothing refers to the extent any more. Raises OSError (EPERM without CAP_SYS_ADMIN). For an
        extent with more than 700,000 references the kernel returns only a part.
        """
        missing = self._ask(vaddr)
        if missing:
            self._buffer = ctypes.create_string_buffer(_LARGE)
            missing = self._ask(vaddr)
        if missing is None:
            return None
        return frozenset(self._values()[2::3])

    def references(self, vaddr: int) -> list[Reference] | None:
        """(inode, offset in the file, subvolume) of each reference to the byte at `vaddr`; None where no data lies.

        Of a compressed extent the offset is where the file's extent begins. Otherwise as `of`.
        """
        missing = self._ask(vaddr, 0)
        if missing:
            self._buffer = ctypes.create_string_buffer(_LARGE)
            missing = self._ask(vaddr, 0)
        if missing is None:
            return None
        values = self._values()
        return list(zip(values[::3], values[1::3], values[2::3], strict=True))

    def _values(self) -> "array[int]":
        """inode, offset, root, and so on."""
        count = _COUNTS.unpack_from(self._buffer)[2]
        return array("Q", memoryview(self._buffer).cast("B")[_COUNTS.size : _COUNTS.size + 8 * count].tobytes())

    def _ask(self, vaddr: int, flags: int = _WHOLE_EXTENT) -> int | None:
        """The references that found no room in the buffer; None when no data lies there."""
        arguments = _ARGS.pack(vaddr, len(self._buffer), flags, ctypes.addressof(self._buffer))
        try:
            ioctl(self._fd, numbers.IOC_LOGICAL_INO_V2, arguments)
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return None
            raise
        return int(_COUNTS.unpack_from(self._buffer)[3])
