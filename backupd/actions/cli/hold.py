"""`backupd hold`, `release`, `unexpire`, `accept`: keep a backup regardless of the retention, end that, or count it as complete."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import click

from backupd.actions.hold import accept, hold, hold_fields, release, state_after, unexpire
from backupd.cli.command_context import complete_host, pass_context
from backupd.cli.names import (
    DAY,
    complete_expired,
    complete_held,
    complete_host_of_pool,
    complete_name,
    locked_host,
    moment_of,
    name_argument,
    unreadable_lines,
)
from btrkeep.backup_states import COMPLETE
from btrkeep.cli import json_option, print_answer
from btrkeep.decisions.retention import Hold
from btrkeep.errors import UsageError
from btrkeep.process.proc import login_name
from btrkeep.units import local_time


@click.command("hold")
@click.argument("host", shell_complete=complete_host_of_pool)
@name_argument(complete_name)
@click.option("--until", type=DAY, metavar="DATE", help="The end of the hold: 2027-01-01, midnight in the pool's zone, or a time.")
@click.option("--why", default="", metavar="TEXT", help="The reason; shown with the backup.")
@json_option
@pass_context
def hold_command(ctx: click.Context, host: str, name: str, until: date | None, why: str, as_json: bool) -> int:
    """Keep the backup NAME of HOST regardless of the retention, for ever or until DATE.

    `latest` as NAME is the newest complete backup; HOST@NAME as one word is accepted too. An existing hold is replaced. An expired
    backup is kept again. `backupd release` ends the hold.
    """
    with locked_host(ctx, host, "hold") as (context, moment):
        new = Hold(_end(until, context.config.pool.zone, moment) if until else None, why)
        done = hold(context.pool, context.catalogue, host, name, new, moment, by=login_name())
    held = {"host": host, "name": done.name, "state": done.state, "at": moment}
    text = [f"{host} {done.name} is held" + (f" until {local_time(new.until)}" if new.until else "")]
    if done.unexpired:
        text.append("it had expired, and is kept again")
    answer = {**held, **(hold_fields(new) or {}), "unexpired": done.unexpired}
    return print_answer(answer, [*text, *unreadable_lines(host, done)], as_json=as_json)


@click.command("release")
@click.argument("host", shell_complete=complete_host_of_pool)
@name_argument(complete_held)
@json_option
@pass_context
def release_command(ctx: click.Context, host: str, name: str, as_json: bool) -> int:
    """End the hold of the backup NAME of HOST.

    From now on the retention applies to it again. `latest` as NAME is the newest held backup;
    HOST@NAME as one word is accepted too.
    """
    with locked_host(ctx, host, "release") as (context, moment):
        done = release(context.pool, context.catalogue, host, name, moment, by=login_name())
    answer = {"host": host, "name": done.name, "state": done.state, "released": hold_fields(done.hold)}
    text = f"{host} {done.name} is no longer held: the retention applies to it again"
    return print_answer(answer, [text, *unreadable_lines(host, done)], as_json=as_json)


@click.command("unexpire")
@click.argument("host", shell_complete=complete_host_of_pool)
@name_argument(complete_expired)
@click.option("--why", default="kept again with unexpire", metavar="TEXT", help="The reason; shown with the backup.")
@json_option
@pass_context
def unexpire_command(ctx: click.Context, host: str, name: str, why: str, as_json: bool) -> int:
    """Keep the expired backup NAME of HOST again, during its grace.

    It is held for 30 days, so that there is time to check it, or the policy; `backupd hold` changes that, `backupd release`
    ends it. `latest` as NAME is the newest expired backup; HOST@NAME as one word is accepted too.
    """
    with locked_host(ctx, host, "unexpire") as (context, moment):
        done = unexpire(context.pool, context.catalogue, host, name, why, moment, by=login_name())
    taken = {"host": host, "name": done.name, "state": done.state, "at": moment}
    assert done.hold.until is not None
    text = f"{host} {done.name} is no longer expired; it is held until {local_time(done.hold.until)}"
    return print_answer({**taken, **(hold_fields(done.hold) or {})}, [text, *unreadable_lines(host, done)], as_json=as_json)


def _end(day: date, zone: ZoneInfo, now: datetime) -> datetime:
    moment = moment_of(day, zone)
    if moment <= now:
        raise UsageError(
            f"--until {local_time(moment)} is in the past", "give a later time, or leave --until out to hold it for ever"
        )
    return moment


@click.command("accept")
@click.argument("host", shell_complete=complete_host)
@name_argument(complete_name)
@click.option("--why", default="", metavar="TEXT", help="The reason; kept with the backup.")
@json_option
@pass_context
def accept_command(ctx: click.Context, host: str, name: str, why: str, as_json: bool) -> int:
    """Let the suspect or altered backup NAME of HOST count as complete.

    A suspect backup has finished, but lost or missed too much; `backupd list HOST` shows which. Check it. If it is right
    (for example because many files were deleted on purpose), accept it: the next backup is based on it, and older backups may
    expire. `latest` as NAME is the newest suspect or altered backup. HOST@NAME as one word is accepted too.

    An altered backup was changed after it was final; `backupd verify HOST@NAME` names the files. Accepting it accepts only these
    changes: if it was suspect before, it becomes suspect again. An altered backup is never sent to another pool. If it is a copy
    and you want its original content, run `backupd replicate NAME --damaged` first: an accepted backup is not replaced.
    """
    with locked_host(ctx, host, "accept") as (context, moment):
        accepted = accept(context.pool, context.catalogue, host, name, why, moment, by=login_name())
        state = state_after(context.pool, host, accepted)
    text = f"{host} {accepted} now counts as complete"
    if state != COMPLETE:
        text = f"the changes of {host} {accepted} are accepted; it is {state}: `backupd list {host}` shows why"
    return print_answer({"host": host, "name": accepted, "state": state, "at": moment, "why": why}, [text], as_json=as_json)
