"""`backupd serve`: the root service of the dashboard."""

import gc
import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from backupd.cli.command_context import given_now, load_config, pass_context, present
from backupd.serve.answering import answer
from backupd.serve.service_context import ServiceContext
from backupd.serve.start_job import keep_starting
from btrkeep.cli.arguments import GivenPath
from btrkeep.clock import Clock
from btrkeep.errors import UsageError
from btrkeep.hung_storage import answers
from btrkeep.process.progress import tell
from btrkeep.serving.server import Server, allowed_users, bound, handed_over
from btrkeep.units import printable

_IDLE = 60.0
_LONGEST = 900.0  # seconds after which it ends even if it is busy: systemd then starts the installed version
log = logging.getLogger("backupd.serve")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command."""

    path: Path | None
    """The socket to listen on; None: systemd passes one."""
    allowed: tuple[str, ...]
    """Names of users who may send requests, besides root and btrkeep."""
    idle: float | None
    """Seconds without a request after which the service exits; None: the default."""
    no_systemd: bool
    """True to start jobs as processes instead of units."""
    restore_to: Path | None
    """The folder of this machine for restores; None: restores go only to hosts."""
    login: Path | None
    """The socket of the login service; None: the default."""
    restore_elsewhere: bool
    """True to allow restores into other folders of a host than the original ones."""
    restore_below: tuple[Path, ...]
    """Folders of this machine below which its own files may be restored to their original paths."""


@click.command("serve")
@click.option(
    "--socket", "path", type=GivenPath(path_type=Path), metavar="PATH", help="Listen on this socket, if systemd passes none."
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="USER",
    help="A user who may send requests, besides root and btrkeep; repeatable.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Exit after this time without a request.  [with systemd's socket: 60]",
)
@click.option("--no-systemd", is_flag=True, help="Start runs and restores as processes, not as units of systemd.")
@click.option(
    "--restore-to",
    type=Path,
    metavar="DIR",
    help="Allow restores into this folder of this machine; without it, restores go only to hosts.",
)
@click.option(
    "--login",
    type=GivenPath(path_type=Path),
    metavar="PATH",
    help="The socket of `btrkeep-web logins`.  [default: /run/btrkeep/login-NAME.sock]",
)
@click.option("--restore-elsewhere", is_flag=True, help="Also allow restores into other folders of a host than the original ones.")
@click.option(
    "--restore-below",
    multiple=True,
    type=Path,
    metavar="DIR",
    help="Allow restores of this machine's own files to their original paths below DIR; repeatable. Without it, they are refused.",
)
@pass_context
def command(ctx: click.Context, **options: Any) -> int:
    """Do the privileged work of the dashboard: list and stream files, hold, release, start runs and restores.

    systemd starts it when a program connects to btrkeep-serve@POOL.socket. It exits after a while without requests. With --socket
    it listens itself, until Ctrl-C. It answers root, the users that --allow names, and the user btrkeep, which sends the requests
    of users who are logged in at the dashboard. `man backupd` names the description of the protocol.
    """
    given, chosen = ServeOptions(**options), ctx.find_root().obj
    file = Path(chosen["config"]).absolute() if chosen["config"] else None
    # Resolved once: symlinks on the path are not followed afterwards.
    to = _resolved(given.restore_to) if given.restore_to else None
    places = tuple(place for folder in given.restore_below if (place := _resolved(folder)))
    login, path = (place.absolute() if place else None for place in (given.login, given.path))
    service = ServiceContext(
        chosen["pool"], file, Clock(given_now(ctx)), not given.no_systemd, to, given.restore_elsewhere, places, login
    )
    log.setLevel(logging.INFO)
    with ExitStack() as held:
        listening = handed_over()
        idle, longest = given.idle, _LONGEST if listening else None
        if listening:
            idle = idle or _IDLE
        else:
            _require_configured(ctx)
            if not path:
                raise UsageError("systemd passed no socket", "give --socket PATH, or start btrkeep-serve@POOL.socket")
            listening, remove = bound(path, given.allowed)
            held.callback(remove)
        held.callback(listening.close)
        os.chdir("/")  # a working directory in the pool would keep it from being unmounted
        may_ask = allowed_users(given.allowed)

        def answered(connection: socket.socket) -> None:
            answer(service, connection, may_ask)
            service.publish_config()

        server = Server(answered, listening, idle, longest, lambda: service.queue.waits)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        threading.Thread(target=keep_starting, args=(service,), daemon=True).start()
        gc.freeze()
        tell("READY=1")
        log.info("serving %s", file or service.pool_name)
        log.info("ending: %s", server.run())
    return 0


def _resolved(folder: Path) -> Path | None:
    """Returns the folder without symlinks; None if it does not answer. Then the service does everything else, and restores nothing
    there.

    Raises UsageError for a file. `GivenPath` would refuse a folder that does not answer, and the service would not start.
    """
    if answers(folder):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{printable(str(folder))} is a file", "name a folder")
        return folder.resolve()
    log.warning("%s does not answer: nothing is restored there until the service starts again", printable(str(folder)))
    return None


def _require_configured(ctx: click.Context) -> None:
    """Fails at once on an invalid configuration if started by hand. If systemd starts it, the clients get the error instead,
    because exiting would not help.
    """
    config = load_config(ctx)
    config.require_rights()
    present(ctx, config)  # --now is for rehearsals only
