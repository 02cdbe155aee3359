"""What there is in a pool by its names alone: hosts and backups as folders. Nothing is opened, and the catalogue not asked."""

import os

from btrkeep.pool.marker import WORKING, Pool
from btrkeep.units import parse_backup_name


def hosts_of(pool: Pool) -> list[str]:
    """The hosts that have a folder in the pool."""
    return sorted(entry.name for entry in os.scandir(pool.hosts) if entry.is_dir(follow_symlinks=False))


def names_of(pool: Pool, host: str) -> set[str]:
    """The names in a host's folder that may be backups, `.working` among them."""
    try:
        return {entry.name for entry in os.scandir(pool.host(host)) if entry.name == WORKING or parse_backup_name(entry.name)}
    except FileNotFoundError:
        return set()
