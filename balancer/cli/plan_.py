"""`btrfs-balancer plan`: what would be balanced, in which order, and what that would cost."""

from pathlib import Path
from typing import Any

import click

from balancer.cli.options import balance_target, choosing, mount_point, which_pool


@click.command("plan")
@mount_point
@choosing
@which_pool
def command(path: Path | None, pool: str | None, config: Path | None, as_json: bool, **chosen: Any) -> None:
    """Show what `run` would balance, in which order and at which cost.

    MOUNTPOINT may be any folder or file on the filesystem. Nothing is changed. With --pool it may be left out, and the options that
    are not given are as [balance] of the pool's configuration says.

    \b
    Policies:
      POLICIES

    \b
    USED      what would move
    FRAGS     free extents in it, SCORE what they come to
    BENEFIT   score removed per GiB that would move
    EXTENTS   what else makes moving dear: the extents in it,
    REFS      and the references that they have
    METADATA  what is written besides the data, estimated
    TIME      how long it takes, estimated
    TOTAL     what moves with this one and all above it

    A line says where budget or time end. On a narrow terminal some columns are left out.

    \b
    Examples:
      btrfs-balancer plan /srv/backup
      btrfs-balancer plan /srv/backup --budget 20GiB --time 2h
      btrfs-balancer plan / --min-score 250 --json
    """
    from balancer.cli.planning import settings_of, show_plan
    from balancer.history import catalogue_of

    found = balance_target(path, pool, config)
    settings = settings_of(found.balance, **chosen)
    show_plan(found.path, settings, catalogue_of(found.path, pool, config), as_json=as_json)
