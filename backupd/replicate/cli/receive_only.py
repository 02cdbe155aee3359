"""`backupd receive-only`: this end of a connection that another backup server has begun; a forced command of ssh."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from backupd.cli.context import opened, pass_context
from backupd.replicate.cli.fetching import fetch_one
from backupd.replicate.cli.replicate import chosen_replicas
from backupd.replicate.far_pool import FarPool, OwnStreams
from backupd.replicate.outcome import ReplicationOptions
from backupd.repo.context import PoolContext
from btrkeep import __version__
from btrkeep.cli.progress import outlive_readers
from btrkeep.config.model import ReplicaSettings
from btrkeep.decisions.copies import note_failure
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.allocation import read_room
from btrkeep.units import format_time


@click.command("receive-only")
@click.option("--replica", metavar="NAME", required=True, help="The replica of this server's configuration that is sent here.")
@pass_context
def command(ctx: click.Context, replica: str) -> int:
    """Take backups from another backup server that has begun the connection, and do nothing else.

    It is the forced command of the key that the other server sends with, for one that cannot be reached from here. In
    authorized_keys of this server:

    \b
        restrict,command="backupd receive-only --replica office" ssh-ed25519 AAAA... backup1

    What is taken, and how long it is kept, this server's [replica.NAME] says, whose `from` is "push". The other one can neither
    delete nor change what is here.

    It asks on its standard output, and reads answers from its standard input. Exit status as `backupd replicate`.
    """
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "receive-only speaks to another btrkeep, not to a terminal", "`backupd replicate` on the other server starts it"
        )
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else prints must not end up among the requests
    outlive_readers()  # when the other server is gone, that has to be noted
    with opened(ctx) as context:
        (settings,) = chosen_replicas(context, replica)
        if not settings.is_pushed:
            raise UsageError(f"{replica} is fetched from {settings.source}", 'from = "push" lets it be sent')
        return _take(context, settings, out)


def _take(context: PoolContext, replica: ReplicaSettings, out: int) -> int:
    room = read_room(context.pool.path)
    free = max(0, room.available - context.config.pool.min_free.bytes_of(room.total))
    says = {"version": __version__, "now": format_time(datetime.now(UTC)), "free": free}  # for `check --connect` over there
    far = FarPool(OwnStreams(out, 0), lambda: None, says, replica.stall)

    @contextmanager
    def connect(look: Callable[[], None]) -> Iterator[FarPool]:
        before, far.look = far.look, look
        try:
            yield far
        finally:
            far.look = before

    try:
        done = fetch_one(context, replace(replica, concurrency=1), ReplicationOptions(), connect)
    except OperatorError as error:
        note_failure(context.catalogue, replica.name, context.clock.now(), error.message)
        _tell_end(far, error.message, [])
        raise
    _tell_end(far, "", done["failed"])
    return int(done["status"])


def _tell_end(far: FarPool, error: str, failed: list[dict[str, Any]]) -> None:
    with suppress(OperatorError):  # then it is not there any more, and sees as much
        far.note_end(error, {failure["host"]: failure["error"] for failure in failed})
