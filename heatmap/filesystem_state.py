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
    """A filesystem at one time. All sizes are bytes; all addresses are in order. `devid`, `total_bytes`: u64[d], by devid.

    Device extents, u64[m] each, by devid and position: `de_vaddr` is the chunk's address.

    Chunks, by address: `ch_vaddr`, `ch_length`, `ch_type` u64[c], `ch_stripes` i64[c], number of stripes; of all stripes in that
    order `st_chunk` i64[s], the chunk's index, `st_devid` and `st_paddr` u64[s].

    Block groups, u64[n] each, by address; each has the chunk with its address, though a chunk may just have none. `score` f32[n]:
    the balancer's, NaN without data. `generation` u64[n]: the average transaction, by bytes, in which the content was written; 0
    without content.
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
    de_length: Array
    ch_vaddr: Array
    ch_length: Array
    ch_type: Array
    ch_stripes: Array
    st_chunk: Array
    st_devid: Array
    st_paddr: Array
    bg_vaddr: Array
    bg_length: Array
    bg_used: Array
    bg_flags: Array
    score: Array | None = None
    generation: Array | None = None
