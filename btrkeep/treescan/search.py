"""Searches trees, one buffer after the other.

The kernel returns consecutive items: a header of 32 bytes (transid, objectid, offset: u64; type, len: u32) and `len` bytes of
payload. Layouts: the kernel's btrfs.h and btrfs_tree.h (struct btrfs_ioctl_search_header and the items' own).
"""

from struct import Struct

from btrfs import ctree
from btrfs import ioctl as numbers

from btrkeep.descriptors import ioctl

# Measured: no difference between 64 KiB and 1 MiB; much larger buffers exceed the processor's cache and are slower.
BUFFER_SIZE = 256 * 1024
TOP: int = numbers.ULLONG_MAX
HEADER = Struct("=QQQLL")
HEADER_SIZE = HEADER.size
TYPE_AND_LEN, TYPE_AND_LEN_AT = Struct("=LL"), 24
LEN, LEN_AT = Struct("=L"), 28

_ARGS_SIZE: int = numbers.ioctl_search_args_v2.size
_BUFFER_SIZE_FIELD = Struct("=Q")

Key = tuple[int, int, int]
"""(objectid, type, offset), in the order in which btrfs sorts them."""


class TreeSearch:
    """The items of a tree between two keys, a buffer at a time; with `since`, only those in leaves written in that generation or
    later.

    `tree` 0 is the subvolume of `fd`. The range is one of compound keys: all other items of 256 are between (256, 1, 0) and (257,
    1, 0), too. The ioctl returns the number of items, but neither the number of bytes nor the last key: the caller that walks the
    buffer reports the position of the last header.
    """

    def __init__(
        self,
        fd: int,
        tree: int = 0,
        first: Key = (0, 0, 0),
        last: Key = (TOP, 255, TOP),
        *,
        since: int = 0,
        buffer_size: int = BUFFER_SIZE,
    ) -> None:
        self.buffer = bytearray(_ARGS_SIZE + buffer_size)
        self.first_header = _ARGS_SIZE
        self._fd = fd
        self._tree = tree
        self._last = last
        self._buffer_size = buffer_size
        self._since = since
        self._resume: Key | None = first

    def only(self, key: Key) -> None:
        """Limits the next search to the item with this key."""
        self._resume = self._last = key

    def restart(self, tree: int, first: Key, last: Key) -> None:
        """Makes the next search start again, in that tree and between those keys."""
        self._tree, self._resume, self._last = tree, first, last

    def fill(self) -> int:
        """Fills the buffer; returns the number of items in it, 0 at the end. Raises OSError: ENOENT if there is no such tree."""
        if self._resume is None:
            return 0
        objectid, kind, offset = self._resume
        last_objectid, last_kind, last_offset = self._last
        key = (self._tree, objectid, last_objectid, offset, last_offset, self._since, TOP, kind, last_kind, numbers.ULONG_MAX)
        numbers.ioctl_search_key.pack_into(self.buffer, 0, *key)
        _BUFFER_SIZE_FIELD.pack_into(self.buffer, numbers.ioctl_search_key.size, self._buffer_size)
        ioctl(self._fd, numbers.IOC_TREE_SEARCH_V2, self.buffer)
        return int(numbers.ioctl_search_key.unpack_from(self.buffer, 0)[9])

    def resume_after(self, header: int) -> None:
        """Makes the next search start after the item whose header is at `header`: at the next key of (objectid, type, offset)."""
        _, objectid, offset, kind, _ = HEADER.unpack_from(self.buffer, header)
        if (objectid, kind, offset) >= self._last:
            self._resume = None
        else:
            following = ctree.Key(objectid, kind, offset) + 1
            self._resume = (following.objectid, following.type, following.offset)
