"""Jobs, runs of hosts, alarms and the doctor: as their pages show them."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from flask import abort
from pydantic import Field

from web.access import visible_hosts
from web.api import JOBS, ApiRequest, Endpoint, OneOf
from web.data import jobs as of_jobs
from web.data.jobs import JobRow, NightView
from web.log import Before


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
class Jobs:
    """Jobs, newest first. `cut`: kinds of which there may be more in these days; only the newest ones are here."""

    jobs: tuple[JobRow, ...]
    cut: tuple[str, ...]


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


ENDPOINTS = (
    Endpoint("GET", "/jobs", "jobs", JOBS, "Nights, manual backups, expiries, balances and scrubs", Jobs, jobs, JobsParameters),
    Endpoint(
        "GET",
        "/nights/<first_run>",
        "night",
        JOBS,
        "A night, and the runs in it that failed",
        NightView,
        night,
        NightParameters,
        pool_wide=True,
    ),
)
