"""Decides when a pool has too little room for another transfer. Pure."""

from btrkeep.config.values import MinFree
from btrkeep.pool.model import Room

LEAST_METADATA = 32 << 20
MAKE_ROOM = "`backupd expire` deletes what is due; keep less, or add a device"
"""The hint for a pool with too little room."""


def least_metadata(total: int) -> int:
    """Bytes of room for metadata below which no transfer starts: 32 MiB, or a hundredth of a small pool."""
    return min(LEAST_METADATA, total // 100)


def for_metadata(room: Room) -> int:
    """Bytes that metadata can still take without another kind giving any back."""
    return max(room.unallocated, room.metadata_free)


def lacks_room(room: Room, min_free: MinFree) -> str:
    """Returns why no new transfer may start, or None. Free space in block groups and unallocated space are added up."""
    if room.available < min_free.bytes_of(room.total):
        return f"the pool has too little room: {room}, below min_free = {min_free}"
    if for_metadata(room) < least_metadata(room.total):
        return f"the pool has too little room for metadata: {room}"
    return ""
