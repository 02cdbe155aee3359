"""btrkeep-web serve: answers browsers until it is told to end."""

import logging
from pathlib import Path

import click
import waitress

from btrkeep.catalogue import Catalogue
from btrkeep.config import Listen, Published, published
from btrkeep.config.values import parse_listen
from btrkeep.errors import OperatorError, UsageError
from btrkeep.process.service import tell
from btrkeep.serving.protocol import socket_of
from web.app import create_app
from web.cli import Chosen
from web.settings import Settings, data_of, state_of

log = logging.getLogger("btrkeep.web")
_CLEAN_UP = 30  # seconds between two looks for connections that are over


@click.command
@click.option("--listen", metavar="ADDRESS:PORT", help="Where to listen.  [default: `listen` in [web], 127.0.0.1:8765]")
@click.pass_context
def command(ctx: click.Context, listen: str | None) -> None:
    """Answer browsers, until SIGTERM or Ctrl-C."""
    serve(ctx.obj, listen or ctx.meta.get("listen"))


def serve(chosen: Chosen, listen: str | None) -> None:
    """Until the process is told to end. Raises OperatorError when it cannot listen there."""
    settings = _settings(chosen, listen)
    app = create_app(settings)
    where = Listen(settings.host, settings.port)
    try:
        server = waitress.create_server(
            app,
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            ident=None,
            channel_timeout=120,
            cleanup_interval=_CLEAN_UP,
            connection_limit=200,
            max_request_header_size=64 << 10,
            max_request_body_size=2 << 20,
            clear_untrusted_proxy_headers=False,  # web.proxies does it, by the address
        )
    except OSError as error:
        hint = "another program is there: ss -ltnp" if "in use" in str(error) else "see `listen` in [web], or --listen"
        raise OperatorError(f"{where} cannot be listened on: {error.strerror}", hint) from error
    log.info("the dashboard of %s is at http://%s", settings.pool, where)
    tell("READY=1")
    server.run()


def _settings(chosen: Chosen, listen: str | None) -> Settings:
    state = chosen.state or state_of(chosen.pool)
    web = _published(state, chosen.pool).web
    where = _parsed(listen) if listen else web.listen
    return Settings(
        chosen.pool,
        state,
        chosen.data or data_of(chosen.pool),
        chosen.socket or socket_of(chosen.pool),
        host=where.host,
        port=where.port,
        hosts=web.names,
        proxies=web.behind_proxy,
        idle=web.idle,
        longest=web.longest,
    )


def _published(state: Path, pool: str) -> Published:
    """What the configuration says in [web]. The dashboard starts without it too, and says on each page what is missing."""
    try:
        with Catalogue.open_readonly(state) as catalogue:
            return published(catalogue, pool)
    except OperatorError as error:
        log.warning("%s: what [web] says is not known, so it is as by default", error.message)
        return Published(pool)


def _parsed(text: str) -> Listen:
    try:
        return parse_listen(text)
    except ValueError:
        raise UsageError(f"--listen {text}: this is no address and port", "such as 127.0.0.1:8765 or [::1]:8765") from None
