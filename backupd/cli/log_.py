"""`backupd log`: past runs, and what rsync said."""

from datetime import datetime
from typing import Any

import click

from backupd.cli.context import complete_host, json_option, now_option, opened, see_host
from btrkeep.catalogue import Run
from btrkeep.cli import echo_json
from btrkeep.process.proc import start_time
from btrkeep.units import elapsed, format_duration, format_size, format_time, printable

_COLOURS = {"complete": "green", "suspect": "yellow", "failed": "red", "partial": "yellow", "skipped": "cyan"}


@click.command("log")
@click.argument("host", required=False, shell_complete=complete_host)
@click.option("-n", "limit", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="How many runs.")
@json_option
@now_option
@click.pass_context
def command(ctx: click.Context, host: str | None, limit: int, as_json: bool, now: datetime | None) -> int:
    """Past runs, newest first, with rsync's exit status, what it means, and its last error lines.

    A run is one try to back up one host. Runs are remembered when their backups are long gone, and also when none came of them.
    """
    with opened(ctx, now) as site:
        if host:
            see_host(site.config, site.catalogue, host)
        runs = site.catalogue.runs(host, limit)
    if as_json:
        echo_json([_as_json(run) for run in runs])
        return 0
    width = max((len(printable(run.host)) for run in runs), default=0)
    for run in runs:
        _show(run, width)
    if not runs:
        click.echo("no run is known" if site.lost else "no runs yet")
    return 0


def _outcome(run: Run) -> str:
    if run.outcome:
        return run.outcome
    return "running" if start_time(run.pid) == run.pid_started else "killed"


def _as_json(run: Run) -> dict[str, Any]:
    return {
        "host": run.host,
        "started": format_time(run.started),
        "finished": format_time(run.finished) if run.finished else None,
        "outcome": _outcome(run),
        "backup": run.backup,
        "night": run.night,
        "attempts": run.attempts,
        "exit_code": run.exit_code,
        "meaning": run.meaning,
        "error": run.error,
        "last_lines": [printable(line) for line in run.last_lines],
        "literal_bytes": run.literal_bytes,
        "matched_bytes": run.matched_bytes,
        "received_bytes": run.received_bytes,
        "rsync_version": run.rsync_version,
        "protocol": run.protocol,
    }


def _show(run: Run, width: int) -> None:
    outcome = _outcome(run)
    took = format_duration(elapsed(run.started, run.finished))
    said = f"rsync {run.exit_code}: {run.meaning}" if run.exit_code is not None else "rsync did not run"
    new = f", {format_size(run.literal_bytes)} new" if run.literal_bytes else ""
    tries = f", {run.attempts} attempts" if run.attempts > 1 else ""
    coloured = click.style(f"{outcome:8}", fg=_COLOURS.get(outcome))
    click.echo(f"{format_time(run.started)}  {printable(run.host):{width}}  {coloured}  {took}{new}{tries}; {said}")
    if run.error:
        click.echo(f"    {printable(run.error)}")
    for line in run.last_lines:
        click.echo(f"    | {printable(line)}")
