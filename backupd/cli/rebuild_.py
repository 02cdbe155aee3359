"""`backupd rebuild`: the catalogue made again from the pool."""

from datetime import datetime

import click

from backupd.cli.context import clock_for, json_option, load_config, now_option, see_writable
from backupd.reconcile import all_rows
from btrkeep.catalogue import Catalogue
from btrkeep.cli import echo_json
from btrkeep.errors import Exit, OperatorError
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import open_pool
from btrkeep.units import counted, format_time, printable


@click.command("rebuild")
@json_option
@now_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, now: datetime | None) -> int:
    """Make the catalogue again from the pool's own records.

    No backup, acceptance or hold is lost with the catalogue; of a damaged one the history of runs is.
    """
    config = load_config(ctx)
    pool = open_pool(config.pool.path)
    see_writable(pool)
    since = format_time(clock_for(pool, now).now())
    trouble: list[str] = []
    with take_lock(pool.locks / "night", "backupd rebuild", since):
        aside = None
        try:
            catalogue = Catalogue.open(config.pool.state)
        except OperatorError:
            aside = Catalogue.set_aside(config.pool.state)
            catalogue = Catalogue.open(config.pool.state)
        with catalogue:
            count = catalogue.replace_backups(pool.id, all_rows(pool, trouble))
    if as_json:
        echo_json({"backups": count, "trouble": trouble, "set_aside": str(aside) if aside else None})
    else:
        if aside:
            click.echo(f"the old catalogue could not be used and is now {aside}")
        for line in trouble:
            click.echo(f"left alone: {printable(line)}")
        click.echo(f"the catalogue has {counted(count, 'backup')} now")
    return Exit.ATTENTION if trouble else Exit.OK
