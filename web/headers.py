"""The security headers of each response, and the host names that the dashboard accepts."""

import socket

from flask import Response, abort, request

from web.settings import Settings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",  # flask-wtf compares it where there is https
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_YEAR = 31_536_000


def add_headers(response: Response) -> Response:
    """Adds the headers to a response. Downloads get them too: a separate policy would gain nothing, and the page's does no harm."""
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
    return frozenset({*local, machine, machine.partition(".")[0], _in_brackets(settings.host), *settings.hosts})


def require_known_host(names: frozenset[str]) -> None:
    """Aborts with 400 if the request names an unknown host: an attacker's page may send the browser here by a foreign name (DNS
    rebinding).
    """
    if _without_port(request.host.lower()) not in names:
        abort(400, "this dashboard is not known by that name; [web] names in the configuration has those that it is")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def _in_brackets(address: str) -> str:
    return f"[{address}]" if ":" in address else address
