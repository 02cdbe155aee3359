"""Identifies the viewer of a request by a session's cookie or a script's token, which the login service checks.

The cookie is Flask's, signed with 32 random bytes in a separate file. It contains a random word, and the login service's database
contains that word's digest. A copy of the database therefore opens no session, and deleting a session's row ends it for good.
"""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask import Flask, current_app, g, request, session
from flask.sessions import SecureCookieSessionInterface

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent, RootServiceClient
from btrkeep.serving.viewer import read_viewer
from web.auth import TOKEN_PREFIX
from web.dashboard_settings import Settings

FILE = "cookie.key"
_LENGTH = 32


def cookie_key(data: Path) -> bytes:
    """Returns the same bytes each time. Makes the file with random bytes if it is missing. Raises OperatorError."""
    path = data / FILE
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _write(path, secrets.token_bytes(_LENGTH))
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            key = file.read(_LENGTH + 1)
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be used: {error.strerror}", "run the dashboard as the owner of that folder; see --data"
        ) from error
    if len(key) != _LENGTH:
        raise OperatorError(f"{path} is not a key of {_LENGTH} bytes", "remove the file; all users then have to log in again")
    return key


def _write(path: Path, key: bytes) -> None:
    """Writes the key atomically: a process that starts at the same time finds the whole key, or none."""
    part = path.with_name(f".{FILE}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(key)
    try:
        os.link(part, path)
    finally:
        part.unlink()


_ID = "sid"
_PATIENCE = 20.0
_LIVE = "X-Live"
"""The header of requests that a page makes automatically: they do not extend a session."""
_FOR_TOKENS = ("/api/", "/metrics", "/healthz")


class Cookies(SecureCookieSessionInterface):
    """Flask's signed cookie; if the request came by https, only for https and only for this host."""

    def get_cookie_secure(self, _app: Flask) -> bool:
        """Returns True if browsers send it over https only."""
        return request.is_secure

    def get_cookie_name(self, app: Flask) -> str:
        """Browsers accept a name with __Host- only from this host, by https and for all paths."""
        return f"__Host-{super().get_cookie_name(app)}" if request.is_secure else super().get_cookie_name(app)


def ask(verb: str, word: str = "", **arguments: Any) -> Any:
    """Returns the login service's answer for the session or token of that word. Raises RequestRefused and Absent."""
    settings: Settings = current_app.extensions["btrkeep"]
    try:
        return RootServiceClient(settings.logins, "", _PATIENCE, word).ask(verb, **arguments)
    except Absent as error:
        raise Absent("the login service does not answer", "`systemctl status 'btrkeep-login@*'`") from error


def load() -> None:
    """Before each request: sets `g.viewer`, and `g.by_token` if a token identified the viewer. Raises Absent."""
    g.viewer, g.by_token, g.word = None, False, None
    if request.path.startswith(_FOR_TOKENS) and request.authorization and request.authorization.type == "bearer":
        g.by_token = True
        _load(request.authorization.token or "", touch=True)
    elif word := session.get(_ID):
        _load(str(word), touch=_LIVE not in request.headers)


def _load(word: str, *, touch: bool) -> None:
    if word.startswith(TOKEN_PREFIX) is g.by_token and (answer := ask("viewer", word, touch=touch)):
        g.viewer, g.word = read_viewer(answer), word


def begin(answer: Mapping[str, Any]) -> None:
    """Starts the session that the login service returned: deletes all earlier session data of the browser, so that an attacker
    cannot prepare it.
    """
    end()
    session[_ID] = answer["word"]
    g.viewer, g.word = read_viewer(answer["viewer"]), answer["word"]


def end() -> None:
    """Logs out this browser."""
    if word := session.get(_ID):
        ask("logout", str(word), address=address())
    session.clear()
    g.viewer = g.word = None
    g.pop("csrf_token", None)  # flask-wtf's token of the old session


def address() -> str:
    """Returns the address of the client."""
    return request.remote_addr or "?"


def browser() -> str:
    """Returns the browser's User-Agent."""
    text = request.user_agent.string[:300]
    return text if text.isprintable() else ""
