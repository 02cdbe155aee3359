"""Balance: the past runs, and on request the next steps."""

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from web.access import needs_all_hosts
from web.data.balance import balances, one_balance, sums
from web.pages.pool import filesystem
from web.service_client import answers
from web.source import source

blueprint = Blueprint("balance", __name__, url_prefix="/pool/balance")
_VERB = "plan"


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows all runs, and the plan that was last requested."""
    here, of = source(), filesystem()
    runs = here.cached(("balances", of), lambda: balances(here.catalogue, of, here.now))
    return render_template("pool/balance.html", runs=runs, sums=sums(runs), plan=answers().last(_VERB))


@blueprint.post("/plan")
@needs_all_hosts
def plan() -> Response:
    """Makes a new plan, which takes some seconds, and shows it."""
    answers().ask(_VERB)
    return redirect(url_for(".index", _anchor="plan"), 303)


@blueprint.get("/<int:balance_id>")
@needs_all_hosts
def one(balance_id: int) -> str:
    """Shows a run with its block groups."""
    here = source()
    found = one_balance(here.catalogue, filesystem(), balance_id, here.now) if balance_id < 1 << 63 else None
    if found is None:
        abort(404, "there is no such run of balance")
    template = "pool/balance_live.html" if "X-Live" in request.headers else "pool/one_balance.html"
    return render_template(template, found=found)
