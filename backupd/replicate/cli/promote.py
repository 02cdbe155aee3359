"""`backupd promote`: hosts whose backups were fetched from another pool become this pool's own."""

from dataclasses import replace

import click

from backupd.cli.context import dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import complete_host_of_pool, confirmed, hosts_named
from backupd.cli.recording import record
from backupd.replicate.cli.replicate import complete_replica
from backupd.replicate.marked import mark_of
from backupd.repo.common_backups import drop_common
from backupd.repo.context import writing
from backupd.repo.listing import hosts_of
from backupd.repo.notes_json import read_notes, write_notes
from backupd.repo.publish import tell_copies
from backupd.repo.received import discard_received
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.pool.locks import take_lock
from btrkeep.units import counted, format_time


@click.command("promote")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_host_of_pool)
@click.option("--replica", "name", metavar="NAME", shell_complete=complete_replica, help="Only hosts that this replica fetches.")
@dry_run_option("which hosts would be taken over")
@yes_option
@json_option
@pass_context
def command(ctx: click.Context, hosts: tuple[str, ...], name: str | None, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Take over HOSTs, whose backups were fetched from another pool: from now on this pool backs them up.

    For when the other backup server is gone. A HOST may be a pattern, such as '*', which is all that is fetched from any pool:
    with several, --replica says which. The next run of a host continues from the
    newest copy, so nothing is transferred again that is here. Nothing is fetched for it any more; its configuration, [host.HOST],
    is yours to add.
    """
    with opened(ctx, writes=not dry_run) as context:
        marks = {host: mark for host in hosts_of(context.pool) if (mark := mark_of(read_notes(context.pool.host(host))))}
        copies = [host for host, mark in marks.items() if name in (None, mark.replica)]
        chosen = hosts_named(hosts, copies, f"is fetched by replica {name}" if name else "is fetched from another pool")
        missing = [host for host in chosen if host not in context.config.every_host]
        if dry_run:
            return _tell(chosen, missing, "would be promoted", as_json=as_json, dry_run=True)
        confirmed(f"{counted(len(chosen), 'host')} will be backed up here and no longer be fetched", chosen[0], yes, as_json)
        since = format_time(context.clock.now())
        with writing(context.pool):
            for host in chosen:
                with take_lock(context.pool.host_lock(host), "backupd promote", since):
                    discard_received(context.pool, host)
                    folder = context.pool.host(host)
                    notes = read_notes(folder)
                    if notes.replica:  # first: killed in between, it can be promoted again
                        drop_common(context.pool, str(notes.replica.get("name")), [host])
                    write_notes(folder, replace(notes, replica=None))
                    record(context.pool, context.clock.now(), "promote", host)
            tell_copies(context.pool, context.catalogue)
        left = sorted({mark.replica for host, mark in marks.items() if host not in chosen})
        idle = sorted({marks[host].replica for host in chosen} & set(context.config.replicas) - set(left))
    status = _tell(chosen, missing, "promoted", as_json=as_json, dry_run=False)
    if idle and not as_json:
        names = ", ".join(f"[replica.{one}]" for one in idle)
        file = context.config.file
        prose(f"nothing is fetched by {names} any more: take it out of {file} while that server is gone, or it counts as failing")
    return status


def _tell(chosen: list[str], missing: list[str], what: str, *, as_json: bool, dry_run: bool) -> int:
    if as_json:
        echo_json({"dry_run": dry_run, "hosts": chosen, "unconfigured": missing})
        return 0
    prose(f"{counted(len(chosen), 'host')} {what}: {', '.join(chosen)}")
    if missing:
        prose(f"not configured yet: {', '.join(missing)}. `backupd host add` or the first server's files bring them back")
    return 0
