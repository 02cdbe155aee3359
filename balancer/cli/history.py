"""`btrfs-balancer history`: the history of a filesystem's free space and its balances."""

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from balancer.cli.options import balance_target, mount_point, which_pool
from btrkeep.cli import echo_json
from btrkeep.cli.arguments import pool_words
from btrkeep.units import counted, local_day, printable

if TYPE_CHECKING:
    from btrkeep.catalogue import Balance, Catalogue, FreeSpaceScore

DAYS = 180


@click.command("history")
@mount_point
@click.option("--days", type=click.IntRange(1, 36500), default=DAYS, show_default=True, metavar="N", help="How many days back.")
@click.option("--balances", "of_balances", is_flag=True, help="Show the balances instead of the scores.")
@which_pool
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, for programs.")
def command(path: Path | None, days: int, of_balances: bool, pool: str | None, config: Path | None, as_json: bool) -> None:
    """Show the history of a btrfs's free space.

    Shows what `score --record` and `run` have stored in the catalogue of the btrkeep pool on the filesystem: oldest first, at most
    30 lines. MOUNTPOINT may be any folder or file on it; with --pool it may be left out.

    \b
    ALLOCATED  the length of all data block groups
    USED       the used bytes in them
    FRAGS      free extents, as the free space tree counts them
    BAD        block groups with a score above 250
    MOVED      data moved by balances since the line above
    SCORE      of all block groups; green: 5% less than above, red: more

    \b
    With --balances:
    GROUPS     balanced block groups
    WRITTEN    bytes written to the devices during the run, by all programs
    GAINED     score removed

    \b
    Examples:
      btrfs-balancer history /srv/backup
      btrfs-balancer history /srv/backup --days 30 --balances
    """
    path = balance_target(path, pool, config).path
    from balancer.balance_history import catalogue_with_history, needed_catalogue_of
    from balancer.survey import filesystem_uuid
    from btrkeep.pool.mounts import open_btrfs

    state = needed_catalogue_of(path, pool, config)
    with open_btrfs(path):
        filesystem = filesystem_uuid(path)
    since = datetime.now(UTC) - timedelta(days=days)
    with catalogue_with_history(state) as catalogue:
        balances = catalogue.balances(filesystem, None, since)[::-1] if catalogue else []
        scorings = catalogue.scores(filesystem, since) if catalogue else []
        if as_json:
            _echo_json(catalogue, filesystem, since, scorings, balances)
        elif of_balances:
            from balancer.cli.history_view import balance_lines

            click.echo("\n".join(balance_lines(filesystem, balances, since, _is_running)))
        elif scorings:
            from balancer.cli.history_view import lines

            click.echo("\n".join(lines(filesystem, scorings, balances)))
        else:
            older = catalogue.scores(filesystem) if catalogue else []
            click.echo(_how_to_begin(path, days, older, pool_words(pool, config)))
            if balances:
                click.echo(f"\n--balances shows {counted(len(balances), 'balance run')}.")


def _echo_json(
    catalogue: "Catalogue | None", filesystem: str, since: datetime, scorings: "list[FreeSpaceScore]", balances: "list[Balance]"
) -> None:
    from balancer.cli.history_view import document

    rows = [(balance, _is_running(balance), catalogue.steps(balance.id) if catalogue else []) for balance in balances]
    echo_json(document(filesystem, since, scorings, rows))


def _is_running(balance: "Balance") -> bool:
    from btrkeep.process.proc import start_time

    return balance.finished is None and start_time(balance.pid) == balance.pid_started


def _how_to_begin(path: Path, days: int, older: "list[FreeSpaceScore]", which: list[str]) -> str:
    """Returns the text for a filesystem without scores in the last `days`. `which`: the options that chose the pool."""
    if older:
        newest = local_day(older[-1].taken)
        return f"No scores of the last {days} days are recorded. The newest are of {newest}: --days N shows them."
    words = printable(shlex.join([*which, str(path)]))
    return (
        f"No scores of {printable(str(path))} are recorded yet. To begin:\n\n"
        f"  btrfs-balancer score --record {words}\n\n"
        "Run it every night, from a systemd timer or cron: this command shows the recorded scores."
    )
