"""The options that name the pool whose catalogue is meant. Without them it is the one on the filesystem."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from btrkeep.errors import UsageError

_POOL = click.option(
    "--pool", "pool", metavar="NAME", help="The pool, configured in /etc/btrkeep/NAME.toml.  [default: the one on it]"
)
_CONFIG = click.option(
    "--config", "config", type=click.Path(path_type=Path), metavar="FILE", help="The configuration file, instead of a pool's name."
)


def which_pool(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `pool` (str | None) and `config` (Path | None), which `see_one_pool` must look at."""
    return _POOL(_CONFIG(command))


def see_one_pool(pool: str | None, config: Path | None) -> None:
    """Raises UsageError when both are given, or an empty one, as an empty variable of a script would."""
    if pool is not None and config is not None:
        raise UsageError("--pool and --config exclude each other", "a file's name is its pool's")
    if pool == "" or (config is not None and str(config) in ("", ".")):
        raise UsageError(
            f"--{'pool' if config is None else 'config'} names nothing", "leave it out for the pool that is on the filesystem"
        )
