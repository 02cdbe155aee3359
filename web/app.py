"""The Flask application: its pages, and what is done for every request of every page.

The X-Forwarded headers of a reverse proxy are used if the configuration names the proxy's address, and dropped otherwise.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, abort, current_app, g, request
from flask_wtf.csrf import CSRFProtect
from werkzeug.middleware.proxy_fix import ProxyFix

from btrkeep import __version__
from btrkeep.decisions.overall import Overall
from btrkeep.errors import OperatorError
from btrkeep.serving.viewer import Viewer
from web import (
    account,
    changes,
    copies,
    doctor,
    documentation,
    endpoints,
    error_pages,
    filters,
    health,
    log,
    overview,
    proof,
    site_search,
)
from web.auth import sessions
from web.auth.sessions import cookie_key
from web.csv_tables import OneTable, as_csv
from web.dashboard_settings import Settings
from web.files import page as files
from web.hosts import page as hosts
from web.jobs import page as jobs
from web.page_verdict import overall
from web.pool import balance, expiry, heatmap
from web.pool import page as pool
from web.request_values import next_of_request
from web.restore import page as restore
from web.source import Caches, close_source, is_public, logged_in_viewer, source
from web.waitress_server import require_read

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """A page of the dashboard."""

    blueprint: Blueprint
    """Its views."""
    address: str = ""
    """The text of its entry in the navigation; "": no entry."""
    label: str = ""
    """The text of its entry."""
    below: str = ""
    """The page whose entry is highlighted instead; "": its own."""
    is_of_whole_pool: bool = False
    """True if users who are limited to some hosts do not see its entry."""

    @property
    def name(self) -> str:
        """Returns the page's name in the navigation."""
        return self.blueprint.name


PAGES = (
    DashboardPage(overview.blueprint, "/", "Overview"),
    DashboardPage(hosts.blueprint, "/hosts", "Hosts"),
    DashboardPage(files.blueprint, below="hosts"),
    DashboardPage(restore.blueprint, below="hosts"),
    DashboardPage(copies.blueprint, "/copies", "Copies"),
    DashboardPage(proof.blueprint, "/proof", "Proof"),
    DashboardPage(pool.blueprint, "/pool", "Pool", is_of_whole_pool=True),
    DashboardPage(heatmap.blueprint),
    DashboardPage(balance.blueprint),
    DashboardPage(expiry.blueprint),
    DashboardPage(jobs.blueprint, "/jobs", "Jobs"),
    DashboardPage(log.blueprint, "/log", "Log"),
    DashboardPage(doctor.blueprint, "/doctor", "Doctor", is_of_whole_pool=True),
    DashboardPage(account.blueprint),
    DashboardPage(changes.blueprint),
    DashboardPage(site_search.blueprint),
    DashboardPage(documentation.blueprint),
    DashboardPage(health.blueprint),
)
_BELOW = {page.name: page.below for page in PAGES if page.below}


_LARGEST = 1 << 20  # bytes of a form: many paths to restore
_STATIC = 3600  # seconds; the URL of a file contains its version


def create_app(settings: Settings) -> Flask:
    """Creates the dashboard of one pool. Raises OperatorError if its own folder cannot be used."""
    app = Flask("web")
    app.config.update(
        MAX_CONTENT_LENGTH=_LARGEST,
        MAX_FORM_MEMORY_SIZE=_LARGEST,
        MAX_FORM_PARTS=10_000,
        SECRET_KEY=cookie_key(settings.data),
        SEND_FILE_MAX_AGE_DEFAULT=_STATIC,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_NAME="btrkeep",
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,
        TESTING=settings.testing,
        WTF_CSRF_CHECK_DEFAULT=False,  # `_every_request` checks it: a script with a token has no cookie that others could abuse
        WTF_CSRF_TIME_LIMIT=None,  # valid as long as the session
    )
    app.session_interface = sessions.Cookies()
    app.extensions.update({"btrkeep": settings, "btrkeep-caches": Caches()})
    app.wsgi_app = behind_proxies(app.wsgi_app, settings.proxies)  # type: ignore[method-assign, assignment]  # Flask's way
    _every_request(app, settings)
    filters.register(app)
    app.context_processor(_names)
    error_pages.register(app)
    for page in PAGES:
        app.register_blueprint(page.blueprint)
    app.register_blueprint(endpoints.blueprint)
    return app


def _every_request(app: Flask, settings: Settings) -> None:
    names, forms = names_of(settings), CSRFProtect(app)

    @app.before_request
    def authenticate() -> None:
        require_known_host(names)
        view = app.view_functions.get(request.endpoint or "")
        if view is app.view_functions["static"]:
            return
        sessions.load()
        if view and not _is_open(app, view) and logged_in_viewer() is None:
            abort(401)
        if who := logged_in_viewer():
            require_read(who)
        if view and not g.by_token and request.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            forms.protect()

    @app.url_defaults
    def versioned(endpoint: str, values: dict[str, object]) -> None:
        if endpoint == "static":
            values.setdefault("v", _version_of(app, str(values.get("filename"))))

    app.after_request(add_headers)
    app.after_request(lambda response: as_csv(response, settings.pool))  # before the headers
    app.teardown_request(close_source)
    table = OneTable()
    app.before_request(table.begin)
    app.teardown_request(table.end)


def _names() -> dict[str, Any]:
    who = logged_in_viewer()
    pages = [page for page in PAGES if page.label and not (who and who.limited and page.is_of_whole_pool)]
    pool = current_app.extensions["btrkeep"].pool
    context = {"who": who, "navigation": pages if who else [], "version": __version__, "source": source, "config_pool": pool}
    context |= {"saved_links": site_search.saved_links, "here_address": lambda: next_of_request() or "/"}
    return {**context, "current": page_of(request.path), "verdict": _verdict(who)}


def _verdict(who: Viewer | None) -> Overall | None:
    """Returns the verdict for the page's icon; None without a login, or if the catalogue cannot be read."""
    if who is None:
        return None
    try:
        return overall(source(), who)
    except OperatorError:
        return None


def page_of(path: str) -> str:
    """Returns the entry of the navigation for an address: "hosts" for /hosts/web1 and for /files/web1."""
    first = path.split("/")[1] if "/" in path else ""
    return _BELOW.get(first, first) or "overview"


def _is_open(app: Flask, view: object) -> bool:
    return view is app.view_functions["static"] or is_public(view)  # type: ignore[arg-type]  # Flask's type says less


def _version_of(app: Flask, name: str) -> str:
    """Returns a version of a static file for its URL, so that browsers load it again after a change."""
    try:
        return f"{(Path(app.static_folder or '') / name).stat().st_mtime_ns:x}"
    except OSError:
        return "0"


_FORWARDED = ("HTTP_FORWARDED", *(f"HTTP_X_FORWARDED_{suffix}" for suffix in ("FOR", "PROTO", "HOST", "PORT", "PREFIX", "BY")))


def behind_proxies(app: "WSGIApplication", proxies: tuple[str, ...]) -> "WSGIApplication":
    """Returns the application behind these proxies."""
    behind = ProxyFix(app, x_for=1, x_proto=1, x_host=1)

    def forwarded(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ.get("REMOTE_ADDR") in proxies:
            return behind(environ, start_response)
        for name in _FORWARDED:
            environ.pop(name, None)
        return app(environ, start_response)

    return forwarded


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",  # flask-wtf checks it with https
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_YEAR = 31_536_000


def add_headers(response: Response) -> Response:
    """Adds the headers to a response. Downloads get them too: they are harmless there, so no separate policy is needed."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.is_secure:
        response.headers.setdefault("Strict-Transport-Security", f"max-age={_YEAR}")
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
    return response


def names_of(settings: Settings) -> frozenset[str]:
    """Returns the names that this dashboard accepts."""
    local = {"localhost", "127.0.0.1", "[::1]"}
    machine = socket.gethostname().lower()
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    return frozenset({*local, machine, machine.partition(".")[0], own, *settings.hosts})


def require_known_host(names: frozenset[str]) -> None:
    """Aborts with 400 if the request has an unknown name of this server: an attacker's page may make the browser send requests here
    under another name (DNS rebinding).
    """
    if _without_port(request.host.lower()) not in names:
        abort(400, "this dashboard has another name; `names` of [web] in the configuration lists its names")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
