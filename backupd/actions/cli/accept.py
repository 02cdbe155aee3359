"""`backupd accept`: a suspect backup becomes complete; the changes of an altered one are accepted."""

import click

from backupd.actions.accept import accept, state_after
from backupd.cli.context import complete_host, pass_context
from backupd.cli.names import complete_name, locked_host, name_argument
from btrkeep.backup_states import COMPLETE
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.process.proc import login_name
from btrkeep.units import format_time


@click.command("accept")
@click.argument("host", shell_complete=complete_host)
@name_argument(complete_name)
@click.option("--why", default="", metavar="TEXT", help="The reason; kept with the backup.")
@json_option
@pass_context
def command(ctx: click.Context, host: str, name: str, why: str, as_json: bool) -> int:
    """Let the suspect or altered backup NAME of HOST count as complete.

    A suspect backup has finished, but lost or missed too much; `backupd list HOST` says what. Look at it. If it is right after
    all (much was deleted on purpose, say), accept it: the next backup is based on it then, and older ones may expire. `latest` as
    NAME is the newest one that is suspect or altered. HOST@NAME in one word does as well.

    An altered backup was changed after it was final; `backupd verify HOST@NAME` names the files. To accept it accepts these changes
    alone: if it was suspect before, it is suspect again. It is never sent to another pool. If it is a copy and
    you want what it was, type `backupd replicate NAME --damaged` before: what was accepted is not replaced.
    """
    with locked_host(ctx, host, "accept") as (context, moment):
        accepted = accept(context.pool, context.catalogue, host, name, why, moment, by=login_name())
        state = state_after(context.pool, host, accepted)
    if as_json:
        echo_json({"host": host, "name": accepted, "state": state, "at": format_time(moment), "why": why})
    elif state == COMPLETE:
        prose(f"{host} {accepted} now counts as complete")
    else:
        prose(f"the changes of {host} {accepted} are accepted; it is {state}: `backupd list {host}` says why")
    return 0
