"""The configuration of a pool: /etc/btrkeep/POOL.toml and its drop-ins.

`load` reads, checks and merges it into frozen dataclasses, or says everything that is wrong with it at once. The keys, their kinds,
defaults and meanings are one table in :mod:`btrkeep.config.keys`, which docs/configuration.rst is made from too.
"""

from btrkeep.config.model import BackupSettings, Config, GroupSettings, HostConfig, PoolSettings, SshSettings
from btrkeep.config.reading import load
from btrkeep.config.sample import example
from btrkeep.config.values import MinFree, Window

__all__ = [
    "BackupSettings",
    "Config",
    "GroupSettings",
    "HostConfig",
    "MinFree",
    "PoolSettings",
    "SshSettings",
    "Window",
    "example",
    "load",
]
