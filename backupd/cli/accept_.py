"""`backupd accept`: a suspect backup becomes complete."""

from datetime import datetime

import click

from backupd import record as records
from backupd.cli.context import Opened, complete_host, json_option, now_option, opened, see_host
from backupd.cli.names import complete_name
from backupd.notes import effective_state, read_notes, write_notes
from backupd.reconcile import row_of
from backupd.working import final_backups
from btrkeep.cli import echo_json
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.units import format_time


@click.command("accept")
@click.argument("host", shell_complete=complete_host)
@click.argument("name", shell_complete=complete_name)
@click.option("--why", default="", metavar="TEXT", help="Why it is right after all; kept with the backup.")
@json_option
@now_option
@click.pass_context
def command(ctx: click.Context, host: str, name: str, why: str, as_json: bool, now: datetime | None) -> int:
    """Let the suspect backup NAME of HOST count as complete.

    A suspect backup has finished, but lost or missed too much; `backupd list HOST` says what. Look at it. When it is right after
    all (much was deleted on purpose, say), accept it: the next backup grows from it then, and older ones may expire. `latest` as
    NAME is the newest suspect one.
    """
    with opened(ctx, now, writes=True) as site:
        see_host(site.config, site.catalogue, host)
        moment = format_time(site.clock.now())
        with take_lock(site.pool.locks / f"host-{host}", "accept", moment):
            accepted = _accept(site, host, name, {"at": moment, "why": why})
    if as_json:
        echo_json({"host": host, "name": accepted, "state": records.COMPLETE, "at": moment, "why": why})
    else:
        click.echo(f"{host} {accepted} counts as complete now")
    return 0


def _accept(site: Opened, host: str, name: str, note: dict[str, str]) -> str:
    folder = site.pool.host(host)
    notes = read_notes(folder)
    found = {record.name: record for _, _, record in final_backups(site.pool, host)}
    suspect = [record.name for record in found.values() if effective_state(record, notes) == records.SUSPECT]
    if name == "latest" and suspect:
        name = str(suspect[0])
    if name not in found:
        raise UsageError(f"{host} has no backup {name}", f"`backupd list {host}` shows them")
    if name not in suspect and not notes.accepted(name):
        raise OperatorError(
            f"{host} {name} is {effective_state(found[name], notes)}, not suspect", "only a suspect backup can be accepted"
        )
    if name in suspect:  # else a run of this command was killed before the row
        write_notes(folder, notes.with_note(name, "accepted", note))
    row = row_of(site.pool, host, name)
    assert row is not None
    site.catalogue.put_backup(row)  # its state is what the notes make of it
    return name
