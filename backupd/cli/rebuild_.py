"""`backupd rebuild`: the catalogue made again from the pool."""

from datetime import datetime
from pathlib import Path

import click

from backupd.cli.context import clock_for, json_option, load_config, now_option, see_writable
from backupd.reconcile import all_rows, point_all, reconcile
from btrkeep.catalogue import Catalogue, CatalogueDamaged
from btrkeep.cli import echo_json
from btrkeep.errors import Exit
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool, open_pool
from btrkeep.units import counted, format_time, printable


@click.command("rebuild")
@json_option
@now_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, now: datetime | None) -> int:
    """Make the catalogue again from the pool's own records.

    No backup, acceptance or hold is lost with the catalogue; of a damaged one the history of runs is. A damaged one is renamed
    when the new one is complete.
    """
    config = load_config(ctx)
    pool = open_pool(config.pool.path)
    see_writable(pool)
    since = format_time(clock_for(pool, now).now())
    trouble: list[str] = []
    with take_lock(pool.locks / "night", "backupd rebuild", since):
        aside: list[Path] = []
        try:
            with Catalogue.open(config.pool.state) as catalogue:
                catalogue.see_whole()
                count, locked = _fill(pool, catalogue, since, trouble)
        except CatalogueDamaged:
            trouble.clear()
            with Catalogue.made_anew(config.pool.state) as (catalogue, aside):
                count, locked = _fill(pool, catalogue, since, trouble)
    if as_json:
        echo_json({"backups": count, "trouble": trouble, "locked": locked, "set_aside": str(aside[0]) if aside else None})
    else:
        if aside:
            click.echo(f"the old catalogue could not be used and is now {aside[0]}")
        for line in trouble:
            click.echo(f"left alone: {printable(line)}")
        for host in locked:
            click.echo(f"{printable(host)} is being worked on: the next run or expiry brings its rows up to date")
        click.echo(f"the catalogue has {counted(count, 'backup')} now")
    return Exit.ATTENTION if trouble else Exit.OK


def _fill(pool: Pool, catalogue: Catalogue, since: str, trouble: list[str]) -> tuple[int, list[str]]:
    """How many backups there are, and the hosts that are locked."""
    count = catalogue.replace_backups(pool.id, all_rows(pool, trouble))
    since_then = reconcile(pool, catalogue, since)  # a hold may have been set after its host was read
    trouble += [text for text in since_then.trouble if text not in trouble]
    point_all(pool, since)
    return count, since_then.locked
