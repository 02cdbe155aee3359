"""From a request to who asks: a session's cookie, or a script's token; and how a session begins and ends.

The cookie is Flask's, signed; it holds a random word, and the database that word's digest. So a copy of the database opens nothing,
and a session ends for good when its row goes.
"""

import hashlib
import secrets
from datetime import UTC, datetime, timedelta

from flask import Flask, abort, current_app, g, request, session
from flask.sessions import SecureCookieSessionInterface

from web.access import ROLES, Role, Viewer
from web.auth.model import LoginSession, User
from web.auth.store import Store
from web.settings import Settings

_ID = "sid"
_TOUCHED = timedelta(seconds=60)
_LIVE = "X-Live"
"""The header of requests that a page makes by itself: they keep nobody logged in."""
_FOR_TOKENS = ("/api/", "/metrics")
TOKEN_PREFIX = "btrkeep_"  # noqa: S105  no secret


class Cookies(SecureCookieSessionInterface):
    """Flask's signed cookie; where the request came by https, only for https and for this host alone."""

    def get_cookie_secure(self, _app: Flask) -> bool:
        """Whether browsers keep it to https."""
        return request.is_secure

    def get_cookie_name(self, app: Flask) -> str:
        """Browsers take a name with __Host- only from this very host, by https and for all paths."""
        return f"__Host-{super().get_cookie_name(app)}" if request.is_secure else super().get_cookie_name(app)


def store() -> Store:
    """The database of users."""
    found: Store = current_app.extensions["btrkeep-store"]
    return found


def digest(word: str) -> bytes:
    """What is kept of a session's or token's random word. It is random enough to need nothing slow."""
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()


def load() -> None:
    """Before each request: `g.viewer`, and whether it was a token that said so, `g.by_token`."""
    g.viewer, g.by_token, g.session_key = None, False, None
    if request.path.startswith(_FOR_TOKENS) and request.authorization and request.authorization.type == "bearer":
        _load_token(request.authorization.token or "")
    elif word := session.get(_ID):
        _load_session(digest(str(word)))


def _load_token(word: str) -> None:
    g.by_token = True
    if token := store().token(digest(word)):
        g.viewer = Viewer(f"token:{token.name}", _role(token.role), token.hosts)
        now = datetime.now(UTC)
        if token.used is None or now - token.used > _TOUCHED:
            store().touch_token(token.name, now)


def _load_session(key: bytes) -> None:
    now = datetime.now(UTC)
    found = store().session(key)
    if not found:
        return
    one, user = found
    if _is_over(one, current_app.extensions["btrkeep"], now):
        store().drop_session(key)
        return
    g.viewer, g.session_key = Viewer(user.name, _role(user.role), user.hosts), key
    if now - one.seen > _TOUCHED and _LIVE not in request.headers:
        store().touch_session(key, now)


def _is_over(one: LoginSession, settings: Settings, now: datetime) -> bool:
    return (now - one.seen).total_seconds() > settings.idle or (now - one.created).total_seconds() > settings.longest


def _role(word: str) -> Role:
    """A word of a newer version gives no right."""
    return next((role for role in ROLES if role == word), "viewer")


def begin(user: User) -> None:
    """Somebody has logged in: everything that the browser held before is forgotten, so that nobody has prepared it.

    Unauthorized when his password has become another since it was looked at: then all of his sessions have just ended.
    """
    settings: Settings = current_app.extensions["btrkeep"]
    now = datetime.now(UTC)
    store().drop_old_sessions(now - timedelta(seconds=settings.longest), now - timedelta(seconds=settings.idle))
    end()
    word = secrets.token_urlsafe(32)
    if not store().add_session(LoginSession(digest(word), user.name, now, now, address(), _browser()), user.hash):
        abort(401)
    session[_ID] = word
    g.viewer, g.session_key = Viewer(user.name, _role(user.role), user.hosts), digest(word)


def end() -> None:
    """This browser is logged out."""
    if word := session.get(_ID):
        store().drop_session(digest(str(word)))
    session.clear()
    g.viewer = None
    g.pop("csrf_token", None)  # flask-wtf's: it was made for the session that is gone


def address() -> str:
    """Where the request came from."""
    return request.remote_addr or "?"


def _browser() -> str:
    text = request.user_agent.string[:300]
    return text if text.isprintable() else ""
