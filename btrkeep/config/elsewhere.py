"""Finds a pool's state folder for the dashboard: in /var/lib/btrkeep, or where a link there points to.

The configuration says where the folder is, but only root may read it, and what the configuration publishes is inside that folder.
So programs that run as root leave a link in the default place: /var/lib/btrkeep/.main -> /srv/state/main. (No pool's name begins
with a dot.)
"""

import os
from pathlib import Path

from btrkeep.config.build import STATE
from btrkeep.config.model import Config
from btrkeep.config.reading import FOLDER
from btrkeep.hung_storage import answers


def state_of(pool: str, usual: Path = STATE) -> Path:
    """The state folder, as far as it is known without the configuration."""
    try:
        return _link(pool, usual).readlink()
    except OSError:
        return usual / pool


def point(config: Config, usual: Path = STATE, folder: Path = FOLDER) -> None:
    """Leave the link, renew it, or take it away where it is not needed.

    Only for this machine's pools, which are configured in /etc/btrkeep, and where btrkeep is installed. Raises OSError.
    """
    if config.file != folder / f"{config.name}.toml" or not answers(usual) or not usual.is_dir():
        return
    link, wanted = _link(config.name, usual), config.pool.state
    if wanted == usual / config.name:
        link.unlink(missing_ok=True)
    elif not link.is_symlink() or state_of(config.name, usual) != wanted:
        beside = link.with_name(f"{link.name}.{os.getpid()}")
        beside.symlink_to(wanted)
        beside.replace(link)


def _link(pool: str, usual: Path) -> Path:
    return usual / f".{pool}"
