"""The X-Forwarded headers of a reverse proxy: used if the configuration names the proxy's address, dropped otherwise."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.middleware.proxy_fix import ProxyFix

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

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
