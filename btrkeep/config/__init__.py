"""The configuration of a pool: /etc/btrkeep/POOL.toml and its drop-ins.

`load` reads, checks and merges it into frozen dataclasses, or says everything that is wrong with it at once. The keys, their kinds,
defaults and meanings are one table in :mod:`btrkeep.config.keys`, which docs/configuration.rst is made from too.
"""

from btrkeep.config.model import (
    BackupSettings,
    Config,
    ExpirySettings,
    GroupSettings,
    HostConfig,
    PoolSettings,
    Retention,
    SshSettings,
)
from btrkeep.config.reading import load
from btrkeep.config.sample import example
from btrkeep.config.values import MinFree, Pace, Window

__all__ = [
    "BackupSettings",
    "Config",
    "ExpirySettings",
    "GroupSettings",
    "HostConfig",
    "MinFree",
    "Pace",
    "PoolSettings",
    "Retention",
    "SshSettings",
    "Window",
    "example",
    "load",
]
