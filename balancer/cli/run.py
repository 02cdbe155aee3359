"""`btrfs-balancer plan` shows what would be balanced, in which order and at which cost; `run` balances it, one block group at a
time.
"""

from pathlib import Path
from typing import Any

import click

from balancer.cli.options import DURATION, MOMENT, PRESSURE, ROOM, balance_target, choosing, moment, mount_point, which_pool
from btrkeep.choices import MAX_PRESSURE
from btrkeep.errors import Exit
from btrkeep.units import format_share, zone_of_pool


@click.command("plan")
@mount_point
@choosing
@which_pool
def plan_command(path: Path | None, pool: str | None, config: Path | None, as_json: bool, **chosen: Any) -> None:
    """Show what `run` would balance, in which order and at which cost.

    MOUNTPOINT may be any folder or file on the filesystem. Nothing is changed. With --pool it may be left out, and
    options that are not given have the values of [balance] in the pool's configuration.

    \b
    Policies:
      POLICIES

    \b
    USED      data that would be moved
    FRAGS     free extents in it, SCORE their score
    BENEFIT   score removed per GiB moved
    EXTENTS   extents in it, and
    REFS      references to them; both make moving slower
    METADATA  metadata written besides the data, estimated
    TIME      duration, estimated
    TOTAL     data moved by this block group and all above it

    A line shows where the budget or the time ends. On a narrow terminal some columns are left out.

    \b
    Examples:
      btrfs-balancer plan /srv/backup
      btrfs-balancer plan /srv/backup --budget 20GiB --time 2h
      btrfs-balancer plan / --min-score 250 --json
    """
    from balancer.balance_history import catalogue_of
    from balancer.cli.plan_and_run import settings_of, show_plan

    target = balance_target(path, pool, config)
    settings = settings_of(target.balance, **chosen)
    show_plan(target.path, settings, catalogue_of(target.path, pool, config), as_json=as_json)


@click.command("run")
@mount_point
@choosing
@click.option("--until", type=MOMENT, metavar="TIME", help="Stop at this time: 06:00 in the zone of the pool, or RFC 3339.")
@click.option(
    "--min-unallocated",
    type=ROOM,
    metavar="ROOM",
    help="Stop when less than this is unallocated, such as 10GiB, or 3% of the filesystem.",
)
@click.option(
    "--no-yield",
    "yield_to_backups",
    is_flag=True,
    callback=lambda _context, _option, given: not given,
    help="Continue while backups or an expiry use this filesystem.",
)
@click.option(
    "--max-pressure",
    type=PRESSURE,
    metavar="PERCENT",
    help="Wait while programs wait for the disks more than this share of the time; `none`: never.  "
    f"[default: {format_share(MAX_PRESSURE)}]",
)
@click.option(
    "--wait",
    "patience",
    type=DURATION,
    metavar="TIME",
    help="How long to wait for backups, another balance or similar, instead of stopping.",
)
@which_pool
@click.option("--dry-run", is_flag=True, help="Show what would be balanced, as `plan` does; change nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print only problems.")
def run_command(
    path: Path | None, pool: str | None, config: Path | None, as_json: bool, dry_run: bool, quiet: bool, **chosen: Any
) -> int:
    """Balance the block groups that are worth it, one after the other.

    The next block group is chosen after each. The run ends when no block group is worth it or a limit is reached. It stops
    early when little space is unallocated, backups begin, another balance or exclusive operation uses the filesystem, or the
    kernel finds no free space. Nothing is lost if it is stopped: a block group is moved completely or stays usable where it is.

    A time of day is in the pool's time zone; without a pool on the filesystem, in this machine's.

    With --pool, MOUNTPOINT may be left out, and options that are not given have the values of [balance] in the pool's
    configuration.

    Ctrl-C and SIGTERM make the kernel cancel the current block group, which may take some seconds. No balance is left paused.

    \b
    Policies:
      POLICIES

    \b
    Examples:
      btrfs-balancer run /srv/backup --budget 20GiB
      btrfs-balancer run /srv/backup --until 06:00 --budget 200GiB -q
      btrfs-balancer run / --time 30m --policy usage --dry-run
      btrfs-balancer run --pool main

    Exit status 0: the run completed or reached one of your limits; 1: it stopped before, or a block group failed; 3: another
    balance or exclusive operation uses the filesystem; 4: not a btrfs, or it cannot be balanced; 130 and 143: ended by Ctrl-C
    or SIGTERM.
    """
    from balancer.balance_history import catalogue_of
    from balancer.cli.plan_and_run import balance, settings_of, show_plan

    target = balance_target(path, pool, config)
    state = catalogue_of(target.path, pool, config)
    until = moment(chosen.pop("until"), zone=zone_of_pool()) if chosen["until"] else chosen.pop("until")
    settings = settings_of(target.balance, until=until, **chosen)
    if dry_run:
        show_plan(target.path, settings, state, as_json=as_json)
        return Exit.OK
    return balance(target.path, settings, state, as_json=as_json, quiet=quiet)
