"""Compares the room here with the bytes that are used on the other side, before anything was ever fetched from there."""

from backupd.replicate.far_pool import FarPool
from btrkeep.config import Config
from btrkeep.pool.room import read_room
from btrkeep.units import format_size


def lacking_room(config: Config, far: FarPool) -> str:
    """Returns words if this pool has less room above min_free than the other one uses; "" if it has more, or if that is unknown.

    It is a doubt and not a refusal: the replica may fetch only some hosts, or keep fewer backups.
    """
    try:
        room = read_room(config.pool.path)
    except OSError:  # that is told elsewhere
        return ""
    free = max(0, room.available - config.pool.min_free.bytes_of(room.total))
    if far.used is None or far.used <= free:
        return ""
    return f"{format_size(far.used)} are used there, and {format_size(free)} are free here above min_free"
