"""One look at the pool: what the kernel says at this moment. Everything but the orphans comes from what it has in memory."""

from dataclasses import dataclass

from btrkeep.pool.activity import Counters, read_activity, read_counters
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import Mount, mount_of
from btrkeep.pool.orphans import orphan_items


@dataclass(frozen=True, slots=True)
class Look:
    """`orphans`: how many deleted subvolumes wait; None when we may not ask, which needs CAP_SYS_ADMIN."""

    allocation: Allocation
    counters: Counters
    orphans: int | None
    mount: Mount
    activity: tuple[str, ...]


def look(pool: Pool) -> Look:
    """Raises OSError."""
    allocation = read_allocation(pool.path)
    return Look(
        allocation,
        read_counters(pool.path),
        _orphans(pool),
        mount_of(pool.path),
        read_activity(pool.path, [device.devid for device in allocation.devices]),
    )


def _orphans(pool: Pool) -> int | None:
    try:
        return len(orphan_items(pool.path))
    except PermissionError:
        return None
