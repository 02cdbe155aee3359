"""What a look at a pool gives: plain data, without what looks."""

from dataclasses import dataclass

from btrkeep.units import format_size


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of data that fit, by where they are.

    `free` is unused inside allocated data block groups, `unallocated` is not given to any block group yet (as data would
    be stored: halved for raid1 and dup), `total` is what the filesystem would hold with nothing in it. `metadata_free` is what is
    unused in allocated metadata block groups, mixed ones among them, beyond the kernel's own reserve.
    """

    total: int
    free: int
    unallocated: int
    metadata_free: int

    @property
    def available(self) -> int:
        """Room for data: free in block groups and unallocated."""
        return self.free + self.unallocated

    def __str__(self) -> str:
        return f"{format_size(self.unallocated)} unallocated and {format_size(self.free)} free in data block groups"
