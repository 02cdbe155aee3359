"""How a command of btrfs-balancer or btrfs-heatmap is told which filesystem is meant: by a mount point, or by a pool."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from btrkeep.cli.given_path import GivenPath
from btrkeep.errors import OperatorError, UsageError
from btrkeep.units import show_times_in

_FOLDER = Path("/etc/btrkeep")


def complete_mount(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes mount points of btrfs filesystems; folders if none matches."""
    from btrkeep.procfs import mounts

    found = {str(mount.target) for mount in mounts() if mount.filesystem == "btrfs"}
    fitting = [CompletionItem(path) for path in sorted(found) if path.startswith(incomplete)]
    return fitting or [CompletionItem(incomplete, type="dir")]


def show_times_of_pool_on(filesystem: str) -> None:
    """Shows times in the zone of the pool that is on the btrfs with that UUID; in UTC if none is configured, or several are."""
    files = sorted(_FOLDER.glob("[!.]*.toml"))
    if not files:
        return
    from btrkeep.config import load_usable  # takes longer than many a picture
    from btrkeep.pool.marker import open_pool

    zones = set()
    for file in files:
        with suppress(OperatorError, OSError):
            config = load_usable(file=file)
            if open_pool(config.pool.path).filesystem == filesystem:
                zones.add(config.pool.zone)
    if len(zones) == 1:
        show_times_in(zones.pop())


def pool_options(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `pool` (str | None) and `config` (Path | None), which `require_one_pool` must look at. `default`: the pool without."""
    pool = click.option("--pool", metavar="NAME", help=f"The pool, configured in /etc/btrkeep/NAME.toml.  [default: {default}]")
    file = GivenPath(path_type=Path)
    config = click.option("--config", type=file, metavar="FILE", help="The configuration file, instead of a pool's name.")
    return lambda command: pool(config(command))


def pool_words(pool: str | None, config: Path | None) -> list[str]:
    """Returns the options again, as a printed command repeats them; valid in any folder."""
    if config is not None:
        return ["--config", str(config.absolute())]
    return ["--pool", pool] if pool is not None else []


def require_one_pool(pool: str | None, config: Path | None, default: str = "that is on the filesystem") -> None:
    """Raises UsageError when both are given, or an empty one, as an empty variable of a script would."""
    if pool is not None and config is not None:
        raise UsageError("--pool and --config exclude each other", "a file's name is its pool's")
    if pool == "" or (config is not None and str(config) in ("", ".")):
        raise UsageError(f"--{'pool' if config is None else 'config'} names nothing", f"leave it out for the pool {default}")
