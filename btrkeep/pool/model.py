"""Data types of the pool, without the code that reads them."""

from dataclasses import dataclass

from btrkeep.units import format_size

DEVICE_ERRORS = ("write", "read", "flush", "corruption", "generation")
"""What GET_DEV_STATS counts of a device, in the order of `DeviceUse.errors`."""


@dataclass(frozen=True, slots=True)
class ChunkUse:
    """The used bytes in all chunks of one type ("data") and profile ("raid1") on the same devices, in the order of the stripes."""

    type: str
    profile: str
    used: int
    devids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of data that fit, by location.

    `free` is unused inside allocated data block groups, `unallocated` belongs to no block group yet (as data would be stored:
    halved for raid1 and dup), `total` is the capacity of the empty filesystem. `metadata_free` is unused in allocated metadata
    block groups, including mixed ones, beyond the kernel's own reserve.
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
