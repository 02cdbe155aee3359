"""`btrfs-balancer plan`: what would be balanced, in which order, and what that would cost."""

from pathlib import Path

import click

from balancer.cli.mount_point import mount_point
from balancer.cli.options import choosing
from balancer.cli.which_pool import which_pool


@click.command("plan")
@mount_point
@choosing
@which_pool
def command(
    path: Path,
    budget: int | None,
    seconds: float | None,
    policy: str,
    min_score: float | None,
    min_benefit: float | None,
    as_json: bool,
    pool: str | None,
    config: Path | None,
) -> None:
    """Show what `run` would balance, in which order and at which cost.

    MOUNTPOINT may be any folder or file on the filesystem. Nothing is changed.

    \b
    Policies:
      benefit   the most score removed for what is written comes first
      score     the highest score comes first, however much moves for it
      usage     the least used comes first, however its free space lies

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
    from balancer.cli.planning import settings_of, show_plan, state_of

    settings = settings_of(budget, seconds, policy, min_score, min_benefit)
    show_plan(path, settings, state_of(path, pool, config), as_json=as_json)
