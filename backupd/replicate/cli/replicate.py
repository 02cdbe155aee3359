"""`backupd replicate`: fetches backups of another pool into this one; and `backupd receive-only`: this end of a connection that
another backup server opened, a forced command of ssh.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from backupd.cli.command_context import completing_config, dry_run_option, opened, pass_context
from backupd.cli.copy_commands import chosen_copies, closing_time, is_copy_due, report_unreached
from backupd.replicate.cli.sending import parse_part_size, push_to, write_initial_copy
from backupd.replicate.outcome import ReplicationOptions
from backupd.replicate.remote_pool import Connections, OwnStreams, RemotePool, RemotePoolMissing, replica_command
from backupd.repo.pool_context import PoolContext
from btrkeep import __version__
from btrkeep.catalogue import CatalogueBusy, CatalogueUnusable
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.arguments import GivenPath, ParsedType
from btrkeep.cli.output import survive_closed_stdout
from btrkeep.config.config_model import PushSettings, ReplicaSettings
from btrkeep.decisions.copy_status import PUSH, REPLICA, note_failure
from btrkeep.errors import Exit, LockHeld, OperatorError, UsageError
from btrkeep.pool.allocation import read_room
from btrkeep.units import format_time


def complete_replica(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the name of a configured replica, or of a server to which backups are sent."""
    config = completing_config(ctx)
    return [name for name in (*config.replicas, *config.pushes) if name.startswith(incomplete)] if config else []


@click.command("replicate")
@click.argument("name", required=False, shell_complete=complete_replica)
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--due", is_flag=True, help="Only replicas that are due (`every`), within their window.")
@click.option("--damaged", is_flag=True, help="Fetch copies again that are damaged here; each replaces the damaged copy.")
@dry_run_option("which backups would be fetched")
@click.option(
    "--seed-to",
    type=GivenPath(path_type=Path),
    metavar="FOLDER",
    help="On the first server: write the newest backup of each host to a disk that is carried to the second one.",
)
@click.option(
    "--part-size",
    type=ParsedType("size", parse_part_size),
    default="2GiB",
    show_default=True,
    metavar="SIZE",
    help="The size of each file that --seed-to writes.",
)
@click.option(
    "--seed-from",
    "initial_copy",
    type=GivenPath(path_type=Path),
    metavar="FOLDER",
    help="On the second server: fetch from a disk that --seed-to has written.",
)
@json_option
@pass_context
def command(ctx: click.Context, name: str | None, due: bool, seed_to: Path | None, part_size: int, **options: Any) -> int:
    """Fetch the backups of another pool, or send this pool's backups to a server that cannot reach it.

    NAME is a replica or a [push] section; without it, all of them are used. HOST limits it to these hosts.

    Only the differences to existing copies are transferred, but each copy is a complete backup, and can be browsed, restored and
    compared. Deletions, ends of holds and renamings of hosts are not transferred. An interrupted transfer leaves nothing, and
    starts again.

    The first copies can be carried on a disk: on the first server `replicate --seed-to FOLDER NAME`, where NAME is its name for
    the copy (`send-only --replica NAME`); on the second server `replicate NAME --seed-from FOLDER`. Both continue after an
    interruption.

    With --damaged, the copies that `backupd damaged` lists here are fetched again, as the difference to an undamaged copy or
    completely. A copy that is being restored from is fetched the next time.

    It waits while a backup, an expiry or a balance is running here. Exit status 0: all backups are here; 1: a host could not be
    fetched, or a pool on a removable disk was away for longer than `max_age`; 3: another replication of it is running; 4: this
    pool is unusable.
    """
    status, wanted = int(Exit.OK), ReplicationOptions(**options)
    if (seed_to or wanted.initial_copy) and (due or (seed_to and wanted.initial_copy)):
        raise UsageError("--seed-to, --seed-from and --due exclude each other")
    if wanted.damaged and (seed_to or wanted.initial_copy or due):
        raise UsageError("--damaged excludes --due, --seed-to and --seed-from", "`backupd replicate NAME [HOST...] --damaged`")
    with opened(ctx, writes=not wanted.dry_run) as context:
        if seed_to:
            return write_initial_copy(context, seed_to, name, part_size, wanted)
        if wanted.initial_copy:
            if name is None:
                raise UsageError("name the replica of the initial copy", "`replicate NAME --seed-from FOLDER`")
            results = [_fetch(context, chosen_replicas(context, name)[0], wanted)]
            print_answer(results, (), as_json=wanted.as_json)
            return int(results[0]["status"] if not wanted.dry_run else Exit.OK)
        results = []
        for copy in chosen_replicas(context, name) if wanted.damaged else _chosen(context, name, is_asked=not due):
            if due and not is_copy_due(context, copy):
                continue
            try:
                if isinstance(copy, PushSettings):
                    results.append(push_to(context, copy, wanted))
                else:
                    end = closing_time(context, copy) if due else None
                    results.append(_fetch(context, copy, replace(wanted, end=end)))
            except LockHeld as error:
                print_error(error)
                results.append({copy.kind: copy.name, "error": error.message, "status": error.exit_code})
            except (CatalogueBusy, CatalogueUnusable, UsageError):
                raise
            except OperatorError as error:  # the others are still fetched
                failed = report_unreached(
                    context, copy, error, is_away=isinstance(error, RemotePoolMissing), dry_run=wanted.dry_run
                )
                results.append(
                    {copy.kind: copy.name, "error": error.message, "status": int(error.exit_code if failed else Exit.OK)}
                )
            if results[-1].get("status", 0) >= Exit.INTERRUPTED:
                break
        print_answer(results, (), as_json=wanted.as_json)
    if name is None and context.config.faulty_sections & {REPLICA, PUSH}:
        status = int(Exit.ATTENTION)
    for result in results:
        status = max(status, result.get("status", 0))
    return status


def _fetch(context: PoolContext, replica: ReplicaSettings, wanted: ReplicationOptions) -> dict[str, Any]:
    """Fetches once; returns the result as JSON. Raises what `fetch_one` raises."""
    command = replica_command(
        context.config, context.pool, replica, initial_copy=wanted.initial_copy, is_limited=not wanted.dry_run
    )
    with Connections(command, replica.stall) as connections:
        from backupd.replicate.cli.fetching import fetch_one  # in parallel with the other server's imports

        return fetch_one(context, replica, wanted, connections.connect)


def _chosen(context: PoolContext, name: str | None, *, is_asked: bool) -> list[ReplicaSettings | PushSettings]:
    """Returns the section with that name, or all that this server can update. Raises UsageError."""
    pushes = context.config.pushes
    if name is not None and name in pushes:
        return [pushes[name]]
    replicas = chosen_replicas(context, name, is_asked=is_asked and not pushes)
    if name and replicas[0].is_pushed:
        raise UsageError(
            f"{name} is sent by the other server, so this server does not fetch it",
            "run `backupd replicate` on the other server",
        )
    return [
        *(replica_settings for replica_settings in replicas if not replica_settings.is_pushed),
        *(pushes.values() if name is None else ()),
    ]


def chosen_replicas(context: PoolContext, name: str | None, *, is_asked: bool = True) -> list[ReplicaSettings]:
    """Returns the replica with that name, or all. Raises UsageError as `chosen_copies` does."""
    return chosen_copies(context, REPLICA, context.config.replicas, name, is_asked=is_asked)


@click.command("receive-only")
@click.option("--replica", metavar="NAME", required=True, help="The replica of this server's configuration that is sent here.")
@pass_context
def receive_only_command(ctx: click.Context, replica: str) -> int:
    """Receive backups from another backup server that opened the connection, and do nothing else.

    It is the forced command for the key of a server that sends its backups, because it cannot be reached from here. In
    authorized_keys of this server:

    \b
        restrict,command="backupd receive-only --replica office" ssh-ed25519 AAAA... backup1

    This server's [replica.NAME], with `from` = "push", decides which backups are received and how long they are kept. The other
    server can neither delete nor change backups here.

    It asks on its standard output, and reads answers from its standard input. Exit status as `backupd replicate`.
    """
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "receive-only needs another btrkeep at the other end, not a terminal",
            "`backupd replicate` on the other server starts it",
        )
    out = os.dup(1)
    os.dup2(2, 1)  # other output must not be mixed into the requests
    survive_closed_stdout()  # a lost connection has to be recorded
    with opened(ctx) as context:
        (settings,) = chosen_replicas(context, replica)
        if not settings.is_pushed:
            raise UsageError(f"{replica} is fetched from {settings.source}", 'set from = "push" to receive it')
        return _take(context, settings, out)


def _take(context: PoolContext, replica: ReplicaSettings, out: int) -> int:
    from backupd.replicate.cli.fetching import fetch_one

    room = read_room(context.pool.path)
    free = max(0, room.available - context.config.pool.min_free.bytes_of(room.total))
    says = {"version": __version__, "now": format_time(datetime.now(UTC)), "free": free}  # for `check --connect` there
    far = RemotePool(OwnStreams(out, 0), lambda: None, says, replica.stall)

    @contextmanager
    def connect(poll: Callable[[], None]) -> Iterator[RemotePool]:
        before, far.poll = far.poll, poll
        try:
            yield far
        finally:
            far.poll = before

    try:
        done = fetch_one(context, replace(replica, concurrency=1), ReplicationOptions(), connect)
    except OperatorError as error:
        note_failure(context.catalogue, replica.name, context.clock.now(), error.message)
        _tell_end(far, error.message, [])
        raise
    _tell_end(far, "", done["failed"])
    return int(done["status"])


def _tell_end(far: RemotePool, error: str, failed: list[dict[str, Any]]) -> None:
    with suppress(OperatorError):  # the other server has disconnected, so it knows
        far.note_end(error, {failure["host"]: failure["error"] for failure in failed})
