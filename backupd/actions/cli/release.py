"""`backupd release`: the end of a hold."""

import click

from backupd.actions.hold import hold_fields, release
from backupd.cli.context import pass_context
from backupd.cli.names import complete_held, complete_host_of_pool, echo_unreadable, locked_host, name_argument
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.process.login import login_name


@click.command("release")
@click.argument("host", shell_complete=complete_host_of_pool)
@name_argument(complete_held)
@json_option
@pass_context
def command(ctx: click.Context, host: str, name: str, as_json: bool) -> int:
    """End the hold of the backup NAME of HOST.

    From now on the retention decides about it again, as about all others. `latest` as NAME is the newest one that is held;
    HOST@NAME in one word does as well.
    """
    with locked_host(ctx, host, "release") as (context, moment):
        done = release(context.pool, context.catalogue, host, name, moment, by=login_name())
    if as_json:
        echo_json({"host": host, "name": done.name, "state": done.state, "released": hold_fields(done.hold)})
    else:
        prose(f"{host} {done.name} is no longer held: the retention decides about it again")
        echo_unreadable(host, done)
    return 0
