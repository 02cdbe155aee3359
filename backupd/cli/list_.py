"""`backupd list`: the backups that there are."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import click

from backupd.cli.context import Opened, complete_host, json_option, now_option, opened, see_host
from btrkeep.catalogue import Backup
from btrkeep.cli import stream_json, table
from btrkeep.units import counted, format_duration, format_size, format_time, printable

_COLOURS = {"complete": "green", "suspect": "yellow", "failed": "red", "partial": "yellow", "running": "cyan"}
_HEADERS = ["HOST", "NAME", "STATE", "STARTED", "TOOK", "FILES", "SIZE", "NEW", "REMARK"]


@click.command("list")
@click.argument("host", required=False, shell_complete=complete_host)
@click.option("--all", "everything", is_flag=True, help="Every backup of every host, not only the newest of each.")
@json_option
@now_option
@click.pass_context
def command(ctx: click.Context, host: str | None, everything: bool, as_json: bool, now: datetime | None) -> int:
    """The backups of HOST, or the newest of each host.

    NAME is when the backup started, in UTC; it is also its folder: POOL/hosts/HOST/NAME/data. NEW is what it added: the data that
    rsync wrote. (.working) is a backup that still runs or was interrupted; the next run goes on with it. JSON has every backup.

    States: complete; suspect (lost or missed too much, see `backupd accept`); failed (a source path is missing or broken, the rest
    is there); partial and running.
    """
    with opened(ctx, now) as site:
        if host:
            see_host(site.config, site.catalogue, host)
        if as_json:
            stream_json(_objects(site, site.catalogue.backups(host)))
            return 0
        backups: Iterable[Backup] = site.catalogue.backups(host) if host or everything else site.catalogue.newest_backups()
        rows = [_row(backup) for backup in backups]
    click.echo(table(rows, _HEADERS, right=["TOOK", "FILES", "SIZE", "NEW"], spare=["STARTED"]) if rows else "no backups yet")
    return 0


def _objects(site: Opened, backups: Iterable[Backup]) -> Iterator[dict[str, Any]]:
    pool = str(site.pool.path)
    for backup in backups:
        yield {
            "host": backup.host,
            "name": backup.name,
            "path": f"{pool}/{backup.path}",
            "state": backup.state,
            "started": format_time(backup.started),
            "finished": format_time(backup.finished) if backup.finished else None,
            "duration": backup.duration,
            "files": backup.files,
            "bytes": backup.bytes,
            "new_bytes": backup.new_bytes,
            "warnings": list(backup.warnings),
            "error": backup.error,
        }


def _row(backup: Backup) -> tuple[str, ...]:
    remark = backup.error or (f"{counted(len(backup.warnings), 'warning')}: {backup.warnings[0]}" if backup.warnings else "")
    return (
        printable(backup.host),
        backup.name or "(.working)",
        click.style(backup.state, fg=_COLOURS.get(backup.state)),
        format_time(backup.started),
        format_duration(backup.duration),
        str(backup.files) if backup.files is not None else "-",
        format_size(backup.bytes),
        format_size(backup.new_bytes),
        printable(remark),
    )
