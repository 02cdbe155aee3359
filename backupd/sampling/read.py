"""One look at the pool: what the kernel says at this moment. Everything but the orphans comes from what it has in memory."""

from dataclasses import dataclass

from btrkeep.pool.activity import Counters, read_activity, read_counters
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.orphans import orphan_items


@dataclass(frozen=True, slots=True)
class PoolReading:
    """`orphans`: how many deleted subvolumes wait; None when we may not ask, which needs CAP_SYS_ADMIN.

    `options`: how the pool is mounted, as the machine has it; without those of the mount where a service cannot see them.
    """

    allocation: Allocation
    counters: Counters
    orphans: int | None
    options: tuple[str, ...]
    activity: tuple[str, ...]


def look(pool: Pool) -> PoolReading:
    """Raises OSError."""
    allocation = read_allocation(pool.path)
    return PoolReading(
        allocation,
        read_counters(pool.path),
        _orphans(pool),
        _options(pool),
        read_activity(pool.path, [device.devid for device in allocation.devices]),
    )


def _options(pool: Pool) -> tuple[str, ...]:
    machine = machine_mount(pool.path)
    return (*(machine.mount_options if machine else ()), *mount_of(pool.path).super_options)


def _orphans(pool: Pool) -> int | None:
    try:
        return len(orphan_items(pool.path))
    except PermissionError:
        return None
