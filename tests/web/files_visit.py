"""A user of the dashboard without a browser: the responses byte by byte, and their links and forms."""

import os
import re
import socket
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlencode

from tests.beds.dashboard import Answer, Dashboard, csrf_of

FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Visitor:
    """A user who is logged in."""

    web: Dashboard
    cookie: str

    def get(self, address: str, **headers: str) -> Answer:
        return self.web.ask("GET", address, Cookie=self.cookie, **headers)

    def post(self, address: str, *fields: tuple[str, str], token: bool = True, **headers: str) -> Answer:
        """Sends a form with a token, as the site's own forms do."""
        sent = [*fields, *([("csrf_token", csrf_of(self.get("/account").text))] if token else [])]
        return self.web.ask("POST", address, urlencode(sent), Cookie=self.cookie, Content_Type=FORM, **headers)


_visitors: dict[tuple[int, str], Visitor] = {}


def visitor(web: Dashboard, name: str) -> Visitor:
    """Returns a visitor who is logged in; the login is made once for all tests, because checking a password takes long."""
    if (web.port, name) not in _visitors:
        _visitors[web.port, name] = Visitor(web, web.log_in(name))
    return _visitors[web.port, name]


def files(host: str, path: bytes, page: str = "", **more: str) -> str:
    """Returns the address of a page about a path, made without our own code."""
    rest = f"&{urlencode(more)}" if more else ""
    return f"/files/{host}{page}?path={quote_from_bytes(path, safe='')}{rest}"


class Page(HTMLParser):
    """A page's text and links. `text`: the shown text, without titles; `scripts`: its scripts' addresses and contents."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.links: list[dict[str, str]] = []
        self.fields: list[dict[str, str]] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.styles = 0
        self._text: list[str] = []
        self._action = ""
        self.feed(answer.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        by_name = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag in ("td", "th", "li", "dt", "dd", "p"):
            self._text.append(" ")
        self.styles += "style" in by_name or any(name.startswith("on") for name in by_name)
        if tag == "a":
            self.links.append(by_name)
        elif tag == "form":
            self._action = by_name.get("action", "")
        elif tag in ("input", "select", "button"):
            self.fields.append({**by_name, "of form": self._action})
        elif tag == "script":
            self.scripts.append(by_name.get("src", ""))

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self._text))

    def values(self, name: str) -> list[str]:
        return [field.get("value", "") for field in self.fields if field.get("name") == name]

    def addresses(self, beginning: str) -> list[str]:
        return [link["href"] for link in self.links if link.get("href", "").startswith(beginning)]


def path_in(address: str) -> bytes:
    """Returns the path in an address, decoded according to RFC 3986."""
    pairs = (part.partition("=") for part in address.partition("?")[2].split("&"))
    return next(unquote_to_bytes(value) for name, _, value in pairs if name == "path")


def source_of(web: Dashboard) -> bytes:
    """Returns the folder with the files of the host `shop`."""
    assert web.nights
    return os.fsencode(web.nights.source)


def raw(web: Dashboard, request: bytes, until: int = 1 << 30) -> bytes:
    """Returns the bytes from a connection, to its end or that many, without parsing HTTP."""
    with socket.create_connection(("127.0.0.1", web.port), 60) as line:
        line.sendall(request)
        data = bytearray()
        while len(data) < until and (piece := line.recv(1 << 16)):
            data += piece
        return bytes(data)
