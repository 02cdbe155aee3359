"""The argument that names a filesystem, and the options that name a pool, whose filesystem is used without a mount point and whose
catalogue records the results.

Without them, the catalogue of the pool on the filesystem is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from btrkeep.errors import UsageError

if TYPE_CHECKING:
    from btrkeep.config import BalanceSettings


def complete_mount(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes mount points of btrfs filesystems; folders if none matches."""
    from btrkeep.procfs import mounts

    found = {str(mount.target) for mount in mounts() if mount.filesystem == "btrfs"}
    fitting = [CompletionItem(path) for path in sorted(found) if path.startswith(incomplete)]
    return fitting or [CompletionItem(incomplete, type="dir")]


mount_point = click.argument(
    "path", metavar="MOUNTPOINT", required=False, type=click.Path(path_type=Path), shell_complete=complete_mount
)
"""For every command that looks at a filesystem. Without it `meant` finds that of the pool that is named."""

_POOL = click.option(
    "--pool", "pool", metavar="NAME", help="The pool, configured in /etc/btrkeep/NAME.toml.  [default: the one on it]"
)
_CONFIG = click.option(
    "--config", "config", type=click.Path(path_type=Path), metavar="FILE", help="The configuration file, instead of a pool's name."
)


@dataclass(frozen=True, slots=True)
class BalanceTarget:
    """The filesystem of `path`, and the [balance] section of the named pool; None without one."""

    path: Path
    balance: "BalanceSettings | None" = None


def which_pool(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `pool` (str | None) and `config` (Path | None), which `require_one_pool` must look at."""
    return _POOL(_CONFIG(command))


def require_one_pool(pool: str | None, config: Path | None) -> None:
    """Raises UsageError when both are given, or an empty one, as an empty variable of a script would."""
    if pool is not None and config is not None:
        raise UsageError("--pool and --config exclude each other", "a file's name is its pool's")
    if pool == "" or (config is not None and str(config) in ("", ".")):
        raise UsageError(
            f"--{'pool' if config is None else 'config'} names nothing", "leave it out for the pool that is on the filesystem"
        )


def balance_target(path: Path | None, pool: str | None, config: Path | None) -> BalanceTarget:
    """Resolves the arguments of the command line. Raises ConfigError, PoolUnusable and UsageError.

    The pool's marker is checked if only a name was given, because the pool might not be mounted.
    """
    require_one_pool(pool, config)
    if pool is None and config is None:
        return BalanceTarget(_needed(path))
    from btrkeep.config import load  # longer than a whole filesystem takes to scan

    found = load(pool or "main", config)
    if path is None:
        from btrkeep.pool.marker import open_pool

        open_pool(found.pool.path)
    return BalanceTarget(path or found.pool.path, found.balance)


def _needed(path: Path | None) -> Path:
    if path is None:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param=next(one for one in ctx.command.params if one.name == "path"))
    return path
