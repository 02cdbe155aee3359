"""`backupd browse`: lists the contents of a backup."""

import os
from datetime import date

import click

from backupd.cli.command_context import given_now, pass_context
from backupd.cli.names import DAY, complete_which
from backupd.files.cli.opened_backup import (
    OpenedBackup,
    complete_path,
    end_of,
    entries_table,
    host_and_backup,
    opened_backup,
    pool_of,
    remark_lines,
    state_words,
)
from backupd.files.entry_words import backup_object, entry_object, shown
from backupd.files.listing import listing
from backupd.files.suggestions import entry_at, path_given, path_in
from backupd.files.tree import Entry
from btrkeep.cli import json_option, stream_object
from btrkeep.cli.output import print_wrapped
from btrkeep.units import counted


@click.command("browse")
@click.argument("host", metavar="HOST[@BACKUP]", shell_complete=complete_which)
@click.argument("path", required=False, default="/", shell_complete=complete_path)
@click.option(
    "--at", type=DAY, metavar="DATE", help="Use the newest complete backup that started by the end of this day, or by this time."
)
@json_option
@pass_context
def command(ctx: click.Context, host: str, path: str, at: date | None, as_json: bool) -> int:
    """List a folder or a file of a backup of HOST. Without PATH, list the top folder.

    BACKUP is the name of a backup, or its beginning: web1@2026-11-20 is the newest complete backup of that day in the pool's zone.
    Without BACKUP, the newest complete backup is shown.

    PATH is the path on the host. A symlink is shown with its target, and never followed.
    """
    pool, zone = pool_of(ctx)
    name, which = host_and_backup(host, at, "browse")
    wanted = path_given(path)
    with opened_backup(pool, name, which, end_of(at, zone) if at else given_now(ctx)) as backup:
        wanted = path_in(backup.tree, wanted)
        entry = entry_at(backup.tree, wanted, backup.where)
        entries = listing(backup.tree, wanted) if entry.kind == "folder" else []
    if as_json:
        _print_json(backup, entry, entries)
    else:
        _show(backup, entry, entries)
    return 0


def _print_json(opened: OpenedBackup, entry: Entry, entries: list[Entry]) -> None:
    head = {
        "host": opened.backup.host,
        "backup": backup_object(opened.backup),
        "path": os.fsdecode(entry.path),
        "entry": entry_object(entry),
    }
    stream_object(head, "entries", (entry_object(entry) for entry in entries))


def _show(opened: OpenedBackup, entry: Entry, entries: list[Entry]) -> None:
    summary = f": {counted(len(entries), 'name')}" if entry.kind == "folder" else ""
    print_wrapped(f"{opened.where} ({state_words(opened.backup.state)}) {shown(entry.path)}{summary}")
    for line in remark_lines(opened.backup.record, [entry.path]):
        print_wrapped(click.style("note: ", fg="yellow") + line)
    if entries or entry.kind != "folder":
        click.echo(entries_table(entries or [entry]))
