"""The login service: a separate process with a separate user, the only one that reads and writes the database of users.

The dashboard sends names and passwords to it, and gets a session's random word; the root service asks it for the viewer of a word.
An attacker who controls the dashboard therefore cannot read password hashes, create users or sessions, or change a role.
docs/decisions/0032-logins-and-rights.rst has the reasons.

Login attempts are limited. An attempt is counted before the password is checked, so that parallel attempts count separately. Within
a quarter of an hour: 5 for a name from one address, 20 from one address, and 50 for a name from all addresses. The last limit does
not apply to an address from which this name has logged in before: strangers cannot lock an administrator out of the usual
workplace.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from typing import Any

from btrkeep.errors import OperatorError, UsageError
from btrkeep.serving.protocol import Request, RequestRefused, answer_line
from btrkeep.serving.server import ClientGone, Wire, peer_of
from btrkeep.serving.viewer import Viewer, role_of, viewer_object
from btrkeep.units import format_time, printable
from web.auth import LONGEST_LINK_NAME, TOKEN_PREFIX, LoginSession, User, digest, new_word, passwords
from web.auth.store import MOST_LINKS, Store

WINDOW = 900.0
"""Seconds."""
FOR_BOTH, FOR_ADDRESS, FOR_NAME = 5, 20, 50
_KNOWN = 90 * 86400.0
_LONGEST_NAME = 64
_ID_LENGTH = 16


def admit_attempt(store: Store, name: str, address: str, now: datetime) -> float:
    """Returns the seconds to wait; 0: the attempt is allowed, and counts until `record_success` is called."""
    limits = (FOR_BOTH, FOR_ADDRESS, FOR_NAME)
    return store.count_attempt(name[:_LONGEST_NAME], network_of(address), now, WINDOW, limits, _KNOWN)


def record_success(store: Store, name: str, address: str, now: datetime) -> None:
    """Clears the attempts for this name at this address after a correct password, and records the address as known."""
    store.forget_attempts(name, network_of(address), now, _KNOWN)


def network_of(address: str) -> str:
    """Returns the network that counts as one client: the address itself for IPv4, the /64 network for IPv6."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64)) + "/64"
    return str(parsed)


audit = logging.getLogger("btrkeep.audit")
_TOUCHED = timedelta(seconds=60)
_TAKING = 10.0
_LONGEST = 1024
_LONGEST_ADDRESS = 299  # `_texts` cuts off the rest
LOGINS_AT_ONCE = 6
"""The number of passwords that wait or are checked at the same time; all other requests have separate slots."""
_BROKEN = RequestRefused("internal error in the login service", "check its journal: `journalctl -u 'btrkeep-login@*'`")


@dataclass(slots=True)
class LoginService:
    """Checks logins."""

    store: Store
    """The users and sessions."""
    idle: float
    """Seconds without activity after which a session ends."""
    longest: float
    """Seconds after which a session ends in any case."""
    _passwords: threading.BoundedSemaphore

    def __init__(self, store: Store, idle: float = 12 * 3600.0, longest: float = 7 * 86400.0) -> None:
        self.store, self.idle, self.longest = store, idle, longest
        self._passwords = threading.BoundedSemaphore(LOGINS_AT_ONCE)

    def answer(self, connection: socket.socket, allowed: frozenset[int]) -> None:
        """Answers the request and closes the connection. A bug is raised after the client was informed."""
        wire = Wire(connection, taking=_TAKING)
        with connection, suppress(ClientGone):
            try:
                peer = peer_of(connection)
                if peer.uid not in allowed:
                    audit.warning("refused: process %d of user %d may not connect", peer.pid, peer.uid)
                    raise RequestRefused(
                        f"user {peer.uid} is not allowed to use this service", "only the dashboard and root may use it", "refused"
                    )
                request = wire.request()
                wire.answer(answer_line(_function(request)(self, request)))
            except OperatorError as error:
                wire.fail(error)
            finally:
                if not wire.answered:
                    wire.fail(_BROKEN)

    def viewer_of(self, word: str, *, touch: bool = False) -> Viewer | None:
        """Returns the viewer of a session or token, None if it is unknown or has ended."""
        return self._of_token(word, touch) if word.startswith(TOKEN_PREFIX) else self._of_session(word, touch)

    def _of_token(self, word: str, touch: bool) -> Viewer | None:
        token, now = self.store.token(digest(word)), datetime.now(UTC)
        if not token:
            return None
        if touch and (token.used is None or now - token.used > _TOUCHED):
            self.store.touch_token(token.name, now)
        return Viewer(f"token:{token.name}", role_of(token.role), token.hosts, _short(word))

    def _of_session(self, word: str, touch: bool) -> Viewer | None:
        session_and_user, now = self.store.session(digest(word)), datetime.now(UTC)
        if not session_and_user:
            return None
        login_session, user = session_and_user
        if (now - login_session.seen).total_seconds() > self.idle or (now - login_session.created).total_seconds() > self.longest:
            self.store.drop_session(login_session.key)
            return None
        if touch and now - login_session.seen > _TOUCHED:
            self.store.touch_session(login_session.key, now)
        return Viewer(user.name, role_of(user.role), user.hosts, _short(word))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Takes one of a few slots: checking a password takes a tenth of a second and 64 MiB. Raises RequestRefused, of
        kind busy.
        """
        if not self._passwords.acquire(blocking=False):
            raise RequestRefused("too many logins at the moment", "try again shortly", "busy", is_public=True)
        try:
            yield
        finally:
            self._passwords.release()

    def begun(self, user: User, address: str, browser: str) -> dict[str, Any] | None:
        """Starts a session; None if the password was changed after it was checked, because such a change ends all sessions."""
        now, word = datetime.now(UTC), new_word()
        self.store.drop_old_sessions(now - timedelta(seconds=self.longest), now - timedelta(seconds=self.idle))
        if not self.store.add_session(LoginSession(digest(word), user.name, now, now, address, browser), user.hash):
            return None
        viewer = Viewer(user.name, role_of(user.role), user.hosts, _short(word))
        return {"outcome": "in", "word": word, "viewer": viewer_object(viewer)}

    def user_of(self, name: str, password: str, address: str) -> User | None:
        """Returns the user, None if name or password are wrong. An unknown name is not logged: people may type their password
        there.
        """
        user = self.store.user(name)
        if passwords.is_right(user.hash if user else None, password) and user:
            if passwords.is_outdated(user.hash):
                text = passwords.hashed(password)
                self.store.set_hash(user.name, text, datetime.now(UTC), before=user.hash, log_out=False)
                user = replace(user, hash=text)
            return user
        audit.warning("login failed: %s from %s", user.name if user else "an unknown name", address)
        return None


def _function(request: Request) -> Callable[[LoginService, Request], Any]:
    try:
        return _VERBS[request.verb]
    except KeyError:
        raise RequestRefused(f"there is no verb {printable(request.verb[:40])}", "", "usage") from None


def _login(service: LoginService, request: Request) -> Any:
    name, password, address, browser = _texts(request.arguments, "name", "password", "address", "browser")
    with service.place():
        now = datetime.now(UTC)
        if wait := admit_attempt(service.store, name, address, now):
            audit.warning("login refused: too many attempts from %s", address)
            return {"outcome": "wait", "seconds": wait}
        user = service.user_of(name, password, address)
        if not user:
            return {"outcome": "wrong"}
        begun = service.begun(user, address, browser)
        if begun:
            record_success(service.store, user.name, address, now)
            audit.info("login: %s from %s (session %s)", user.name, address, begun["viewer"]["session"])
        return begun or {"outcome": "changed"}


def _viewer(service: LoginService, request: Request) -> Any:
    viewer = service.viewer_of(request.session or "", touch=request.arguments.get("touch") is True)
    return viewer_object(viewer) if viewer else None


def _logout(service: LoginService, request: Request) -> None:
    (address,) = _texts(request.arguments, "address")
    if viewer := service.viewer_of(request.session or ""):
        audit.info("logout: %s from %s", viewer.name, address)
    service.store.drop_session(digest(request.session or ""))


def _sessions(service: LoginService, request: Request) -> Any:
    key, name = _own(service, request)
    return _session_list(service, name, key)


def _session_list(service: LoginService, name: str, here: bytes) -> list[dict[str, Any]]:
    """Returns the sessions of a user. `id` is a part of the digest, which opens no session."""
    return [
        {
            "id": session.key.hex()[:_ID_LENGTH],
            "created": format_time(session.created),
            "seen": format_time(session.seen),
            "address": session.address,
            "browser": session.browser,
            "here": session.key == here,
        }
        for session in service.store.sessions(name)
    ]


def _end_session(service: LoginService, request: Request) -> bool:
    """Ends one of the caller's own sessions; returns False if it has ended already."""
    _, name = _own(service, request)
    number, address = _texts(request.arguments, "id", "address")
    keys = [session.key for session in service.store.sessions(name) if session.key.hex()[:_ID_LENGTH] == number]
    for key in keys:
        service.store.drop_session(key)
        audit.info("logout: %s from %s (session %s)", name, address, key.hex()[:8])
    return bool(keys)


def _accounts(service: LoginService, request: Request) -> Any:
    """Returns all users with their sessions, and all tokens, without hashes and digests: for admins of all hosts."""
    key, _ = _own(service, request)
    viewer = service.viewer_of(request.session or "")
    if viewer is None or not viewer.admin or viewer.limited:
        raise RequestRefused("only an admin of all hosts may see the users", "ask an admin", "refused", is_public=True)
    users = [
        {
            "name": user.name,
            "role": user.role,
            "hosts": user.hosts,
            "created": format_time(user.created),
            "sessions": _session_list(service, user.name, key),
        }
        for user in service.store.users()
    ]
    tokens = [
        {
            "name": token.name,
            "role": token.role,
            "hosts": token.hosts,
            "created": format_time(token.created),
            "used": format_time(token.used) if token.used else None,
        }
        for token in service.store.tokens()
    ]
    return {"users": users, "tokens": tokens}


def _elsewhere(service: LoginService, request: Request) -> None:
    key, name = _own(service, request)
    (address,) = _texts(request.arguments, "address")
    service.store.drop_sessions(name, but=key)
    audit.info("logout elsewhere: %s from %s", name, address)


def _password(service: LoginService, request: Request) -> Any:
    """Changes the password if the present one is given. Ends all sessions and starts a new one."""
    _, name = _own(service, request)
    password, new, address, browser = _texts(request.arguments, "password", "new", "address", "browser")
    with service.place():
        now = datetime.now(UTC)
        if wait := admit_attempt(service.store, name, address, now):
            return {"outcome": "wait", "seconds": wait}
        user = service.user_of(name, password, address)
        if not user:
            return {"outcome": "wrong"}
        try:
            text = passwords.hashed(new)
        except UsageError as error:
            return {"outcome": "unfit", "message": error.message, "hint": error.hint}
        if not service.store.set_hash(name, text, now, before=user.hash):
            return {"outcome": "changed"}
        record_success(service.store, name, address, now)
        audit.info("password changed: %s from %s", name, address)
        return service.begun(replace(user, hash=text), address, browser) or {"outcome": "changed"}


def _links(service: LoginService, request: Request) -> Any:
    _, user = _own(service, request)
    return [{"name": name, "address": address} for name, address in service.store.links(user)]


def _save_link(service: LoginService, request: Request) -> None:
    _, user = _own(service, request)
    name, address = _texts(request.arguments, "name", "address")
    if not name or len(name) > LONGEST_LINK_NAME or len(address) > _LONGEST_ADDRESS:
        raise RequestRefused(
            "that name or address is too long", f"use at most {LONGEST_LINK_NAME} characters", "usage", is_public=True
        )
    if not service.store.save_link(user, name, address):
        raise RequestRefused(f"you have {MOST_LINKS} saved views already", "remove one first", "usage", is_public=True)


def _remove_link(service: LoginService, request: Request) -> None:
    _, user = _own(service, request)
    (name,) = _texts(request.arguments, "name")
    service.store.remove_link(user, name)


def _confirm(service: LoginService, request: Request) -> Any:
    """Checks the password of the caller's session again, before a step that a stolen session must not take. Once users have a
    second factor, it is checked here too.
    """
    _, name = _own(service, request)
    password, address = _texts(request.arguments, "password", "address")
    with service.place():
        now = datetime.now(UTC)
        if wait := admit_attempt(service.store, name, address, now):
            audit.warning("confirmation refused: too many attempts from %s", address)
            return {"outcome": "wait", "seconds": wait}
        if not service.user_of(name, password, address):
            return {"outcome": "wrong"}
        record_success(service.store, name, address, now)
        audit.info("password confirmed: %s from %s", name, address)
        return {"outcome": "right"}


def _own(service: LoginService, request: Request) -> tuple[bytes, str]:
    """Returns the key and the user of the caller's session; a token has no account. Raises RequestRefused."""
    viewer = service.viewer_of(request.session or "")
    if not viewer or (request.session or "").startswith(TOKEN_PREFIX):
        raise RequestRefused("no user is logged in with that session", "log in again", "refused", is_public=True)
    return digest(request.session or ""), viewer.name


def _texts(arguments: Mapping[str, Any], *names: str) -> list[str]:
    """Returns the values of the arguments, which must have exactly these names. Raises RequestRefused, of kind usage."""
    if arguments.keys() != set(names) or not all(isinstance(value, str) for value in arguments.values()):
        raise RequestRefused(f"the arguments are {', '.join(names)}, all of them strings", kind="usage")
    values = [arguments[name] for name in names]
    # A longer password is wrong or not allowed; the password check reports it.
    return [
        value[: _LONGEST + 1] if name in ("password", "new") else printable(value[:300])
        for name, value in zip(names, values, strict=True)
    ]


def _short(word: str) -> str:
    """Returns the name of a session for the journal: enough to distinguish sessions, not enough to guess the word."""
    return digest(word).hex()[:8]


_VERBS: Mapping[str, Callable[[LoginService, Request], Any]] = {
    "login": _login,
    "viewer": _viewer,
    "logout": _logout,
    "sessions": _sessions,
    "elsewhere": _elsewhere,
    "end_session": _end_session,
    "accounts": _accounts,
    "password": _password,
    "links": _links,
    "save_link": _save_link,
    "remove_link": _remove_link,
    "confirm": _confirm,
}
