"""Whether the pool has room for what comes."""

from backupd.replicate.outcome import ReplicationContext
from btrkeep.decisions.pool_room import lacks_room
from btrkeep.errors import PoolUnusable
from btrkeep.pool.model import Room
from btrkeep.pool.room import read_room


def require_room(site: ReplicationContext) -> Room:
    """Returns the room of the pool. Raises PoolUnusable if it has less than `min_free`."""
    room = read_room(site.pool.path)
    if why := lacks_room(room, site.config.pool.min_free):
        raise PoolUnusable(why, "expire backups, or give the pool more room")
    return room
