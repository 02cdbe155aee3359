"""`backupd usage`: shows which hosts and backups use the space."""

from typing import Any

import click

from backupd.cli.context import opened, pass_context
from backupd.cli.names import complete_host_of_pool, require_host_or_folder
from backupd.observe.usage import (
    METHODS,
    Amount,
    BackupUse,
    HostUse,
    MeasuredUsage,
    PoolUse,
    by_extents,
    by_sampling,
    by_writing,
    listed,
)
from btrkeep.cli import echo_json, json_option, table
from btrkeep.cli.arguments import Parsed
from btrkeep.pool import quota
from btrkeep.units import counted, format_duration, format_size, format_time, local_time, parse_duration, printable


@click.command("usage")
@click.argument("host", required=False, shell_complete=complete_host_of_pool)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="written: only what rsync wrote. sampled: by random places. extents: by all extents; exact. "
    "[default: sampled; with HOST: extents]",
)
@click.option(
    "--time",
    "seconds",
    type=Parsed("duration", parse_duration),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="The maximum time for measuring.",
)
@json_option
@pass_context
def command(ctx: click.Context, host: str | None, method: str | None, seconds: float, as_json: bool) -> int:
    """Show the space used by host, or by backup of HOST. Needs no qgroups.

    WRITTEN is the data that rsync wrote for the existing backups. ON DISK is the data that they refer to, each extent once. OWN is
    the space that would be freed if the host, or that one backup, were deleted, because nothing else refers to it.

    Sampled values have a 95 % confidence interval. Metadata is not counted.
    """
    with opened(ctx) as context:
        if host is not None:
            require_host_or_folder(context, host)
        backups = listed(context.catalogue, None if method == "sampled" else host)
        chosen = method or ("extents" if host else "sampled")
        if chosen == "written":
            use = by_writing(backups)
        elif chosen == "sampled":
            use = by_sampling(context.pool, backups, seconds)
        else:
            use = by_extents(context.pool, backups, seconds)
        alive = quota.live_bytes(context.pool).get(host) if host else None
        since = quota.since(context.pool) if host else None
    if as_json:
        echo_json({**_as_json(use, host), "alive": alive})
        return 0
    _show(use, host)
    if alive is not None:
        counted_since = f"; what was written before {local_time(since)} is not in it" if since else ""
        click.echo(
            f"{printable(host or '')}: {format_size(alive)} that it wrote are alive, by simple quotas, with metadata{counted_since}"
        )
    return 0


def _as_json(use: PoolUse, host: str | None) -> dict[str, Any]:
    return {
        "method": use.method,
        "complete": use.complete,
        "seconds": round(use.seconds, 3),
        "draws": use.draws,
        "others": _amount(use.others),
        "hosts": [_host(host_use) for host_use in use.hosts if host in (None, host_use.host)],
        "backups": [_backup(backup) for backup in use.backups if backup.host == host],
        "unread": dict(use.unread),
    }


def _host(host_use: HostUse) -> dict[str, Any]:
    named = {"host": host_use.host, "backups": host_use.backups, "bytes": host_use.size, "new_bytes": host_use.written}
    return {**named, **_measured(host_use.measured)}


def _backup(backup_use: BackupUse) -> dict[str, Any]:
    named = {
        "host": backup_use.host,
        "name": backup_use.name,
        "state": backup_use.state,
        "started": format_time(backup_use.started),
    }
    return {**named, "bytes": backup_use.size, "new_bytes": backup_use.written, **_measured(backup_use.measured)}


def _measured(measured: MeasuredUsage | None) -> dict[str, Any]:
    return {
        "exclusive": _amount(measured.exclusive) if measured else None,
        "referenced": _amount(measured.referenced) if measured else None,
    }


def _amount(amount: Amount | None) -> dict[str, int] | None:
    return {"bytes": amount.bytes, "low": amount.low, "high": amount.high} if amount else None


def _show(use: PoolUse, host: str | None) -> None:
    if host:
        rows = [
            (
                backup.name or "(.working)",
                backup.state,
                format_size(backup.size),
                format_size(backup.written),
                *_columns(backup.measured),
            )
            for backup in use.backups
            if backup.host == host
        ]
        heads = ["NAME", "STATE", "SIZE", "WRITTEN", "ON DISK", "OWN", "95%"]
    else:
        rows = [
            (printable(host.host), str(host.backups), format_size(host.size), format_size(host.written), *_columns(host.measured))
            for host in sorted(use.hosts, key=_weight, reverse=True)
        ]
        heads = ["HOST", "BACKUPS", "NEWEST", "WRITTEN", "ON DISK", "OWN", "95%"]
    right = ["BACKUPS", "SIZE", "NEWEST", "WRITTEN", "ON DISK", "OWN"]
    click.echo(table(rows, heads, right=right, spare=["STATE", "BACKUPS"]) if rows else "no backups yet")
    for host_use in use.hosts if host else ():
        if host_use.host == host and host_use.measured:
            click.echo(f"{printable(host)}: {_words(host_use.measured.referenced)} on disk, all backups together")
    for line in _how(use):
        click.echo(line)


def _weight(host_use: HostUse) -> int:
    return host_use.measured.referenced.bytes if host_use.measured else host_use.written or 0


def _columns(measured: MeasuredUsage | None) -> tuple[str, str, str]:
    """Returns the sizes on disk and own, and the interval of the latter, empty if it is exact."""
    if not measured:
        return "-", "-", ""
    own = measured.exclusive
    interval = "" if own.exact else f"{format_size(own.low)} to {format_size(own.high)}"
    return format_size(measured.referenced.bytes), format_size(own.bytes), interval


def _words(amount: Amount) -> str:
    size = format_size(amount.bytes)
    return size if amount.exact else f"{size} ({format_size(amount.low)} to {format_size(amount.high)})"


def _how(use: PoolUse) -> list[str]:
    """Formats the method, its accuracy, and what is missing."""
    lines = []
    if use.method == "written":
        lines.append("nothing was measured: WRITTEN is what rsync wrote")
    elif use.method == "sampled":
        lines.append(
            f"estimated from {counted(use.draws, 'random place')} in {format_duration(use.seconds)}; 95%: the interval of OWN"
        )
        if use.others:
            lines.append(f"data of no backup: {_words(use.others)}")
    else:
        lines.append(f"measured by all extents in {format_duration(use.seconds)}; what is shared beyond a host counts as its own")
    if not use.complete:
        lines.append("the time was over before all was measured: take more with --time")
    return [*lines, *(f"{printable(path)}: {why}" for path, why in use.unread.items())]
