"""Jobs, which are only started by a request: who requested what, the state, and the request that the job's process carries out.

Below STATE/jobs are two files for each job; one is its output. Only root can read them. The service writes the first state of a
job, its process all later ones. The request is a file that only root can read and that is taken once. A unit's name contains only
the names of the pool and the job. Everything else is in the file: nothing from the request becomes part of a command line of
systemd.
"""

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.atomic import NO_ROOM, write_atomically
from btrkeep.process.proc import start_time
from btrkeep.serving.protocol import JOB_ID, RequestRefused
from btrkeep.units import format_time, parse_time

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
RUN, RESTORE, PREVIEW, REACH = "run", "restore", "preview", "reach"
CHECKS = (PREVIEW, REACH)
"""Jobs that change nothing, and are not listed."""
KEPT = timedelta(days=30)
MOST = 1000
"""Maximum number of finished jobs: a user with very many requests fills neither the disk nor a list."""
MOST_OF_ONE = 250
"""Maximum number of finished jobs of one user, so that they do not remove the jobs of all others."""
PREVIEWS_OF_ONE_KEPT = 50
"""They are counted separately, because every visit of a restore page requests some."""
_PREVIEWS_KEPT = timedelta(hours=1)
_STARTS_WITHIN = timedelta(minutes=10)
_WAITS_FOR = timedelta(days=1)
_TAIL = 64 << 10
_STOPPED = "stopped-"
"""The beginning of the name of a mark: a process that a user has stopped. Its number and start time follow."""


@dataclass(frozen=True, slots=True)
class ServeJob:
    """One job. Times are RFC 3339 texts."""

    id: str
    """Its id."""
    verb: str
    """The verb that it carries out."""
    host: str
    """The host's name."""
    who: str
    """The user who requested it."""
    asked: str
    """When it was requested."""
    arguments: Mapping[str, Any]
    """The arguments of the verb, as JSON."""
    unit: str | None = None
    """Its systemd unit; None: it has none."""
    state: str = QUEUED
    """queued, running, done or failed."""
    started: str | None = None
    """When it started; None: it waits."""
    finished: str | None = None
    """When it ended; None: it has not."""
    exit: int | None = None
    """Its exit status; None: it has not ended, or the status is unknown."""
    error: str | None = None
    """Why it failed; None: it did not."""
    result: Any = None
    """The JSON output of its command; None: none."""
    pid: int | None = field(default=None)
    """Its process; None: none."""
    pid_started: str | None = None
    """The start time of that process; None: unknown."""
    since: str | None = None
    """When it was requested, to the microsecond: waiting jobs are in this order."""
    called: str | None = None
    """When its process was started, to the microsecond; None: it waits."""
    own: bool = False
    """True if `error` is the service's own text about this job, not that of its command, which may mention anything."""
    stopped: str | None = None
    """The user who stopped it; None: it was not stopped by a user of the dashboard."""

    @property
    def waits(self) -> bool:
        """True if the job waits for a slot and has no process."""
        return self.state == QUEUED and self.called is None

    @property
    def over(self) -> bool:
        """True if the job has ended, with success or not."""
        return self.state in (DONE, FAILED)


def is_id(text: str) -> bool:
    """True if the text has the form of a job's name."""
    return JOB_ID.fullmatch(text) is not None


def new_id(now: datetime) -> str:
    """Returns a new name for a job: names sort by time, and no name is used twice."""
    return f"{format_time(now).replace('-', '').replace(':', '')}-{secrets.token_hex(4)}"


def no_job(job_id: str) -> RequestRefused:
    """Returns the refusal for an unknown job, and the same one for a job that the caller may not see."""
    return RequestRefused(f"there is no job {job_id}", "jobs are deleted after 30 days", "missing", is_public=True)


class JobStore:
    """The jobs of a pool, in a folder of its state."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "jobs"

    def put(self, job: ServeJob) -> None:
        """Writes the job atomically. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._file(job.id), json.dumps(asdict(job)) + "\n")

    def get(self, job_id: str, now: datetime) -> ServeJob:
        """Returns the present state of a job. Raises RequestRefused, of kind missing."""
        job = self._read(job_id) if is_id(job_id) else None
        if not job:
            raise no_job(job_id)
        return with_actual_state(job, now)

    def is_over(self, job_id: str, now: datetime) -> bool:
        """Returns True if the job has ended, or is no longer known."""
        job = self._read(job_id)
        return job is None or with_actual_state(job, now).over

    def all(self, now: datetime) -> Iterator[ServeJob]:
        """Yields all known jobs, newest first. Skips unreadable files."""
        names = sorted((path.stem for path in self._folder.glob("*.json") if is_id(path.stem)), reverse=True)
        return (with_actual_state(job, now) for job in map(self._read, names) if job)

    def log(self, job_id: str) -> Path:
        """Returns the path of its log."""
        return self._folder / f"{job_id}.log"

    def last_lines(self, job_id: str, count: int) -> list[str]:
        """Returns the last lines of its log. Bytes that are not UTF-8 become surrogates."""
        try:
            with self.log(job_id).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                data = file.read(_TAIL)
        except FileNotFoundError:
            return []
        lines = data.decode("utf-8", "surrogateescape").splitlines()
        return lines[1 if size > _TAIL else 0 :][-count:]

    def thin(self, now: datetime) -> None:
        """Removes jobs that ended long ago, and the oldest of too many."""
        counts: Counter[tuple[str, bool]] = Counter()
        kept = 0
        for path in self._folder.glob(f"{_STOPPED}*"):
            _, pid, started = path.name.split("-")
            if start_time(int(pid)) != started:
                path.unlink(missing_ok=True)
        for job in self.all(now):
            is_preview = job.verb in CHECKS
            old = now - parse_time(job.asked) > (_PREVIEWS_KEPT if is_preview else KEPT)
            of_one = counts[job.who, is_preview] >= (PREVIEWS_OF_ONE_KEPT if is_preview else MOST_OF_ONE)
            if job.over and (old or of_one or (not is_preview and kept >= MOST)):
                self.forget(job.id)
                continue
            counts[job.who, is_preview] += 1
            kept += not is_preview

    def forget(self, job_id: str) -> None:
        """Removes the job."""
        for path in (self._file(job_id), self.log(job_id)):
            path.unlink(missing_ok=True)

    def mark_stopped(self, pid: int, started: str, by: str) -> str:
        """Records who stops a process. Returns the user who has stopped it before, "" if no user has. On a full disk nothing is
        recorded, because a stop may free space.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(self._mark(pid, started), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return self.stopped_by(pid, started)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return ""
        with ClosingFd(fd), suppress(OSError):  # an empty mark still shows that it was stopped
            os.write(fd, by.encode("utf-8", "surrogateescape"))
        return ""

    def unmark_stopped(self, pid: int, started: str) -> None:
        """Removes the mark of a process that could not be stopped."""
        self._mark(pid, started).unlink(missing_ok=True)

    def stopped_by(self, pid: int, started: str) -> str:
        """Returns the user who stopped the process; "" if no user has."""
        try:
            return self._mark(pid, started).read_bytes().decode("utf-8", "surrogateescape") or "another user"
        except OSError:
            return ""

    def _mark(self, pid: int, started: str) -> Path:
        return self._folder / f"{_STOPPED}{pid}-{started}"

    def _file(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"

    def _read(self, job_id: str) -> ServeJob | None:
        try:
            return read_job(json.loads(self._file(job_id).read_bytes()))
        except (OSError, ValueError):
            return None


def read_job(document: Any) -> ServeJob:
    """Parses a job from JSON. Raises ValueError if it is invalid."""
    names = {attribute.name for attribute in fields(ServeJob)}
    if not isinstance(document, dict) or not document.keys() <= names:
        raise ValueError("no job")
    try:
        return ServeJob(**document)
    except TypeError as error:
        raise ValueError("no job") from error


def with_actual_state(job: ServeJob, now: datetime) -> ServeJob:
    """Returns the real state: a running job whose process has ended has failed; so has one that was never started, or waited too
    long.
    """
    if job.state == RUNNING and (job.pid is None or start_time(job.pid) != job.pid_started):
        return replace(job, state=FAILED, error="the job was killed: its process no longer exists", own=True)
    if job.waits and now - parse_time(job.asked) > _WAITS_FOR:
        return replace(job, state=FAILED, error="no slot was free within a day", own=True)
    if job.state == QUEUED and job.called and now - datetime.fromisoformat(job.called) > _STARTS_WITHIN:
        return replace(job, state=FAILED, error="the job was never started", own=True)
    return job


def job_object(job: ServeJob) -> dict[str, Any]:
    """Returns the job as JSON for others."""
    job_fields = asdict(job)
    for name in ("pid", "pid_started", "since", "called"):
        del job_fields[name]
    return {**job_fields, "job": job_fields.pop("id")}


RUNTIME = Path("/run/btrkeep/jobs")
"""Folder of the requests for units: a reboot deletes them, so old requests are not carried out after it."""
FORMAT = 1
JOB_VERBS = (RUN, RESTORE, *CHECKS)


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """One request. The process that carries it out validates it again."""

    id: str
    """The id of its job."""
    verb: str
    """The verb to carry out: run, restore or preview."""
    who: str
    """The name of the user who requested it."""
    arguments: Mapping[str, Any]
    """The arguments as JSON."""
    folder: str | None = None
    """The folder for a restore to this machine, chosen by the service; None: no restore to this machine."""
    elsewhere: bool = False
    """True if a restore may go to another folder of its host than the original one."""
    in_place: tuple[str, ...] = ()
    """Folders of this machine below which its own files may be restored to their original places."""
    now: str | None = None
    """The time of a rehearsal pool; None: the real time."""


def write_request(folder: Path, asked: ServeRequest) -> None:
    """Writes the request for `claim_request`. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / f"{asked.id}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump({"format": FORMAT, **asdict(asked)}, file)


def remove_request(folder: Path, job_id: str) -> None:
    """Removes the request."""
    (folder / f"{job_id}.json").unlink(missing_ok=True)


def request_exists(folder: Path, job_id: str) -> bool:
    """Returns True if the request waits: it was not taken, and the machine was not restarted."""
    return (folder / f"{job_id}.json").exists()


def claim_request(folder: Path, job_id: str) -> ServeRequest:
    """Reads and removes the request, so that it is carried out only once.

    Raises UsageError if there is none, OperatorError if it is invalid.
    """
    if not is_id(job_id):
        raise UsageError(f"{job_id[:100]!r} is not the name of a job", "the root service assigns the names: backupd serve")
    path = folder / f"{job_id}.json"
    try:
        text = path.read_text(encoding="ascii")
        path.unlink()
    except FileNotFoundError:
        raise UsageError(
            f"there is no request {path}", "start the work again: this request was already processed, or the machine was restarted"
        ) from None
    try:
        document = json.loads(text)
        if document.pop("format") != FORMAT:
            raise ValueError("another format")
        asked = ServeRequest(**{**document, "in_place": tuple(document.get("in_place", ()))})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise OperatorError(f"{path}: {error}", "start the work again: another version may have written the request") from None
    if asked.id != job_id or asked.verb not in JOB_VERBS or not isinstance(asked.arguments, dict):
        raise OperatorError(f"{path}: this is not a request of btrkeep", "start the work again")
    return asked
