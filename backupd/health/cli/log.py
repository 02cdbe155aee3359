"""`backupd log`: shows past runs and rsync's messages."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from backupd.cli import colours
from backupd.cli.command_context import complete_host, opened_to_show, pass_context, require_host
from backupd.expire.host_backups import asked_of
from backupd.repo.actions_log import UserAction, action_of, read_actions
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_files import hosts_of
from btrkeep.backup_states import EXPIRED
from btrkeep.catalogue import KILLED, Run
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import print_wrapped
from btrkeep.decisions.cause_words import error_words
from btrkeep.decisions.rsync_meaning import exit_words
from btrkeep.pool.marker import Pool
from btrkeep.process.proc import start_time
from btrkeep.units import format_duration, format_size, local_time, printable, recorded_time, seconds_between

_Deleted = dict[tuple[str, str | None], Mapping[str, str | None]]
"""By host and name of a backup: when its deletion was requested and done, by whom, and why."""


@click.command("log")
@click.argument("host", required=False, shell_complete=complete_host)
@click.option("-n", "limit", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="The number of runs.")
@click.option("--actions", is_flag=True, help="Only actions of users: hold, release, accept, delete, restore, ...; -n limits them.")
@json_option
@pass_context
def command(ctx: click.Context, host: str | None, limit: int, actions: bool, as_json: bool) -> int:
    """Show past runs, newest first, with rsync's exit status, its meaning, and its last error lines.

    A run is one attempt to back up one host. The log keeps runs whose backups were deleted, and runs that made no backup. The time
    shown for a killed run is a minimum. Backups that a user deleted (`backupd delete`) are named, with the reason.

    The log also has the actions of users, with the login name: holds, releases, accepted and deleted backups, restores, changes
    of the configuration. --actions shows only these, also as JSON.
    """
    with opened_to_show(ctx) as state:
        if host is not None:
            require_host(state.config, state.catalogue, host)
        if actions:
            return _show_actions(_actions(state.pool, host)[:limit], as_json) if state.pool else 0
        runs = state.catalogue.runs(host, limit)
        deleted = _deleted(state.pool, runs) if state.pool else {}
        done = _actions(state.pool, host) if state.pool else []
        return print_answer(
            [_fields(run, deleted.get((run.host, run.backup))) for run in runs],
            lambda: _show_runs(runs, deleted, done, limit, lost=state.lost),
            as_json=as_json,
        )


def _show_runs(runs: Sequence[Run], deleted: _Deleted, actions: Sequence[UserAction], limit: int, *, lost: bool) -> None:
    """Prints the runs, and between them the actions of users."""
    width = max((len(printable(run.host)) for run in runs), default=0)
    oldest = runs[-1].started if len(runs) == limit else None
    shown = [action for action in actions if oldest is None or action.at >= oldest][:limit]
    for run in runs:
        while shown and shown[0].at >= run.started:
            print_wrapped(_action_line(shown.pop(0)), "    ")
        _show(run, width, deleted.get((run.host, run.backup)))
    for action in shown:
        print_wrapped(_action_line(action), "    ")
    if not runs:
        click.echo("there are no runs" if lost else "no runs yet")


def _actions(pool: Pool, host: str | None) -> list[UserAction]:
    """Returns the actions of users, newest first: from the pool's record and from the notes of the hosts, each once."""
    done = dict.fromkeys(read_actions(pool, host))
    for name in [host] if host else hosts_of(pool):
        with suppress(UnreadableRecord):  # the log must be readable when something is wrong
            done |= dict.fromkeys(action for note in reversed(read_notes(pool.host(name)).actions) if (action := action_of(note)))
    return sorted(done, key=lambda action: action.at, reverse=True)


def _show_actions(actions: Sequence[UserAction], as_json: bool) -> int:
    def text() -> None:
        for action in actions:
            print_wrapped(_action_line(action), "    ")
        if not actions:
            click.echo("no action of a user was recorded")

    return print_answer([action.as_json() for action in actions], text, as_json=as_json)


def _action_line(action: UserAction) -> str:
    subject = f" {action.host}" + (f" {action.backup}" if action.backup else "") if action.host else ""
    why = f": {action.why}" if action.why else ""
    return printable(f"{local_time(action.at)}  {action.by}: {action.what}{subject}{why}")


def _outcome(run: Run) -> str:
    """Returns the recorded outcome; `running` or `killed` for a run without an outcome, or with one that was recorded after it was
    killed.
    """
    if run.outcome and not run.killed:
        return run.outcome
    return "running" if not run.outcome and start_time(run.pid) == run.pid_started else KILLED


def _deleted(pool: Pool, runs: Sequence[Run]) -> _Deleted:
    """Returns, for each backup of the runs that an operator deleted, when that was requested, when it was done, and why."""
    deleted_backups: _Deleted = {}
    for host in {run.host for run in runs if run.backup}:
        try:
            notes = read_notes(pool.host(host))
        except UnreadableRecord:  # the log must be readable when something is wrong
            continue
        for name, note in notes.backups.items():
            if asked := asked_of(notes, name):
                deleted_backups[host, name] = {"asked": str(note[EXPIRED]["at"]), "at": None, "why": asked.why, "by": asked.by}
        for name, gone in notes.deleted.items():
            deleted_backups[host, name] = {key: str(gone.get(key) or "") for key in ("asked", "at", "why", "by")}
    return deleted_backups


def _fields(run: Run, deleted: Mapping[str, str | None] | None) -> dict[str, Any]:
    return {
        "host": run.host,
        "started": run.started,
        "finished": run.finished,
        "outcome": _outcome(run),
        "backup": run.backup,
        "night": run.night,
        "attempts": run.attempts,
        "exit_code": run.exit_code,
        "meaning": exit_words(run.meaning, run.exit_code) if run.meaning else None,
        "error": error_words(run.error, run.cause),
        "last_lines": [printable(line) for line in run.last_lines],
        "literal_bytes": run.literal_bytes,
        "shared_bytes": run.shared_bytes,
        "matched_bytes": run.matched_bytes,
        "received_bytes": run.received_bytes,
        "rsync_version": run.rsync_version,
        "protocol": run.protocol,
        "deleted": deleted,
    }


_WITHOUT_STATUS = {"running": "rsync has not ended", KILLED: "rsync's exit status is unknown"}


def _show(run: Run, width: int, deleted: Mapping[str, str | None] | None) -> None:
    outcome = _outcome(run)
    is_known = run.finished is not None and not (run.killed and run.finished == run.started)
    took = format_duration(seconds_between(run.started, run.finished)) if is_known else "-"
    engine = "rsync" if run.rsync_version else "send"
    result = _WITHOUT_STATUS.get(outcome, f"{engine} did not run")
    if run.exit_code is not None:
        words = exit_words(run.meaning or "", run.exit_code)
        result = f"{engine} {run.exit_code}: {words}" if words else f"{engine} {run.exit_code}"
    new = f", {format_size(run.literal_bytes)} new" if run.literal_bytes else ""
    if run.shared_bytes:
        new += f", {format_size(run.shared_bytes)} shared"
    tries = f", {run.attempts} attempts" if run.attempts > 1 else ""
    coloured = click.style(f"{outcome:8}", fg=colours.BACKUP.get(outcome))
    print_wrapped(f"{local_time(run.started)}  {printable(run.host):{width}}  {coloured}  {took}{new}{tries}; {result}", "    ")
    if error := error_words(run.error, run.cause):
        print_wrapped(f"    {printable(error)}", "      ")
    if deleted:
        fate = f"deleted {recorded_time(deleted['at'])}" if deleted["at"] else "has expired"
        why = f": {printable(deleted['why'])}" if deleted["why"] else ""
        by = f" by {printable(deleted['by'])}" if deleted["by"] else ""
        print_wrapped(f"    {run.backup} {fate}, requested {recorded_time(deleted['asked'] or '')}{by}{why}", "      ")
    for line in run.last_lines:
        print_wrapped(f"    | {printable(line)}", "    |   ")
