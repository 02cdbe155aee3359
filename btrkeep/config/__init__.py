"""The configuration of a pool: /etc/btrkeep/POOL.toml and its drop-ins.

`load` reads, checks and merges it into frozen dataclasses, or reports all mistakes together. A key, its type, default and meaning
are declared at the field that it sets, in `settings` or `config_model`. `keys` collects them; docs/configuration.rst and
man/btrkeep.toml.5 are made from that table.
"""

from btrkeep.config.config_model import Config, HostConfig, Retention
from btrkeep.config.for_reports import ReportingConfig, load_for_reports, renew_state_link, state_of
from btrkeep.config.problems import page
from btrkeep.config.published import Published, publish, published
from btrkeep.config.reading import keep_valid, load, load_usable, other_pools
from btrkeep.config.sample_config import example, is_example
from btrkeep.config.settings import BalanceSettings, ExpirySettings, NotifySettings, PoolSettings, SshSettings
from btrkeep.config.values import Listen, Pace, Url, Window

__all__ = [
    "BalanceSettings",
    "Config",
    "ExpirySettings",
    "HostConfig",
    "Listen",
    "NotifySettings",
    "Pace",
    "PoolSettings",
    "Published",
    "ReportingConfig",
    "Retention",
    "SshSettings",
    "Url",
    "Window",
    "example",
    "is_example",
    "keep_valid",
    "load",
    "load_for_reports",
    "load_usable",
    "other_pools",
    "page",
    "publish",
    "published",
    "renew_state_link",
    "state_of",
]
