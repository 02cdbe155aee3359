"""Jobs: past and running ones. For a job started here the page shows the root service's output line by line."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.errors import OperatorError
from btrkeep.serving.client import Absent
from web.jobs.data import DAYS, KINDS, USUAL, JobRow, RequestedJob, by_hand, jobs, night_view, parse_id, requested_job
from web.pool.expiry import one_expiry
from web.request_values import number
from web.running import Transfer, alive_runs, running
from web.service_client import root_service
from web.source import source, viewer, visible_hosts

blueprint = Blueprint("jobs", __name__, url_prefix="/jobs")
_LATEST = 10**10
"""Seconds since 1970, far in the future."""
_LINES = 200  # of the output, at its end


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


_LISTED = {"backup": ("night", "backup"), "expire": ("expire",), "balance": ("balance",)}


@blueprint.get("/at")
def at() -> Response:
    """Redirects to the job of a kind that ran the longest between two times, in seconds since 1970, or to the list of such jobs."""
    kinds = _LISTED.get(request.args.get("kind", ""), ("kernel",))
    since, until = (datetime.fromtimestamp(number(name, 0, _LATEST) or 0, UTC) for name in ("from", "until"))
    age = (source().now - since) / timedelta(days=1)
    days = next((days for days in DAYS if days > age), max(DAYS))
    longest, job = timedelta(), None
    for row in _rows(days, kinds):
        ran = min(row.finished or source().now, until) - max(row.started, since)
        if row.id and ran > longest:
            longest, job = ran, row.id
    return redirect(url_for("jobs.job", job=job) if job else url_for("jobs.index", kind=kinds, days=days))


@blueprint.get("/<job>")
def job(job: str) -> str | Response:
    """Shows one job: of the catalogue, or of the root service."""
    parsed = parse_id(job)
    if parsed:
        return _of_catalogue(*parsed)
    try:
        answer = root_service().ask("job", job=job, lines=_LINES)
    except Absent:
        raise
    except OperatorError as error:
        abort(404, error.message)
    if not isinstance(answer, Mapping) or not _is_visible(answer):
        abort(404, "there is no such job")
    template, requested = "jobs/live.html" if "X-Live" in request.headers else "jobs/job.html", requested_job(answer)
    return render_template(template, job=requested, transfers=_transfers(requested))


def _transfers(job: RequestedJob) -> list[Transfer]:
    """Returns what a running backup transfers now."""
    if job.verb != "run" or job.state != "running":
        return []
    return [transfer for transfer in running(source(), viewer()).transfers if transfer.host == job.host]


@dataclass(frozen=True, slots=True)
class StoppableJob:
    """A running job, for the page that asks before it is stopped."""

    kind: str
    """The kind of job: run, restore, preview, night, expire, balance or verify."""
    title: str
    """Its name on the page."""
    back: str
    """The address of its page."""
    hosts: tuple[str, ...] = ()
    """The hosts that its process is backing up now."""
    is_waiting: bool = False
    """True if it has not started."""


@blueprint.get("/<job>/stop")
def ask_stop(job: str) -> str:
    """Shows what stays when the job is stopped."""
    return render_template("jobs/stop.html", job=_stoppable(job), id=job)


@blueprint.post("/<job>/stop")
def stop(job: str) -> Response:
    """Requests the stop from the root service; a refusal has its own page."""
    stoppable = _stoppable(job)
    root_service().ask("stop", job=job)
    flash(f"Stopped: {stoppable.title}. It may take a moment until it has ended.")
    return redirect(stoppable.back, 303)


def _stoppable(job_id: str) -> StoppableJob:
    """Returns the running job; aborts if there is none, if it has ended, or if the viewer may not stop it."""
    parsed, who = parse_id(job_id), viewer()
    if parsed is None and job_id != "verify":
        requested = _requested(job_id)
        if requested.who != who.name and not who.operator:
            abort(403, "only operators may stop jobs of others")
        if requested.is_over:
            abort(409, "the job has ended already")
        back = url_for("jobs.job", job=job_id) if requested.verb != "preview" else url_for("jobs.index")
        return StoppableJob(requested.verb, requested.title, back, (requested.host,), requested.state == "queued")
    if not who.operator:
        abort(403, "only operators may stop jobs of others")
    if parsed and parsed[0] in ("night", "backup"):
        return _stoppable_run(*parsed)
    if who.limited:
        abort(404, "there is no such job")
    kind, number = parsed or ("verify", 0)
    now = running(source(), who)
    if kind == "expire" and number in {expiry.id for expiry in now.expiries}:
        return StoppableJob(kind, "expiry", url_for("jobs.job", job=job_id))
    if kind == "verify" and now.verifications:
        return StoppableJob(kind, "verification", url_for("jobs.index"))
    if kind != "balance" or number not in {balance.id for balance in now.balances}:
        abort(409, "the job has ended already")
    return StoppableJob(kind, "balance", url_for("balance.one", balance_id=number))


def _stoppable_run(kind: str, number: int) -> StoppableJob:
    """Returns the run of a night, or of named hosts; one process backs up all of them."""
    here, who = source(), viewer()
    alive = alive_runs(here.catalogue, here.now)
    runs = [run for run in here.catalogue.unfinished_runs() if run.id in alive]
    first = here.catalogue.night(number) if kind == "night" else next((run for run in runs if run.id == number), None)
    together = [run for run in runs if first and (run.pid, run.pid_started) == (first.pid, first.pid_started)]
    if first is None or not together or not all(who.may_see(run.host) for run in together):
        abort(404 if who.limited else 409, "there is no such job" if who.limited else "the job has ended already")
    hosts = tuple(sorted(run.host for run in together))
    if together[0].night and not who.limited:
        back = url_for("jobs.job", job=f"night-{number}") if kind == "night" else url_for("jobs.index")
        return StoppableJob("night", "run over all hosts", back, hosts)
    return StoppableJob("run", f"backup of {', '.join(hosts)}", url_for("hosts.host", host=hosts[0]), hosts)


def _requested(job_id: str) -> RequestedJob:
    try:
        answer = root_service().ask("job", job=job_id, lines=0)
    except Absent:
        raise
    except OperatorError as error:
        abort(404, error.message)
    if not isinstance(answer, Mapping) or not _is_visible(answer):
        abort(404, "there is no such job")
    return requested_job(answer)


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
