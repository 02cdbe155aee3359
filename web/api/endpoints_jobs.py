"""Jobs, runs of hosts, alarms and the doctor: as their pages show them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from btrkeep.errors import UsageError
from btrkeep.units import parse_time
from web.access import visible_hosts
from web.alarms import OpenAlarm, open_alarms
from web.api import ApiRequest, Endpoint, Moment, Nothing, OfNumber, OneOf
from web.data import jobs as of_jobs
from web.data import log
from web.data.doctor import Examination, examination
from web.data.jobs import JobRow, NightView
from web.data.log import LogPage, LogRun
from web.service_client import agent

JOBS, STATE = "jobs", "state"
Before = Annotated[int, Field(ge=1, le=2**53, description="Only runs with a lower id: `older` of the previous page.")]


@dataclass(frozen=True, slots=True)
class JobsParameters:
    """The number of days, and the kind of job."""

    days: Annotated[int, Field(ge=1, le=3650, description="The number of days up to now.")] = of_jobs.USUAL
    kind: Annotated[str, OneOf(("", *of_jobs.KINDS)), Field(description="Only this kind of job.")] = ""


@dataclass(frozen=True, slots=True)
class NightParameters:
    """The night, and the page of its runs."""

    first_run: Annotated[
        str, Field(pattern=r"^[0-9]{1,15}$", description="The id of the night's first run, as after `night-` in the id of its job.")
    ]
    before: Before | None = None


@dataclass(frozen=True, slots=True)
class RunsParameters:
    """Filters for runs of hosts."""

    host: Annotated[str, Field(max_length=255, description="Only runs of this host.")] = ""
    outcome: Annotated[str, OneOf(("", *log.OUTCOMES)), Field(description="Only runs with this outcome.")] = ""
    since: Annotated[Moment, Field(description="Only runs that began at this time or later.")] | None = None
    before: Before | None = None
    limit: Annotated[int, Field(ge=1, le=500, description="The maximum number of runs.")] = log.PAGE


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs, newest first. `cut`: kinds of which there may be more in these days; only the newest ones are here."""

    jobs: tuple[JobRow, ...]
    cut: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alarms:
    """The open alarms, the worst kind first."""

    alarms: tuple[OpenAlarm, ...]


def jobs(asked: ApiRequest) -> Jobs:
    """Returns the list of jobs."""
    here, kind, days = asked.source, asked.given.kind, asked.given.days
    if asked.viewer.limited:
        mine, since = visible_hosts(), here.now - timedelta(days=days)
        return _jobs(tuple(of_jobs.by_hand(here.catalogue, mine, here.now, since)) if kind in ("", "backup") else ())
    of, kinds = here.site.filesystem, (kind,) if kind else ()
    goal = here.site.ping_goal
    return _jobs(here.cached(("jobs", of, days, kinds), lambda: of_jobs.jobs(here.catalogue, of, here.now, days, kinds, goal)))


def _jobs(rows: tuple[JobRow, ...]) -> Jobs:
    return Jobs(rows, tuple(kind for kind, count in Counter(row.kind for row in rows).items() if count >= of_jobs.LIMIT))


def night(asked: ApiRequest) -> NightView:
    """Returns one night."""
    here, given = asked.source, asked.given
    found = of_jobs.night_view(here.catalogue, int(given.first_run), here.now, given.before, here.site.ping_goal)
    return found or abort(404)


def runs(asked: ApiRequest) -> LogPage:
    """Returns a page of runs."""
    given, catalogue = asked.given, asked.source.catalogue
    wanted = log.wanted_runs(visible_hosts(), given.host or None, given.outcome or None, _moment(given.since), given.before)
    return log.log_page(catalogue, wanted, asked.source.now, given.limit)


def one_run(asked: ApiRequest) -> LogRun:
    """Returns one run."""
    found = asked.source.catalogue.one_run(int(asked.given.number))
    if found is None or not asked.viewer.may_see(found.host):
        abort(404)
    return log.log_run(found, asked.source.now)


def alarms(asked: ApiRequest) -> Alarms:
    """Returns the open alarms."""
    return Alarms(open_alarms(asked.source, asked.viewer))


def doctor(asked: ApiRequest) -> Examination:
    """Returns what the root service finds wrong now."""
    return examination(agent().ask("doctor"), asked.source.now)


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise UsageError(f"since: {error}") from None


def _get(
    path: str, name: str, tag: str, summary: str, answer: type, act: Callable[[ApiRequest], Any], takes: type = Nothing
) -> Endpoint:
    return Endpoint("GET", path, name, tag, summary, answer, act, takes, pool_wide=name in _POOL_WIDE, agent=name == "doctor")


_POOL_WIDE = ("doctor", "night")

ENDPOINTS = (
    _get("/alarms", "alarms", STATE, "Open alarms, and what to do about them", Alarms, alarms),
    _get("/doctor", "doctor", STATE, "Problems of the pool that the doctor finds", Examination, doctor),
    _get("/runs", "runs", JOBS, "Runs of hosts, newest first", LogPage, runs, RunsParameters),
    _get("/runs/<number>", "run", JOBS, "One run, with the last lines of rsync", LogRun, one_run, OfNumber),
    _get("/jobs", "jobs", JOBS, "Nights, manual backups, expiries, balances and scrubs", Jobs, jobs, JobsParameters),
    _get("/nights/<first_run>", "night", JOBS, "A night, and the runs in it that failed", NightView, night, NightParameters),
)
