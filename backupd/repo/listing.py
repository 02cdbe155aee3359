"""Lists hosts and backups of a pool by the names of their folders. Opens nothing and does not use the catalogue."""

import os
from collections.abc import Set as AbstractSet

from btrkeep.pool.marker import WORKING, Pool
from btrkeep.units import parse_backup_name


def hosts_of(pool: Pool) -> list[str]:
    """Returns the hosts that have a folder in the pool."""
    return sorted(entry.name for entry in os.scandir(pool.hosts) if entry.is_dir(follow_symlinks=False))


def names_of(pool: Pool, host: str, wanted: AbstractSet[str] = frozenset()) -> set[str]:
    """The names in a host's folder that may be backups, `.working` among them.

    Those that are `known` to be such are not taken apart, which is half of the time where there are many.
    """
    try:
        names = [entry.name for entry in os.scandir(pool.host(host))]
        return {name for name in names if name in wanted or name == WORKING or parse_backup_name(name)}
    except FileNotFoundError:
        return set()
