"""Error responses: a page that shows how to solve the problem, or JSON below /api."""

import logging

from flask import Flask, Response, g, make_response, redirect, render_template, request, url_for
from flask_wtf.csrf import CSRFError
from werkzeug.exceptions import BadHost, HTTPException, InternalServerError

from btrkeep.catalogue import CatalogueBusy, CatalogueDamaged, CatalogueUnready
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import printable
from web import redaction
from web.api import answers as api
from web.request_values import next_of_request
from web.source import source

log = logging.getLogger(__name__)
_RETRY = 5
_WORDS = {
    400: ("The request is not valid", "Go back and try again; no link of the dashboard leads here."),
    401: ("Not logged in", "Log in, then open this page again."),
    403: ("Not allowed", "Ask an operator of this pool."),
    404: (
        "Not found",
        "It may have been deleted, or have another name. Hosts and backups that you may not see get the same message.",
    ),
    405: ("Not possible this way", "This address does not accept this kind of request."),
    409: ("Not possible now", "Another job is running, or the state has changed. Check it, then try again."),
    413: ("Too large", "The request is larger than any page needs."),
    414: ("Address too long", "No path of a file is that long."),
    429: ("Too many attempts", "Wait a minute, then try again."),
    500: (
        "Internal error",
        "The journal has its traceback: journalctl -u 'btrkeep-web@*'. Backups are not affected.",
    ),
    502: ("The root service failed", "Its log: journalctl -u 'btrkeep-serve@*'."),
    503: ("Temporarily unavailable", "Try again in a moment."),
}
_STATUSES = {**api.STATUSES, "busy": 503}  # of all pages, only those with 503 have a Retry-After


def register(app: Flask) -> None:
    """Registers the handlers of all exceptions."""
    app.register_error_handler(HTTPException, http_error_page)
    app.register_error_handler(OperatorError, operator_error_page)
    app.register_error_handler(CSRFError, csrf_error_page)


def http_error_page(error: HTTPException) -> Response:
    """Returns the response for an exception of Flask or of a page. A user who is not logged in is redirected to the login; a page
    that refreshes itself gets the status. An error caused by a damaged catalogue is shown as that.
    """
    if isinstance(error, InternalServerError) and (damage := _damage()):
        return operator_error_page(damage)
    if request.path.startswith("/api/"):
        return api.http_error_answer(error)
    if isinstance(request.routing_exception, BadHost):  # Flask builds no URL for an impossible name, but the page contains some
        return Response(f"{error.description}\n", error.code, content_type="text/plain; charset=utf-8")
    if error.code == 401 and "X-Live" not in request.headers:
        return make_response(redirect(url_for("account.login", next=next_of_request()), 303))
    if error.response is not None:  # a redirect
        return make_response(error.response)
    status = error.code or 500
    description = printable(error.description or "") if type(error).description != error.description else ""
    return api.with_headers(page(status, description), error)


def _damage() -> CatalogueDamaged | None:
    """Returns the fault of the catalogue: only if it has none is an unexpected error a bug."""
    try:
        if "source" in g:
            source().catalogue.require_integrity()
    except CatalogueDamaged as error:
        return error
    except Exception:  # the page reports the first error
        log.exception("the catalogue cannot be read")
    return None


def csrf_error_page(error: CSRFError) -> Response:
    """Handles a form without a valid token: it came from another site, or is so old that its session has ended."""
    if request.path.startswith("/api/"):
        return api.http_error_answer(error)
    return page(
        400,
        "This form has expired, or was not sent from this page. Nothing was done.",
        "Load the page again, and submit the form again.",
    )


def operator_error_page(error: OperatorError) -> Response:
    """Returns the response for an error that the operator can solve."""
    if isinstance(error, RequestRefused | Absent | CatalogueBusy):
        log.info("%s %s: %s", request.method, printable(request.path), printable(error.message))
    else:
        log.warning("%s %s: %s", request.method, printable(request.path), printable(error.message))
    error = redaction.redact_error(error)
    if request.path.startswith("/api/"):
        return api.operator_error_answer(error)
    status = _status(error)
    lines = [printable(line) for line in error.message.splitlines()]  # one line for each mistake of a configuration
    response = page(status, "; ".join(lines), printable(error.hint))
    if status == 503:
        response.headers["Retry-After"] = str(_RETRY)
    return response


def _status(error: OperatorError) -> int:
    if isinstance(error, RequestRefused):
        return _STATUSES.get(error.kind, 502)
    if isinstance(error, Absent | CatalogueBusy | CatalogueUnready | PoolUnusable):
        return 503
    if isinstance(error, LockHeld):
        return 409
    return 400 if isinstance(error, UsageError) else 500


def page(status: int, description: str = "", hint: str = "") -> Response:
    """Returns the page of an error; `description` and `hint` replace its default text. It needs neither catalogue nor service."""
    g.setdefault("viewer", None)
    title, usual = _WORDS.get(status, _WORDS[500] if status >= 500 else _WORDS[400])
    description, hint = (description, hint or ("" if description else usual))
    return make_response(
        render_template("error.html", status=status, title=title, description=description, hint=hint or usual), status
    )
