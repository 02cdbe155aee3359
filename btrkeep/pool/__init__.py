"""A btrfs that holds a pool: its marker, its subvolumes, its locks, its room. With treescan, the only user of python-btrfs."""

from btrkeep.pool.locks import Holder, Lock, take_lock
from btrkeep.pool.marker import HOSTS, MARKER, WORKING, Pool, create_pool, is_on, open_pool
from btrkeep.pool.room import Room, mount_options, read_room
from btrkeep.pool.subvolume import Subvolume, commit, create, delete, describe, is_read_only, set_read_only, snapshot

__all__ = [
    "HOSTS",
    "MARKER",
    "WORKING",
    "Holder",
    "Lock",
    "Pool",
    "Room",
    "Subvolume",
    "commit",
    "create",
    "create_pool",
    "delete",
    "describe",
    "is_on",
    "is_read_only",
    "mount_options",
    "open_pool",
    "read_room",
    "set_read_only",
    "snapshot",
    "take_lock",
]
