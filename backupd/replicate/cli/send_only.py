"""`backupd send-only`: the other end of a replication; a forced command of ssh."""

import logging
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from backupd.cli.command_context import load_config
from backupd.replicate.initial_copy import InitialCopySender
from backupd.replicate.sender import BackupSender, request_lines, serve
from backupd.repo.pool_context import open_configured
from backupd.repo.publish import publish_copies
from btrkeep.catalogue import Catalogue
from btrkeep.cli.arguments import GivenPath
from btrkeep.config.sources import name_fault
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool, open_pool
from btrkeep.process.progress import exit_on_sigterm

_log = logging.getLogger(__name__)


@click.command("send-only")
@click.option("--replica", metavar="NAME", help="The name of the copy on this server; the other server may use a different name.")
@click.option("--host", "hosts", metavar="PATTERN", multiple=True, help="Show only these hosts to the other server.")
@click.option("--path", type=GivenPath(path_type=Path), help="The pool in this folder, instead of a configured one.")
@click.option("--seed", "initial_copy", type=GivenPath(path_type=Path), help="An initial copy in this folder, instead of a pool.")
@click.pass_context
def command(ctx: click.Context, replica: str | None, hosts: tuple[str, ...], path: Path | None, initial_copy: Path | None) -> int:
    """List and send backups to another backup server, and do nothing else.

    It is the forced command for the key of a server that fetches. In authorized_keys of this server:

    \b
        restrict,command="backupd send-only --replica backup2" ssh-ed25519 AAAA... backup2

    With --replica, the key can record the common backups of both servers, which do not expire, only for that copy; without it, for
    any copy. --host can be given several times.

    It reads requests from its standard input, answers on its standard output, and ends with its input.
    """
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "send-only needs another btrkeep at the other end, not a terminal", "`backupd replicate` on the other server starts it"
        )
    if replica is not None and (fault := name_fault(replica)):
        raise UsageError(f"--replica {replica!r} {fault}")
    exit_on_sigterm()
    out = os.dup(1)
    os.dup2(2, 1)  # other output must not be mixed into the answers
    with ExitStack() as held:
        sender: BackupSender | InitialCopySender
        if initial_copy:
            sender = InitialCopySender(initial_copy, out)
        elif path:
            sender = BackupSender(open_pool(path), None, out, replica, hosts)
        else:
            config = load_config(ctx)
            pool = open_configured(config)
            catalogue = _catalogue(held, config.pool.state, pool.id)
            sender = BackupSender(pool, catalogue, out, replica, hosts, after_common=partial(_tell, config.pool.state, pool))
        os.set_blocking(out, False)  # a client that stops reading would block the expiry of a backup for ever
        try:
            serve(request_lines(0), sender.verbs, out)
        except BrokenPipeError:
            return 0
    return 0


def _tell(state: Path, pool: Pool) -> None:
    """Publishes the common backups. The request of the other server is already done, so errors here are left to the next `backupd
    sample`.
    """
    try:
        with Catalogue.open(state) as catalogue:
            if catalogue.pool_id() == pool.id:
                publish_copies(pool, catalogue)
    except (OSError, OperatorError) as error:
        _log.info("%s", error)


def _catalogue(held: ExitStack, state: Path, pool: str) -> Catalogue | None:
    """Returns the catalogue if it can be read and is this pool's; otherwise the pool itself is read."""
    try:
        catalogue = held.enter_context(Catalogue.open_readonly(state))
        return catalogue if catalogue.pool_id() == pool else None
    except OperatorError:
        return None
