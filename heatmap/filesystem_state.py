"""The arrays from which a picture of a whole filesystem is drawn, also after they were recorded. Pure: `state_reader`
fills them.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

DATA, SYSTEM, METADATA = 1, 2, 4  # BTRFS_BLOCK_GROUP_*, btrfs_tree.h
TYPE_MASK = DATA | SYSTEM | METADATA
PROFILES = {
    0: "single", 1 << 5: "DUP", 1 << 3: "RAID0", 1 << 4: "RAID1", 1 << 9: "RAID1C3", 1 << 10: "RAID1C4", 1 << 6: "RAID10",
    1 << 7: "RAID5", 1 << 8: "RAID6",
}  # fmt: skip
PROFILE_MASK = sum(PROFILES)  # BTRFS_BLOCK_GROUP_PROFILE_MASK


@dataclass(frozen=True, slots=True, eq=False)
class FilesystemState:
    """A filesystem at one time, as tables of arrays. All sizes are bytes.

    Devices, u64[d] each, by devid. Device extents (de_), u64[m] each, by devid and position. Chunks (ch_), u64[c] each, by address,
    and their stripes (st_), in the order of the chunks. Block groups (bg_), u64[n] each, by address. Each block group has the chunk
    with its address; a chunk may have no block group.
    """

    fsid: str
    """The UUID."""
    label: str
    """The filesystem's label."""
    taken: datetime
    """When it was read."""
    nodesize: int
    """Bytes."""
    sectorsize: int
    """Bytes."""
    devid: Array
    total_bytes: Array
    de_devid: Array
    de_paddr: Array
    de_vaddr: Array
    """The address of its chunk."""
    de_length: Array
    ch_vaddr: Array
    ch_length: Array
    ch_type: Array
    ch_stripes: Array
    """i64[c]: the number of stripes."""
    st_chunk: Array
    """i64[s]: the index of the chunk."""
    st_devid: Array
    """u64[s]."""
    st_paddr: Array
    """u64[s]."""
    bg_vaddr: Array
    bg_length: Array
    bg_used: Array
    bg_flags: Array
    score: Array | None = None
    """f32[n]: the balancer's score; NaN for a block group without data."""
    generation: Array | None = None
    """u64[n]: the average transaction, by bytes, in which the content was written; 0 without content."""
