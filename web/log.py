"""The log: past runs of hosts and rsync's output, as `backupd log` has them: newest first, a page at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Annotated

from flask import Blueprint, abort, render_template, request
from pydantic import Field

from btrkeep.catalogue import KILLED, RUN_OUTCOMES, Catalogue, PastRuns, Run
from btrkeep.decisions.rsync_meaning import exit_words
from btrkeep.errors import UsageError
from btrkeep.serving.viewer import AnswerSize
from btrkeep.units import parse_time, seconds_between
from web.api import JOBS, ApiRequest, Endpoint, IdParameter, Moment, OneOf
from web.mapping import from_row
from web.redaction import host_error, host_line
from web.request_values import choice, moment, number, rows_per_page
from web.running import is_alive
from web.source import source, viewer, visible_hosts

OUTCOMES = (*RUN_OUTCOMES, "unfinished")
"""Filters for runs; unfinished: running and killed ones."""
PAGE = 50


@dataclass(frozen=True, slots=True)
class LogRun:
    """One attempt to back up one host, and rsync's output. Text from the host is unchanged: display it with `shown`."""

    id: int
    """A run that started later has a higher id."""
    host: str
    """The host's name."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; null: it is running."""
    seconds: float | None
    """How long it took; null: it has not ended."""
    outcome: str
    """One of RUN_OUTCOMES, or running, or killed."""
    backup: str | None
    """The backup that it made; null: no final backup."""
    night: bool
    """Whether it belongs to a run over all hosts."""
    attempts: int
    """Number of attempts of the transfer."""
    exit_code: int | None
    """rsync's exit status; negative for a signal; null: rsync was not started."""
    meaning: str | None
    """What `exit_code` means; null: unknown."""
    error: str | None
    """Why it did not make a complete backup; null: it did."""
    last_lines: tuple[str, ...]
    """The last lines that rsync wrote to its error output."""
    literal_bytes: int | None
    """Bytes of new data; null, like the next fields: rsync reported nothing."""
    matched_bytes: int | None
    """Bytes of changed files that were already in the base."""
    received_bytes: int | None
    """Bytes received over the connection."""
    rsync_version: str | None
    """The version of rsync on this server."""
    protocol: int | None
    """The version of rsync's protocol that both sides used."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of runs."""

    runs: tuple[LogRun, ...]
    """The runs, newest first."""
    older: int | None
    """The id before which the next page begins; null: this is the last."""


def log_page(catalogue: Catalogue, wanted: PastRuns, now: datetime, limit: int = PAGE) -> LogPage:
    """Returns one page of the selected runs."""
    return page_of(catalogue.past_runs(wanted, limit + 1), now, limit)


def page_of(past: Sequence[Run], now: datetime, limit: int = PAGE) -> LogPage:
    """Returns the first page of these runs, the newest first."""
    size = AnswerSize()  # a host controls rsync's output
    runs = tuple(takewhile(lambda run: size.take([run.error, *run.last_lines]), (log_run(run, now) for run in past[:limit])))
    return LogPage(runs, runs[-1].id if len(past) > len(runs) else None)


def wanted_runs(
    hosts: Collection[str] | None, host: str | None, outcome: str | None, since: datetime | None, before: int | None
) -> PastRuns:
    """Returns the filter. `hosts`: those that the viewer may see, None: all; `host`: the requested one."""
    seen = hosts if host is None else {host} if hosts is None or host in hosts else set[str]()
    outcomes = () if outcome is None else ("" if outcome == "unfinished" else outcome,)
    return replace(PastRuns(), hosts=seen, outcomes=outcomes, since=since, before=before)


def log_run(run: Run, now: datetime) -> LogRun:
    """Returns a run in the form of the page."""
    return as_shown(run, run.finished is None and is_alive(run.pid, run.pid_started, run.started, now))


def as_shown(run: Run, runs: bool) -> LogRun:
    """Returns the run as the viewer may read it. `runs`: whether it is still running, if it has no outcome."""
    return from_row(
        LogRun,
        run,
        seconds=seconds_between(run.started, run.finished),
        outcome=KILLED if run.killed else run.outcome or ("running" if runs else KILLED),
        meaning=exit_words(run.meaning, run.exit_code) if run.meaning else None,
        error=host_error(run.error, run.cause, run.host),
        last_lines=tuple(host_line(line, run.host) for line in run.last_lines),
    )


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
        page=log_page(here.catalogue, wanted, here.now, min(PAGE, rows_per_page(PAGE))),  # the page has no table to download
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
    names = sorted(hosts if hosts is not None else {*source().catalogue.hosts()})
    return [] if host in names else [name for name in names if host.casefold() in name.casefold()][:20]


@blueprint.get("/<int:run_id>")
def run(run_id: int) -> str:
    """Shows one run, with all its output."""
    here = source()
    past_run = here.catalogue.one_run(run_id) if run_id < 1 << 63 else None
    if past_run is None or not viewer().may_see(past_run.host):
        abort(404, "there is no such run")
    return render_template("log/run.html", run=log_run(past_run, here.now))


Before = Annotated[int, Field(ge=1, le=2**53, description="Only runs with a lower id: `older` of the previous page.")]


@dataclass(frozen=True, slots=True)
class RunsParameters:
    """Filters for runs of hosts."""

    host: Annotated[str, Field(max_length=255, description="Only runs of this host.")] = ""
    outcome: Annotated[str, OneOf(("", *OUTCOMES)), Field(description="Only runs with this outcome.")] = ""
    since: Annotated[Moment, Field(description="Only runs that began at this time or later.")] | None = None
    before: Before | None = None
    limit: Annotated[int, Field(ge=1, le=500, description="The maximum number of runs.")] = PAGE


def runs(asked: ApiRequest) -> LogPage:
    """Returns a page of runs."""
    given, catalogue = asked.given, asked.source.catalogue
    wanted = wanted_runs(visible_hosts(), given.host or None, given.outcome or None, _moment(given.since), given.before)
    return log_page(catalogue, wanted, asked.source.now, given.limit)


def one_run(asked: ApiRequest) -> LogRun:
    """Returns one run."""
    past_run = asked.source.catalogue.one_run(int(asked.given.number))
    if past_run is None or not asked.viewer.may_see(past_run.host):
        abort(404)
    return log_run(past_run, asked.source.now)


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise UsageError(f"since: {error}") from None


ENDPOINTS = (
    Endpoint("GET", "/runs", "runs", JOBS, "Runs of hosts, newest first", LogPage, runs, RunsParameters),
    Endpoint("GET", "/runs/<number>", "run", JOBS, "One run, with the last lines of rsync", LogRun, one_run, IdParameter),
)
