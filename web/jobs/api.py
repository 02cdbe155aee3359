"""Operations for jobs: nights and other jobs of the catalogue, and tasks of the root service, to start and follow."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from btrkeep.serving.protocol import JOB_ID
from web.api import JOBS, TASKS, ApiRequest, Endpoint, HostParameters, OneOf
from web.jobs import data
from web.jobs.data import JobRow, NightView
from web.log import Before
from web.mapping import from_json
from web.service_client import root_service
from web.source import visible_hosts

_MOST = 1000
_TASK = f"^{JOB_ID.pattern}$"


@dataclass(frozen=True, slots=True)
class JobsParameters:
    """The number of days, and the kind of job."""

    days: Annotated[int, Field(ge=1, le=3650, description="The number of days up to now.")] = data.USUAL
    kind: Annotated[str, OneOf(("", *data.KINDS)), Field(description="Only this kind of job.")] = ""


@dataclass(frozen=True, slots=True)
class NightParameters:
    """The night, and the page of its runs."""

    first_run: Annotated[
        str, Field(pattern=r"^[0-9]{1,15}$", description="The id of the night's first run, as after `night-` in the id of its job.")
    ]
    before: Before | None = None


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs, newest first."""

    jobs: tuple[JobRow, ...]
    """The jobs."""
    cut: tuple[str, ...]
    """Kinds of which there may be more in these days; only the newest are here."""


def jobs(asked: ApiRequest) -> Jobs:
    """Returns the list of jobs."""
    here, kind, days = asked.source, asked.given.kind, asked.given.days
    if asked.viewer.limited:
        mine, since = visible_hosts(), here.now - timedelta(days=days)
        return _jobs(tuple(data.by_hand(here.catalogue, mine, here.now, since)) if kind in ("", "backup") else ())
    of, kinds = here.config.filesystem, (kind,) if kind else ()
    red = here.config.red_share
    return _jobs(here.cached(("jobs", of, days, kinds), lambda: data.jobs(here.catalogue, of, here.now, days, kinds, red)))


def _jobs(rows: tuple[JobRow, ...]) -> Jobs:
    return Jobs(rows, tuple(kind for kind, count in Counter(row.kind for row in rows).items() if count >= data.LIMIT))


def night(asked: ApiRequest) -> NightView:
    """Returns one night."""
    here, given = asked.source, asked.given
    night_view = data.night_view(here.catalogue, int(given.first_run), here.now, given.before, here.config.red_share)
    return night_view or abort(404)


@dataclass(frozen=True, slots=True)
class TaskParameters:
    """The id of a task, and the number of lines of its output."""

    task: Annotated[str, Field(pattern=_TASK, description="The id of the task, as returned.")]
    lines: Annotated[int, Field(ge=0, le=1000, description="The number of lines, from the end of its output.")] = 50


@dataclass(frozen=True, slots=True)
class TasksParameters:
    """The number of tasks, and where to continue."""

    limit: Annotated[int, Field(ge=1, le=_MOST, description="The number of entries, newest first.")] = 200
    before: Annotated[str, Field(pattern=_TASK, description="Continue before this task: `next` of the previous answer.")] | None = (
        None
    )


@dataclass(frozen=True, slots=True)
class Begun:
    """A task that was started or queued."""

    job: str
    """Its id."""
    unit: str | None
    """Its systemd unit; null: it has none."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the root service."""

    job: str
    """Its id."""
    verb: str
    """The verb of the root service."""
    host: str
    """The host's name."""
    who: str
    """The user who requested it."""
    asked: str
    """When it was requested."""
    arguments: Mapping[str, Any]
    """The arguments of its verb."""
    unit: str | None
    """Its systemd unit; null: it has none."""
    state: str
    """queued, running, done or failed."""
    started: str | None
    """When it started; null: it waits."""
    finished: str | None
    """When it ended; null: it has not."""
    exit: int | None
    """Its exit status; null: it has not ended."""
    error: str | None
    """Why it failed; null: it did not."""
    stopped: str | None = None
    """The user who stopped it; null: it was not stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer(Task):
    """A task with its output."""

    lines: tuple[str, ...]
    """The last lines of its output; empty for a user who is limited to some hosts."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of the last 30 days."""

    tasks: tuple[Task, ...]
    """Newest first."""
    next: str | None
    """Where to continue, as `before`; null: there are no older ones."""


def run(asked: ApiRequest) -> Any:
    """Starts a backup, due or not."""
    return root_service().ask("run", host=asked.given.host)


def tasks(asked: ApiRequest) -> Tasks:
    """Returns the tasks of the hosts that the viewer may see."""
    limit, before = asked.given.limit, asked.given.before
    answer = root_service().ask("jobs", limit=limit, **({"before": before} if before else {}))
    mine = [job_fields for job_fields in answer if asked.viewer.may_see(job_fields["host"])]
    # An answer is also cut at a limit of bytes, so its length proves nothing.
    has_more = bool(answer) and bool(root_service().ask("jobs", limit=1, before=answer[-1]["job"]))
    return Tasks(tuple(from_json(Task, job_fields) for job_fields in mine), answer[-1]["job"] if has_more else None)


def task(asked: ApiRequest) -> TaskAnswer:
    """Returns one task."""
    answer = root_service().ask("job", job=asked.given.task, lines=asked.given.lines)
    if not asked.viewer.may_see(answer["host"]):
        abort(404)
    return from_json(TaskAnswer, answer)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/hosts/<host>/run",
        "runNow",
        TASKS,
        "Start a backup of the host now",
        Begun,
        run,
        HostParameters,
        operator=True,
        needs_root_service=True,
    ),
    Endpoint("GET", "/tasks", "tasks", TASKS, "Tasks of the root service", Tasks, tasks, TasksParameters, needs_root_service=True),
    Endpoint(
        "GET",
        "/tasks/<task>",
        "task",
        TASKS,
        "One task, with its output",
        TaskAnswer,
        task,
        TaskParameters,
        needs_root_service=True,
    ),
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
