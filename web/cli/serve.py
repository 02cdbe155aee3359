"""btrkeep-web serve: answers browsers until it is stopped."""

import errno
import logging
import os
import threading

import click
from flask import Flask

from btrkeep.config import Listen, state_of
from btrkeep.config.values import parse_listen
from btrkeep.errors import OperatorError, UsageError
from btrkeep.process.progress import tell
from btrkeep.serving.protocol import socket_of
from btrkeep.serving.viewer import Viewer
from web.app import create_app
from web.cli.as_owner import become_owner, published_of
from web.dashboard_settings import GlobalOptions, Settings
from web.overview import overview, space_chart
from web.source import context_of
from web.waitress_server import server_of

log = logging.getLogger("btrkeep.web")
_OCCUPIED = (
    "another program uses this port (ss -ltnp shows it), perhaps another pool's dashboard: choose another port with `listen` in "
    "[web], then "
    "`backupd check`; or --listen"
)


@click.command
@click.option("--listen", metavar="ADDRESS:PORT", help="The address to listen on.  [default: `listen` in [web], 127.0.0.1:8765]")
@click.pass_context
def command(ctx: click.Context, listen: str | None) -> None:
    """Answer browsers, until SIGTERM or Ctrl-C."""
    serve(ctx.obj, listen or ctx.meta.get("listen"))


def serve(chosen: GlobalOptions, listen: str | None) -> None:
    """Serves until the process is stopped; as the user who owns the folder `data`. Raises OperatorError if it cannot listen
    there.
    """
    settings = _settings(chosen, listen)
    if os.geteuid() == 0:
        become_owner(settings.data)
    app = create_app(settings)
    where = Listen(settings.host, settings.port)
    try:
        server = server_of(app, settings)
    except OSError as error:
        hint = _OCCUPIED if error.errno == errno.EADDRINUSE else "correct `listen` in [web], or --listen"
        raise OperatorError(f"could not listen on {where}: {error.strerror}", hint) from error
    log.info("the dashboard of %s is at http://%s", settings.pool, where)
    threading.Thread(target=warm, args=(app,), daemon=True).start()
    tell("READY=1")
    server.run()


def _settings(chosen: GlobalOptions, listen: str | None) -> Settings:
    config = published_of(chosen)
    if not config.are_rights_known:
        raise OperatorError(
            "a mistake in the configuration leaves it unclear who may use the dashboard",
            "as root, run `backupd check`, correct the mistake that it prints, and start the dashboard again",
        )
    web = config.web
    where = _parsed(listen) if listen else web.listen
    return Settings(
        chosen.pool,
        chosen.state or state_of(chosen.pool),
        chosen.data_folder,
        chosen.socket or socket_of(chosen.pool),
        host=where.host,
        port=where.port,
        hosts=web.names,
        proxies=web.behind_proxy,
        login=chosen.login_socket,
    )


def _parsed(text: str) -> Listen:
    try:
        return parse_listen(text)
    except ValueError:
        raise UsageError(
            f"--listen {text}: this is not an address and port", "write it like 127.0.0.1:8765 or [::1]:8765"
        ) from None


def warm(app: Flask) -> None:
    """Prepares the templates and the first page's data, which takes about a second, while the first requests are answered.

    Without a catalogue it prepares only the templates.
    """
    for name in app.jinja_env.list_templates():
        app.jinja_env.get_template(name)
    source = context_of(app)
    try:
        overview(source, Viewer("btrkeep-web", "viewer"))
        space_chart(source)
    except OperatorError as error:
        log.debug("the catalogue cannot be read until the first request: %s", error.message)
    finally:
        source.close()
