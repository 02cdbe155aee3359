"""The log: past runs of hosts, and what rsync said."""

from flask import Blueprint, abort, render_template, request

from web.access import viewer, visible_hosts
from web.data.log import OUTCOMES, log_page, log_run, wanted_runs
from web.request_values import choice, moment, number
from web.source import source

blueprint = Blueprint("log", __name__, url_prefix="/log")


@blueprint.get("")
def index() -> str:
    """Shows a page of runs, filtered by the query."""
    here, hosts = source(), visible_hosts()
    host = request.args.get("host", "").strip() or None
    outcome, since, before = choice("outcome", OUTCOMES), moment("since", here.now), number("before")
    wanted = wanted_runs(hosts, host, outcome, since, before)
    kept = {name: value for name in ("host", "outcome", "since") if (value := request.args.get(name, "").strip())}
    return render_template(
        "log/log.html",
        page=log_page(here.catalogue, wanted, here.now),
        host=host,
        outcome=outcome,
        since=request.args.get("since", "").strip(),
        before=before,
        kept=kept,
        outcomes=OUTCOMES,
        names=_near(host, hosts) if host else [],
    )


def _near(host: str, hosts: frozenset[str] | None) -> list[str]:
    """Returns hosts whose names contain the requested text, if no host has exactly that name."""
    known = sorted(hosts if hosts is not None else {*source().catalogue.hosts()})
    return [] if host in known else [name for name in known if host.casefold() in name.casefold()][:20]


@blueprint.get("/<int:run_id>")
def run(run_id: int) -> str:
    """Shows one run, with all its output."""
    here = source()
    found = here.catalogue.one_run(run_id) if run_id < 1 << 63 else None
    if found is None or not viewer().may_see(found.host):
        abort(404, "there is no such run")
    return render_template("log/run.html", run=log_run(found, here.now))
