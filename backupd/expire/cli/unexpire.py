"""`backupd unexpire`: an expired backup is taken back."""

import click

from backupd.actions.hold import hold_fields, unexpire
from backupd.cli.context import pass_context
from backupd.cli.names import complete_expired, complete_host_of_pool, echo_unreadable, locked_host, name_argument
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.process.login import login_name
from btrkeep.units import format_time, local_time


@click.command("unexpire")
@click.argument("host", shell_complete=complete_host_of_pool)
@name_argument(complete_expired)
@click.option("--why", default="taken back with unexpire", metavar="TEXT", help="The reason; shown wherever the backup is.")
@json_option
@pass_context
def command(ctx: click.Context, host: str, name: str, why: str, as_json: bool) -> int:
    """Take back the expired backup NAME of HOST during its grace.

    It is held for 30 days, so that there is time to look at it, or at the policy; `backupd hold` changes that, `backupd release`
    ends it. `latest` as NAME is the newest one that has expired; HOST@NAME in one word does as well.
    """
    with locked_host(ctx, host, "unexpire") as (context, moment):
        done = unexpire(context.pool, context.catalogue, host, name, why, moment, by=login_name())
    if as_json:
        taken = {"host": host, "name": done.name, "state": done.state, "at": format_time(moment)}
        echo_json({**taken, **(hold_fields(done.hold) or {})})
    else:
        assert done.hold.until is not None
        prose(f"{host} {done.name} is no longer expired; it is held until {local_time(done.hold.until)}")
        echo_unreadable(host, done)
    return 0
