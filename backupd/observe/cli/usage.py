"""`backupd usage`: shows the space that hosts and backups use."""

from typing import Any

import click

from backupd.cli.command_context import opened, pass_context
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
from btrkeep.cli import json_option, print_answer, print_listing
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.listings import Column, objects
from btrkeep.cli.output import print_wrapped
from btrkeep.pool import qgroups
from btrkeep.units import counted, format_duration, format_size, local_time, parse_duration, printable


@click.command("usage")
@click.argument("host", required=False, shell_complete=complete_host_of_pool)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How to measure. written: only the data that rsync wrote. sampled: an estimate. extents: all extents, exact. "
    "[default: sampled; with HOST: extents]",
)
@click.option(
    "--time",
    "seconds",
    type=ParsedType("duration", parse_duration),
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
    the space that deleting the host, or the backup, would free, because no other backup refers to it.

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
        alive = qgroups.live_bytes(context.pool).get(host) if host else None
        since = qgroups.since(context.pool) if host else None

    def show() -> None:
        _show(use, host)
        if alive is not None:
            more = f"; data written before {local_time(since)} is not counted" if since else ""
            click.echo(
                f"{printable(host or '')}: simple quotas count {format_size(alive)} of its data and metadata as in use{more}"
            )

    return print_answer({**_fields(use, host), "alive": alive}, show, as_json=as_json)


def _fields(use: PoolUse, host: str | None) -> dict[str, Any]:
    return {
        "method": use.method,
        "complete": use.complete,
        "seconds": round(use.seconds, 3),
        "draws": use.draws,
        "others": _amount(use.others),
        "hosts": list(objects(_HOSTS, (host_use for host_use in use.hosts if host in (None, host_use.host)))),
        "backups": list(objects(_BACKUPS, (backup for backup in use.backups if backup.host == host))),
        "unread": dict(use.unread),
    }


def _amount(amount: Amount | None) -> dict[str, int] | None:
    return {"bytes": amount.bytes, "low": amount.low, "high": amount.high} if amount else None


def _interval(measured: MeasuredUsage | None) -> str:
    """Returns the interval of the own size, empty if it is exact."""
    if not measured or measured.exclusive.exact:
        return ""
    return f"{format_size(measured.exclusive.low)} to {format_size(measured.exclusive.high)}"


def _amount_words(amount: Amount | None) -> str:
    return format_size(amount.bytes if amount else None)


_MEASURED: tuple[Column[HostUse | BackupUse], ...] = (
    Column("exclusive", lambda use: _amount(use.measured.exclusive) if use.measured else None),
    Column("referenced", lambda use: _amount(use.measured.referenced) if use.measured else None),
    Column("", lambda use: use.measured.referenced if use.measured else None, "ON DISK", _amount_words, right=True),
    Column("", lambda use: use.measured.exclusive if use.measured else None, "OWN", _amount_words, right=True),
    Column("", lambda use: use.measured, "95%", _interval),
)
_HOSTS: tuple[Column[HostUse], ...] = (
    Column("host", lambda host: host.host, "HOST"),
    Column("backups", lambda host: host.backups, "BACKUPS", right=True, spare=True),
    Column("bytes", lambda host: host.size, "NEWEST", format_size, right=True),
    Column("new_bytes", lambda host: host.written, "WRITTEN", format_size, right=True),
    *_MEASURED,
)
_BACKUPS: tuple[Column[BackupUse], ...] = (
    Column("host", lambda backup: backup.host),
    Column("name", lambda backup: backup.name, "NAME", lambda name: name or "(.working)"),
    Column("state", lambda backup: backup.state, "STATE", spare=True),
    Column("started", lambda backup: backup.started),
    Column("bytes", lambda backup: backup.size, "SIZE", format_size, right=True),
    Column("new_bytes", lambda backup: backup.written, "WRITTEN", format_size, right=True),
    *_MEASURED,
)


def _show(use: PoolUse, host: str | None) -> None:
    if host:
        print_listing(_BACKUPS, [backup for backup in use.backups if backup.host == host], empty="no backups yet")
    else:
        print_listing(_HOSTS, sorted(use.hosts, key=_weight, reverse=True), empty="no backups yet")
    for host_use in use.hosts if host else ():
        if host_use.host == host and host_use.measured:
            print_wrapped(f"{printable(host)}: {_words(host_use.measured.referenced)} on disk, all backups together")
    for line in _method_lines(use):
        print_wrapped(line)


def _weight(host_use: HostUse) -> int:
    return host_use.measured.referenced.bytes if host_use.measured else host_use.written or 0


def _words(amount: Amount) -> str:
    size = format_size(amount.bytes)
    return size if amount.exact else f"{size} ({format_size(amount.low)} to {format_size(amount.high)})"


def _method_lines(use: PoolUse) -> list[str]:
    """Formats the method, its accuracy, and missing results."""
    lines = []
    if use.method == "written":
        lines.append("nothing was measured: WRITTEN is the data that rsync wrote")
    elif use.method == "sampled":
        lines.append(
            f"estimated from {counted(use.draws, 'random place')} in {format_duration(use.seconds)}; 95%: the interval of OWN"
        )
        if use.others:
            lines.append(f"data that no backup refers to: {_words(use.others)}")
    else:
        lines.append(f"all extents were read in {format_duration(use.seconds)}; OWN includes data shared with other hosts")
    if not use.complete:
        lines.append("the time limit ended the measurement: allow more with --time")
    return [*lines, *(f"{printable(path)}: {why}" for path, why in use.unread.items())]
