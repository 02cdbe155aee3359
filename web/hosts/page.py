"""The list of hosts, the page of one, and the actions of administrators there: hold, release, accept, run now.

Each action has a page that describes its effect, with a form; the root service carries it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from flask import Blueprint, abort, current_app, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import LONGEST_REASON, MOST_TARGETS
from btrkeep.units import counted, format_duration, format_time, parse_backup_name
from web.alarms import silence_remark, silences
from web.api import either_way
from web.copies import copies_behind
from web.filters import absolute
from web.hosts.action_preview import plan_action
from web.hosts.charts import HostChart, duration_chart, new_chart, shape, size_chart, strip_paths, width
from web.hosts.data import ALL_STATES, FLAGS, ORDERS, PER_PAGE, PROBLEMS, HostRow, Query, bad_backups, host_list, matching_rows
from web.hosts.host import HostPage, backup_of, host_page, near_names
from web.jobs.data import RequestedJob, requested_job
from web.request_values import choice, day_of_form, rows_per_page
from web.running import running
from web.service_client import root_service
from web.source import operator_only, require_visible_host, source, viewer

blueprint = Blueprint("hosts", __name__)
blueprint.add_app_template_filter(strip_paths)
blueprint.add_app_template_filter(width, "strip_width")
blueprint.add_app_template_filter(shape, "strip_shape")

_MOST_JOBS = 1000
_RESTORES = 20  # on a host's page
_TABS = ("backups", "trends", "runs", "settings")


@dataclass(frozen=True, slots=True)
class Action:
    """An action of operators."""

    verb: str
    """The verb of the root service."""
    title: str
    """The title of its page."""
    button: str
    """The text of the button."""
    done: str
    """The message afterwards, with {host} and {backup}."""
    may: str = ""
    """The field of a backup's row that permits it; "": the action is not about a backup."""
    refused: str = ""
    """Why the action is not permitted."""
    asks_why: bool = False
    """True if the form has a reason."""
    asks_until: bool = False
    """True if the form has an end."""
    several: str = ""
    """The title for several hosts; "": it is only for one."""


ACTIONS = {
    action.verb: action
    for action in (
        Action("run", "Run now", "Run now", "Backup of {host} requested.", several="Run now"),
        Action(
            "hold",
            "Hold a backup",
            "Hold it",
            "{backup} of {host} is held.",
            "may_hold",
            "This backup is held already, or is being deleted.",
            asks_why=True,
            asks_until=True,
            several="Hold the newest backup",
        ),
        Action(
            "release",
            "Release a backup",
            "Release it",
            "{backup} of {host} is no longer held.",
            "may_release",
            "This backup is not held.",
        ),
        Action(
            "accept",
            "Accept a suspect backup",
            "Accept it",
            "{backup} of {host} is complete from now on.",
            "may_accept",
            "This backup is neither suspect nor altered.",
            asks_why=True,
            several="Accept the suspect backup",
        ),
    )
}
BULK_ACTIONS = {
    **{verb: ACTIONS[verb] for verb in ("run", "hold", "accept")},
    "silence": Action("silence", "Silence", "Silence", "", asks_why=True, asks_until=True, several="Silence until"),
    "disable": Action("disable", "Disable", "Disable", "", asks_why=True, asks_until=True, several="Disable until"),
    "enable": Action("enable", "Enable", "Enable", "", several="Enable"),
}
"""Actions for several hosts at once. The last three request a silence, a silence with a pause of the runs, and its end."""


@blueprint.get("/hosts")
def index() -> str:
    """Shows the list, the worst hosts first, by `q`, `state`, `group`, `cause`, `sort` and `page`."""
    hosts = host_list(source(), viewer(), _query(), rows_per_page(PER_PAGE))
    return render_template("hosts/hosts.html", list=hosts, remarks=_remarks, bulk=BULK_ACTIONS)


def _query() -> Query:
    return Query(
        q=request.args.get("q", "").strip(),
        state=choice("state", (PROBLEMS, *ALL_STATES, *FLAGS)) or "",
        group=request.args.get("group", ""),
        cause=request.args.get("cause", ""),
        sort=choice("sort", either_way(ORDERS).words) or "state",
        page=request.args.get("page", 1, int),
    )


@blueprint.get("/hosts/-/actions")  # no host is called "-"
@operator_only
def preview() -> str:
    """Shows what an action would do with each of the selected hosts, or of all that match the filter."""
    action = BULK_ACTIONS.get(request.args.get("action", "")) or abort(404, "there is no such action")
    here, who, query = source(), viewer(), _query()
    selected = {*request.args.getlist("host")} if "all" not in request.args else set()
    rows = matching_rows(here, who, query if not selected else Query(sort=query.sort))
    plans = plan_action(here, who, action.verb, [row for row in rows if not selected or row.host in selected])
    return render_template("hosts/bulk.html", action=action, plans=plans, query=query, most=LONGEST_REASON, limit=MOST_TARGETS)


@blueprint.post(f"/hosts/-/<any({', '.join(BULK_ACTIONS)}):verb>")
@operator_only
def act_on_all(verb: str) -> str:
    """Requests the action for all chosen hosts at once, and shows the result of each."""
    action, targets = BULK_ACTIONS[verb], request.form.getlist("target")
    if not targets:
        abort(400, "no host was chosen")
    if len(targets) > MOST_TARGETS:
        abort(400, f"choose at most {MOST_TARGETS} hosts at a time")
    arguments = _reason_and_end(action)
    if verb in ("silence", "disable", "enable"):
        if action.asks_until and "until" not in arguments:
            abort(400, "give the day on which it ends")
        answer = root_service().ask("silence", targets=targets, disable=verb == "disable", **arguments)
        results = [{"host": subject["name"], "job": None, "error": None} for subject in answer["silenced"]]
    else:
        results = root_service().ask("bulk", action=verb, targets=targets, **arguments)
    return render_template("hosts/bulk_done.html", action=action, results=results)


def _reason_and_end(action: Action) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if action.asks_why:
        arguments["why"] = " ".join(request.form.get("why", "").split())
    if action.asks_until and (until := day_of_form("until", source().config.zone)):
        arguments["until"] = format_time(until)
    return arguments


def _remarks(row: HostRow) -> list[tuple[str, str]]:
    """Returns the remarks about the flags of a host, each with its class."""
    bad, behind = bad_backups(source()).get(row.host), copies_behind(source()).get(row.host, ())
    counts = ((bad.damaged, "damaged"), (bad.altered, "altered")) if bad else ()
    words = ", ".join(f"{counted(count, 'backup')} {flag}" for count, flag in counts if count)
    remarks = [(words, "is-bad")] if words else []
    remarks += [(f"its copy in {copy.replica} is {format_duration(copy.age)} old", "is-late") for copy in behind]
    if silence := silences(source()).of_host(row.host):
        remarks.append((silence_remark(silence, viewer()), "is-late"))
    return remarks + ([("not enabled: nightly runs skip it", "is-late")] if "disabled" in row.flags else [])


@blueprint.get("/hosts/<host>")
def host(host: str) -> Response | str | tuple[str, int]:
    """Shows one tab of a host. With `exact` the root service reads the pool to explain why each backup is kept."""
    here, who = source(), viewer()
    exact, problem = _decisions_of_service(host) if "exact" in request.args and who.may_see(host) else (None, "")
    page = host_page(here, who, host, exact, _time_words) if who.may_see(host) else None
    if page is None:
        return render_template("hosts/unknown.html", host=host, near=near_names(here, who, host)), 404
    tab = choice("tab", _TABS) or _TABS[0]
    return render_template(
        "hosts/host.html",
        page=page,
        row=page.row,
        tab=tab,
        behind=copies_behind(here).get(host, ()),
        silence=silence_remark(silence, who) if (silence := silences(here).of_host(host)) else "",
        charts=_charts(page, here.config.zone) if tab == "trends" else [],
        exact=exact is not None,
        problem=problem,
        restores=_restores(host) if tab == "runs" and "X-Live" not in request.headers else (),
    )


def _restores(host: str) -> tuple[RequestedJob, ...]:
    """Returns the last restores of the host that were started in the dashboard; none if the root service does not answer."""
    try:
        answer = root_service().ask("jobs", limit=_RESTORES, of_host=host, of_verb="restore")
    except OperatorError:
        return ()
    return tuple(requested_job(job_fields) for job_fields in answer)


def _charts(page: HostPage, zone: ZoneInfo) -> list[HostChart]:
    charts = (size_chart(page.backups, zone), duration_chart(page.history, zone), new_chart(page.history, zone))
    return [chart for chart in charts if chart]


def _time_words(moment: datetime) -> str:
    """Returns a time in the pool's zone, like all times of the pages."""
    return absolute(moment, source().config.zone, source().now)


def _decisions_of_service(name: str) -> tuple[list[Mapping[str, Any]] | None, str]:
    """Returns the root service's answer, or the reason for having none."""
    try:
        return root_service().ask("retention", host=name), ""
    except OperatorError as error:
        return None, error.message


@blueprint.get("/hosts/<host>/running")
def now(host: str) -> str:
    """Returns the host's running jobs, for the page to refresh."""
    require_visible_host(host)
    transfers = [transfer for transfer in running(source(), viewer()).transfers if transfer.host == host]
    return render_template("hosts/running.html", host=host, transfers=transfers)


_ACTION = f"any({', '.join(ACTIONS)})"


@blueprint.get(f"/hosts/<host>/<{_ACTION}:verb>")
@operator_only
def ask(host: str, verb: str) -> str:
    """Shows the page that describes the effect of an action."""
    require_visible_host(host)
    action = ACTIONS[verb]
    page = host_page(source(), viewer(), host, time_words=_time_words)
    backup = _backup(page, action, request.args.get("backup", "")) if action.may and page else None
    job = _not_over(host) if verb == "run" else None
    return render_template("hosts/ask.html", page=page, action=action, backup=backup, host=host, job=job, most=LONGEST_REASON)


def _not_over(host: str) -> RequestedJob | None:
    """Returns the requested backup of the host that waits or runs; also None if the root service does not answer."""
    try:
        answer = root_service().ask("jobs", limit=_MOST_JOBS)
    except OperatorError:
        return None
    requested_jobs = (
        requested_job(job_fields) for job_fields in answer if job_fields.get("host") == host and job_fields.get("verb") == "run"
    )
    return next((job for job in requested_jobs if not job.is_over), None)


@blueprint.post(f"/hosts/<host>/<{_ACTION}:verb>")
@operator_only
def act(host: str, verb: str) -> Response:
    """Requests the action from the root service; a refusal has its own page (web.error_pages)."""
    require_visible_host(host)
    action = ACTIONS[verb]
    arguments: dict[str, Any] = {"host": host}
    if action.may:
        arguments["backup"] = _name_of_form()
    arguments |= _reason_and_end(action)
    answer = root_service().ask(verb, **arguments)
    flash(action.done.format(host=host, backup=arguments.get("backup", "")))
    return redirect(_after(host, answer), 303)


def _backup(page: HostPage, action: Action, name: str) -> Any:
    """Returns the backup; aborts with 404 if it does not exist, with 409 if the action is not permitted for it."""
    row = backup_of(page, name)
    if row is None:
        abort(404, "there is no such backup of this host")
    if not getattr(row, action.may):
        abort(409, action.refused)
    return row


def _name_of_form() -> str:
    name = request.form.get("backup", "")
    if parse_backup_name(name) is None:
        abort(400, "name a backup")
    return name


def _after(host: str, answer: Any) -> str:
    """Returns the next address: the started job, if jobs have a page, or the host."""
    job = answer.get("job") if isinstance(answer, dict) else None
    if job and "jobs.job" in current_app.view_functions:
        return url_for("jobs.job", job=job)
    return url_for("hosts.host", host=host)
