"""Logging in and out, and what users may do to their own account."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.units import format_duration, parse_time, printable
from web.auth import sessions
from web.request_values import within
from web.source import logged_in_viewer, public, source, viewer

blueprint = Blueprint("account", __name__)
_AT_ONCE = threading.BoundedSemaphore(6)
"""Number of logins at the same time, each in a thread of the server."""
_WRONG = "Wrong name or password."


@blueprint.get("/login")
@public
def login() -> str | Response:
    """Shows the form; redirects a user who is already logged in."""
    if logged_in_viewer():
        return redirect(within(request.args.get("next")), 303)
    return _form()


@blueprint.post("/login")
@public
def log_in() -> str | Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    """Checks name and password. For a wrong name and a wrong password the answer and its duration are the same."""
    with _place():
        return _logged_in()


@contextmanager
def _place() -> Iterator[None]:
    """Takes one of a few slots: checking a password takes a tenth of a second, and a client with many addresses can send many."""
    if not _AT_ONCE.acquire(blocking=False):
        abort(503, "Too many logins at the moment. Try again shortly.")
    try:
        yield
    finally:
        _AT_ONCE.release()


def _logged_in() -> str | Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    given = {"name": request.form.get("name", "").strip(), "password": request.form.get("password", "")}
    answer = sessions.ask("login", **given, address=sessions.address(), browser=sessions.browser())
    if answer["outcome"] == "wait":
        wait = answer["seconds"]
        words = f"Too many attempts. Try again in {format_duration(max(wait, 10))}."
        return _form(words), 429, {"Retry-After": str(int(wait) + 1)}
    if answer["outcome"] == "wrong":
        return _form(_WRONG), 401
    if answer["outcome"] != "in":  # the password was changed since
        abort(401)
    sessions.begin(answer)
    return redirect(within(request.form.get("next")), 303)


def _form(wrong: str = "") -> str:
    name = printable(request.form.get("name", "").strip()[:64])
    return render_template("account/login.html", wrong=wrong, name=name, next=within(request.values.get("next")))


@blueprint.post("/logout")
def log_out() -> Response:
    """Logs out only this browser."""
    viewer()
    sessions.end()
    return redirect(url_for("account.login"), 303)


@blueprint.get("/account")
def account() -> str:
    """Shows the user, the user's sessions, and a form for a new password."""
    return _account()


def _account(wrong: str = "") -> str:
    return render_template("account/account.html", sessions=_with_times(sessions.ask("sessions", g.word)), wrong=wrong)


@blueprint.post("/account/end")
def end_session() -> Response:
    """Ends one of the user's own sessions."""
    is_ended = sessions.ask("end_session", g.word, id=request.form.get("id", ""), address=sessions.address())
    flash("That browser is logged out." if is_ended else "That session had ended already.")
    return redirect(url_for("account.account"), 303)


@blueprint.get("/account/users")
def users() -> str:
    """Shows all users with their sessions, the tokens, and the services of notifications, to admins of all hosts."""
    if not viewer().admin or viewer().limited:
        abort(403, "only an admin of all hosts may see the users")
    answer = sessions.ask("accounts", g.word)
    return render_template(
        "account/users.html",
        users=[{**user, "sessions": _with_times(user["sessions"])} for user in _with_times(answer["users"])],
        tokens=_with_times(answer["tokens"]),
        services=source().config.services,
    )


def _with_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with parsed times."""
    times = ("created", "seen", "used")
    return [{key: parse_time(value) if key in times and value else value for key, value in row.items()} for row in rows]


@blueprint.post("/account/elsewhere")
def log_out_elsewhere() -> Response:
    """Ends the sessions of all other browsers."""
    sessions.ask("elsewhere", g.word, address=sessions.address())
    flash("All other browsers are logged out.")
    return redirect(url_for("account.account"), 303)


@blueprint.post("/account/password")
def change_password() -> Response | tuple[str, int]:
    """Changes the password if the present one is given. Ends all sessions; this browser gets a new one."""
    given = {"password": request.form.get("password", ""), "new": request.form.get("new", "")}
    if given["new"] != request.form.get("again", ""):
        return _account("The new passwords do not match."), 400
    with _place():
        answer = sessions.ask("password", g.word, **given, address=sessions.address(), browser=sessions.browser())
    if answer["outcome"] == "wait":
        abort(429, f"Too many attempts. Try again in {format_duration(max(answer['seconds'], 10))}.")
    if answer["outcome"] == "wrong":
        return _account("The current password is wrong."), 400
    if answer["outcome"] == "unfit":
        return _account(f"{printable(answer['message']).capitalize()}: {answer['hint']}."), 400
    if answer["outcome"] != "in":
        abort(401)
    sessions.begin(answer)
    flash("Your password was changed, and all other browsers are logged out.")
    return redirect(url_for("account.account"), 303)
