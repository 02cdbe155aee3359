"""Whether the pool has room for what comes."""

from btrkeep.config import Config
from btrkeep.decisions.pool_health import MAKE_ROOM, lacks_room
from btrkeep.errors import PoolUnusable
from btrkeep.pool.allocation import read_room
from btrkeep.pool.marker import Pool
from btrkeep.pool.model import Room


def require_room(pool: Pool, config: Config) -> Room:
    """Returns the room of the pool. Raises PoolUnusable if it has less than `min_free`; OSError."""
    room = read_room(pool.path)
    if why := lacks_room(room, config.pool.min_free):
        raise PoolUnusable(why, MAKE_ROOM)
    return room
