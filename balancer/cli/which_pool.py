"""The argument that names a filesystem, and the options that name a pool, whose filesystem is used without a mount point and whose
catalogue records the results.

Without them, the catalogue of the pool on the filesystem is used.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrkeep.cli.arguments import GivenPath, complete_mount, pool_options, require_one_pool
from btrkeep.units import show_times_in

if TYPE_CHECKING:
    from btrkeep.config import BalanceSettings

mount_point = click.argument(
    "path", metavar="MOUNTPOINT", required=False, type=GivenPath(path_type=Path), shell_complete=complete_mount
)
"""For every command that looks at a filesystem. Without it `balance_target` finds that of the pool that is named."""

which_pool = pool_options("the one on it")


@dataclass(frozen=True, slots=True)
class BalanceTarget:
    """The filesystem of `path`, and the [balance] section of the named pool; None without one."""

    path: Path
    balance: "BalanceSettings | None" = None


def balance_target(path: Path | None, pool: str | None, config: Path | None) -> BalanceTarget:
    """Resolves the arguments of the command line. Raises ConfigError, PoolUnusable and UsageError.

    The pool's marker is checked if only a name was given, because the pool might not be mounted.
    """
    require_one_pool(pool, config)
    if pool is None and config is None:
        return BalanceTarget(_needed(path))
    from btrkeep.config import load_usable  # longer than a whole filesystem takes to scan

    found = load_usable(pool or "main", config)
    show_times_in(found.pool.zone)
    found.require_section("balance")
    if path is None:
        from btrkeep.pool.marker import open_pool

        open_pool(found.pool.path)
    return BalanceTarget(path or found.pool.path, found.balance)


def _needed(path: Path | None) -> Path:
    if path is None:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param=next(one for one in ctx.command.params if one.name == "path"))
    return path
