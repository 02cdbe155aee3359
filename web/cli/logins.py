"""btrkeep-web logins: the login service, the only process that knows users and sessions."""

import logging
import os
import signal
from contextlib import ExitStack, suppress
from functools import partial

import click

from btrkeep.errors import UsageError
from btrkeep.process.progress import tell
from btrkeep.serving.server import Server, allowed_users, bound, handed_over
from web.auth.service import LoginService
from web.auth.store import Store
from web.cli.as_owner import become_owner, published_of
from web.dashboard_settings import GlobalOptions

log = logging.getLogger("btrkeep.web")


@click.command
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="USER",
    help="A user who may connect, besides root, btrkeep and the user that started it; repeatable.",
)
@click.pass_context
def command(ctx: click.Context, allowed: tuple[str, ...]) -> None:
    """Run the login service, which checks passwords, sessions and tokens for the dashboard and the root service.

    Only this service reads and writes the database of users. It runs as the owner of the folder of users. systemd starts it when a
    program connects to btrkeep-login@POOL.socket. Started manually, it listens at --login until SIGTERM or Ctrl-C.
    """
    chosen = ctx.obj
    assert isinstance(chosen, GlobalOptions)
    web = published_of(chosen).web
    may_ask = allowed_users(allowed) | {os.geteuid()}
    with ExitStack() as held:
        listening = handed_over()
        if not listening:
            if not chosen.login_socket.parent.is_dir():
                raise UsageError(f"{chosen.login_socket.parent} is not a folder", "name the socket with --login FILE")
            listening, remove = bound(chosen.login_socket.absolute(), allowed or (str(os.geteuid()),) if os.geteuid() else allowed)
            held.enter_context(suppress(PermissionError))  # it may run as another user by then
            held.callback(remove)
        held.callback(listening.close)
        if os.geteuid() == 0:
            become_owner(chosen.users_folder)
        service = LoginService(Store(chosen.users_folder), web.idle, web.longest)
        server = Server(partial(service.answer, allowed=may_ask), listening, at_once=_AT_ONCE)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        tell("READY=1")
        log.info("the login service of %s", chosen.pool)
        server.run()


_AT_ONCE = 40
"""Number of connections: each thread of the dashboard and of the root service has at most one."""
