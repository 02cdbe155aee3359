"""The Flask application: what happens to every request, whichever page it is for.

The X-Forwarded headers of a reverse proxy are used if the configuration names the proxy's address, and dropped otherwise.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, abort, g, request
from flask_wtf.csrf import CSRFProtect
from werkzeug.middleware.proxy_fix import ProxyFix

from web import api, errors, filters, pages, unread
from web.access import is_public, logged_in_viewer
from web.auth import sessions
from web.auth.cookie_key import cookie_key
from web.headers import add_headers, names_of, require_known_host
from web.settings import Settings
from web.source import Caches, close_source

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


_LARGEST = 1 << 20  # bytes of a form: many paths to restore
_STATIC = 3600  # seconds; the address of a file has its version in it


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
        WTF_CSRF_CHECK_DEFAULT=False,  # `_every_request` does it: a script with a token has no cookie that others could use
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
    )
    app.session_interface = sessions.Cookies()
    app.extensions.update({"btrkeep": settings, "btrkeep-caches": Caches()})
    app.wsgi_app = believing(app.wsgi_app, settings.proxies)  # type: ignore[method-assign, assignment]  # Flask's way
    _every_request(app, settings)
    filters.register(app)
    errors.register(app)
    pages.register(app)
    app.register_blueprint(api.blueprint)
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
            unread.require_read(who)
        if view and not g.by_token and request.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            forms.protect()

    @app.url_defaults
    def versioned(endpoint: str, values: dict[str, object]) -> None:
        if endpoint == "static":
            values.setdefault("v", _version_of(app, str(values.get("filename"))))

    app.after_request(add_headers)
    app.teardown_request(close_source)


def _is_open(app: Flask, view: object) -> bool:
    return view is app.view_functions["static"] or is_public(view)  # type: ignore[arg-type]  # Flask's type says less


def _version_of(app: Flask, name: str) -> str:
    """Returns a version of a static file for its URL, so that browsers load it again after a change."""
    try:
        return f"{(Path(app.static_folder or '') / name).stat().st_mtime_ns:x}"
    except OSError:
        return "0"


_SAID = ("HTTP_FORWARDED", *(f"HTTP_X_FORWARDED_{what}" for what in ("FOR", "PROTO", "HOST", "PORT", "PREFIX", "BY")))


def believing(app: "WSGIApplication", proxies: tuple[str, ...]) -> "WSGIApplication":
    """Returns the application behind these proxies."""
    behind = ProxyFix(app, x_for=1, x_proto=1, x_host=1)

    def called(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ.get("REMOTE_ADDR") in proxies:
            return behind(environ, start_response)
        for name in _SAID:
            environ.pop(name, None)
        return app(environ, start_response)

    return called
