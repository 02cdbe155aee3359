"""Whether the pool has room for what comes."""

from backupd.replicate.outcome import ReplicationContext
from btrkeep.decisions.pool_room import lacks_room
from btrkeep.errors import PoolUnusable
from btrkeep.pool.room import read_room


def require_room(site: ReplicationContext) -> None:
    """Raises PoolUnusable if the pool has less room than `min_free`."""
    if why := lacks_room(read_room(site.pool.path), site.config.pool.min_free):
        raise PoolUnusable(why, "expire backups, or give the pool more room")
