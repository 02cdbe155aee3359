"""Endpoints for the tasks of the root service: starts and follows backups and restores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from web.access import require_folder_right
from web.api import TASKS, ApiRequest, Endpoint, OfHost, OneOf, Which
from web.data import restore as of_restore
from web.data.restore import PreviewPage, RestoreForm
from web.same_names import of_answer
from web.service_client import agent

_MOST = 1000
_TASK = r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$"
Folder = Annotated[str, Field(max_length=900, pattern=r"^/[^\x00-\x1f\x7f-\x9f]*$")]
Overwrite = Annotated[str, OneOf(tuple(of_restore.OVERWRITE)), Field(description="What to do if a file exists already.")]


@dataclass(frozen=True, slots=True)
class RestoreParameters:
    """The paths to restore, and the destination."""

    paths: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=1000, description="The paths; folders with all below them.")]
    backup: Which = "latest"
    folder: Annotated[Folder, Field(description="A folder on the host, for admins; default: the original places.")] | None = None
    overwrite: Overwrite = "never"


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """The effect of a restore. `preview` is null if it takes long to compute: `job` is then the id of the task that computes it."""

    preview: PreviewPage | None
    job: str | None


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
    """The task that was started or queued: `job` is its id, `unit` its systemd unit, null if there is none."""

    job: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `state`: queued (it waits for its turn), running, done, failed; `exit`: its exit status, null before it ends."""

    job: str
    verb: str
    host: str
    who: str
    asked: str
    arguments: Mapping[str, Any]
    unit: str | None
    state: str
    started: str | None
    finished: str | None
    exit: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer(Task):
    """A task with the last lines of its output; these are empty for a viewer who is limited to some hosts."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of the last 30 days, newest first. `next`: continue there, as `before`; null: there are no older ones."""

    tasks: tuple[Task, ...]
    next: str | None


def run(asked: ApiRequest) -> Any:
    """Starts a backup, due or not."""
    return agent().ask("run", host=asked.given.host)


def restore(asked: ApiRequest) -> Any:
    """Restores files to their own host."""
    return agent().ask("restore", **_wish(asked).arguments())


def preview(asked: ApiRequest) -> PreviewAnswer:
    """Returns the effect of a restore, without restoring anything."""
    found = of_restore.preview(agent(), _wish(asked))
    return PreviewAnswer(None, found) if isinstance(found, str) else PreviewAnswer(found, None)


def _wish(asked: ApiRequest) -> RestoreForm:
    body = asked.body
    require_folder_right(body.folder)
    return RestoreForm(asked.given.host, body.backup, body.paths, body.folder, body.overwrite)


def tasks(asked: ApiRequest) -> Tasks:
    """Returns the tasks of the hosts that the viewer may see."""
    limit, before = asked.given.limit, asked.given.before
    found = agent().ask("jobs", limit=limit, **({"before": before} if before else {}))
    mine = [one for one in found if asked.viewer.may_see(one["host"])]
    # An answer ends also when its bytes do, so its length does not tell.
    has_more = bool(found) and bool(agent().ask("jobs", limit=1, before=found[-1]["job"]))
    return Tasks(tuple(of_answer(Task, one) for one in mine), found[-1]["job"] if has_more else None)


def task(asked: ApiRequest) -> TaskAnswer:
    """Returns one task."""
    found = agent().ask("job", job=asked.given.task, lines=asked.given.lines)
    if not asked.viewer.may_see(found["host"]):
        abort(404)
    return of_answer(TaskAnswer, found)


def _post(path: str, name: str, summary: str, answer: type, act: Callable[[ApiRequest], Any], body: type | None = None) -> Endpoint:
    return Endpoint("POST", f"/hosts/<host>/{path}", name, TASKS, summary, answer, act, OfHost, body, operator=True, agent=True)


ENDPOINTS = (
    _post("run", "runNow", "Start a backup of the host now", Begun, run),
    _post("restore", "restore", "Restore files to their host", Begun, restore, RestoreParameters),
    _post("restore/preview", "preview", "Preview a restore", PreviewAnswer, preview, RestoreParameters),
    Endpoint("GET", "/tasks", "tasks", TASKS, "Tasks of the root service", Tasks, tasks, TasksParameters, agent=True),
    Endpoint("GET", "/tasks/<task>", "task", TASKS, "One task, with its output", TaskAnswer, task, TaskParameters, agent=True),
)
