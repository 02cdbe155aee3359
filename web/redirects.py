"""Addresses that somebody is sent on to: only such as are within this dashboard."""

from urllib.parse import quote, urlsplit

from flask import request

_LONGEST = 2000


def is_within(address: str) -> bool:
    """Returns True if the address is on this site. Browsers treat a backslash as a slash, and ignore tabs and newlines."""
    if not address.startswith("/") or address.startswith("//") or "\\" in address or len(address) > _LONGEST:
        return False
    if not address.isascii() or not address.isprintable():
        return False
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return not parts.scheme and not parts.netloc


def within(address: str | None) -> str:
    """Returns the address, or the front page."""
    return address if address and is_within(address) else "/"


def next_of_request() -> str | None:
    """Returns the page to return to after the login; None for the front page, and for a submitted form, which must not be sent
    twice.
    """
    if request.method != "GET":
        return None
    query = request.query_string.decode("latin-1")  # as it came: paths in it may be no UTF-8
    address = f"{quote(request.path)}?{query}" if query else quote(request.path)
    return address if address != "/" and is_within(address) else None
