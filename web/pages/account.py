"""Logging in and out, and what somebody may do to his own account."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.errors import UsageError
from btrkeep.units import format_duration, printable
from web.access import public, somebody, viewer
from web.auth import attempts, passwords, sessions
from web.auth.model import User
from web.redirects import within

blueprint = Blueprint("account", __name__)
audit = logging.getLogger("btrkeep.audit")
_AT_ONCE = threading.BoundedSemaphore(6)
"""Who log in at the same time, each on a thread of the server's."""
_WRONG = "Wrong name or password."


@blueprint.get("/login")
@public
def login() -> str | Response:
    """The form; who is logged in already goes on."""
    if somebody():
        return redirect(within(request.args.get("next")), 303)
    return _form()


@blueprint.post("/login")
@public
def log_in() -> str | Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    """Name and password. The answer is the same, and takes as long, whether the name or the password is wrong."""
    with _place():
        return _logged_in()


@contextmanager
def _place() -> Iterator[None]:
    """One of few: a password takes a tenth of a second to look at, and whoever has many addresses can send many."""
    if not _AT_ONCE.acquire(blocking=False):
        abort(503, "Too many logins at the moment. Try again shortly.")
    try:
        yield
    finally:
        _AT_ONCE.release()


def _logged_in() -> str | Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    name, password = request.form.get("name", "").strip(), request.form.get("password", "")
    now = datetime.now(UTC)
    if wait := attempts.begin(sessions.store(), name, sessions.address(), now):
        audit.warning("login refused: too many attempts from %s", sessions.address())
        words = f"Too many attempts. Try again in {format_duration(max(wait, 10))}."
        return _form(words), 429, {"Retry-After": str(int(wait) + 1)}
    user = _user_of(name, password)
    if user is None:
        return _form(_WRONG), 401
    sessions.begin(user)
    attempts.succeeded(sessions.store(), user.name, sessions.address(), now)
    audit.info("login: %s from %s", user.name, sessions.address())
    return redirect(within(request.form.get("next")), 303)


def _form(wrong: str = "") -> str:
    return render_template("account/login.html", wrong=wrong, next=within(request.values.get("next")))


def _user_of(name: str, password: str) -> User | None:
    """Who it is, None when it is nobody. Of a name that nobody has nothing is logged: people write their password there."""
    user = sessions.store().user(name)
    if passwords.is_right(user.hash if user else None, password) and user:
        if passwords.is_outdated(user.hash):
            user = replace(user, hash=passwords.hashed(password))
            sessions.store().set_hash(user.name, user.hash, datetime.now(UTC), log_out=False)
        return user
    audit.warning("login failed: %s from %s", user.name if user else "a name that nobody has", sessions.address())
    return None


@blueprint.post("/logout")
def log_out() -> Response:
    """This browser alone."""
    audit.info("logout: %s from %s", viewer().name, sessions.address())
    sessions.end()
    return redirect(url_for("account.login"), 303)


@blueprint.get("/account")
def account() -> str:
    """Who one is, where one is logged in, and a new password."""
    return _account()


def _account(wrong: str = "") -> str:
    name = viewer().name
    return render_template("account/account.html", sessions=sessions.store().sessions(name), here=g.session_key, wrong=wrong)


@blueprint.post("/account/elsewhere")
def log_out_elsewhere() -> Response:
    """All other browsers."""
    sessions.store().drop_sessions(viewer().name, but=g.session_key)
    audit.info("logout elsewhere: %s from %s", viewer().name, sessions.address())
    flash("Every other browser is logged out.")
    return redirect(url_for("account.account"), 303)


@blueprint.post("/account/password")
def change_password() -> Response | tuple[str, int]:
    """Another password, for who knows the one so far. It ends all sessions; this browser gets a new one."""
    store, name = sessions.store(), viewer().name
    wait = attempts.begin(store, name, sessions.address(), datetime.now(UTC))
    if wait:
        abort(429, f"Too many attempts. Try again in {format_duration(max(wait, 10))}.")
    user = _user_of(name, request.form.get("password", ""))
    if user is None:
        return _account("The current password is wrong."), 400
    if request.form.get("new") != request.form.get("again"):
        return _account("The new passwords do not match."), 400
    try:
        text = passwords.hashed(request.form.get("new", ""))
    except UsageError as error:
        return _account(f"{printable(error.message).capitalize()}: {error.hint}."), 400
    store.set_hash(name, text, datetime.now(UTC))
    attempts.succeeded(store, name, sessions.address(), datetime.now(UTC))
    sessions.begin(replace(user, hash=text))
    audit.info("password changed: %s from %s", name, sessions.address())
    flash("Your password was changed, and every other browser is logged out.")
    return redirect(url_for("account.account"), 303)
