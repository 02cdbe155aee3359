"""Jobs: past and running ones. For a job started here the page shows the root service's output line by line."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent
from web.jobs.data import DAYS, KINDS, USUAL, JobRow, RequestedJob, by_hand, jobs, night_view, parse_id, requested_job
from web.pool.expiry import one_expiry
from web.request_values import number
from web.service_client import root_service
from web.source import source, viewer, visible_hosts

blueprint = Blueprint("jobs", __name__, url_prefix="/jobs")


@blueprint.get("")
def index() -> str:
    """Shows the jobs of the last days."""
    kinds = tuple(kind for kind in request.args.getlist("kind") if kind in KINDS)
    wanted = number("days", USUAL, 36500) or USUAL
    days = min(DAYS, key=lambda choice: abs(choice - wanted))
    started, problem = _requested_jobs()
    template = "jobs/asked.html" if request.args.get("part") == "asked" else "jobs/jobs.html"
    rows = _rows(days, kinds) if template == "jobs/jobs.html" else ()
    return render_template(template, rows=rows, kinds=KINDS, chosen=kinds, days=days, spans=DAYS, started=started, problem=problem)


def _rows(days: int, kinds: tuple[str, ...]) -> tuple[JobRow, ...]:
    """Returns the rows; a viewer who is limited to hosts sees only the backups of these, and no nights."""
    here, hosts = source(), visible_hosts()
    if hosts is not None:
        return tuple(by_hand(here.catalogue, hosts, here.now, here.now - timedelta(days=days)))
    of = here.config.filesystem
    return here.cached(("jobs", of, days, kinds), lambda: jobs(here.catalogue, of, here.now, days, kinds, here.config.red_share))


def _requested_jobs() -> tuple[tuple[RequestedJob, ...], str]:
    """Jobs that the root service started; or the reason why they are unknown."""
    try:
        answer = root_service().ask("jobs")
    except OperatorError as error:
        return (), error.message
    return tuple(requested_job(job_fields) for job_fields in _listed(answer) if _is_visible(job_fields)), ""


def _listed(answer: Any) -> list[Mapping[str, Any]]:
    job_list = answer.get("jobs", ()) if isinstance(answer, Mapping) else answer
    return [job_fields for job_fields in job_list if isinstance(job_fields, Mapping)]


def _is_visible(job_fields: Mapping[str, Any]) -> bool:
    """Returns True if the viewer may see the job: viewers who are limited to hosts see only jobs of these."""
    who = viewer()
    return not who.limited or (isinstance(job_fields.get("host"), str) and who.may_see(job_fields["host"]))


@blueprint.get("/<job>")
def job(job: str) -> str | Response:
    """Shows one job: of the catalogue, or of the root service."""
    parsed = parse_id(job)
    if parsed:
        return _of_catalogue(*parsed)
    try:
        answer = root_service().ask("job", job=job)
    except Absent:
        raise
    except OperatorError as error:
        abort(404, error.message)
    if not isinstance(answer, Mapping) or not _is_visible(answer):
        abort(404, "there is no such job")
    template = "jobs/live.html" if "X-Live" in request.headers else "jobs/job.html"
    return render_template(template, job=requested_job(answer))


def _of_catalogue(kind: str, number: int) -> str | Response:
    if kind == "backup":
        return redirect(url_for("log.run", run_id=number))
    if viewer().limited:
        abort(404, "there is no such job")
    if kind == "balance":
        return redirect(url_for("balance.one", balance_id=number))
    return _night(number) if kind == "night" else _expiry(number)


def _night(first_run: int) -> str:
    here = source()
    before, cause = number("before"), request.args.get("cause", "")
    night = here.cached(
        ("night", first_run, before, cause),
        lambda: night_view(here.catalogue, first_run, here.now, before, here.config.red_share, cause),
    )
    if night is None:
        abort(404, "there was no such night, or it is too long ago")
    return render_template("jobs/night.html", night=night, cause=cause)


def _expiry(expiry_id: int) -> str:
    here = source()
    expiry_run = one_expiry(here.catalogue, expiry_id, here.now)
    if expiry_run is None:
        abort(404, "there was no such expiry")
    template = "jobs/expiry_live.html" if "X-Live" in request.headers else "jobs/expiry.html"
    return render_template(template, run=expiry_run)
