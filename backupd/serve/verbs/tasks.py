"""Work that is only started here, and its result."""

import os
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import islice, takewhile
from typing import Any

from backupd.files.backup_selector import find
from backupd.files.restore_request import result_words
from backupd.serve.commands import RestorePermissions, folder_of, restore_request
from backupd.serve.jobs import CHECKS, PREVIEW, REACH, RESTORE, RUN, JobStore, ServeJob, job_object, no_job
from backupd.serve.request_checks import FOLDER, ROOT
from backupd.serve.service_context import Call
from backupd.serve.start_job import begin, begin_runs, is_started, require_free
from backupd.serve.verbs.files import reading
from btrkeep.catalogue import PastRuns
from btrkeep.decisions.due import A_DAY, RequestDelay, RequestedRun, next_request
from btrkeep.errors import READ_ONLY_HINT, OperatorError, PoolUnusable
from btrkeep.pool.mounts import mount_options
from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.viewer import AnswerSize
from btrkeep.units import counted, local_time, parse_time

_PATIENCE = 15.0
"""Seconds to wait for a preview; then the client requests the state of the job, which continues."""
_CHECK_EVERY = 0.1
_CHECK_IS_VALID = timedelta(minutes=5)
_FAILED = ("failed", "skipped")  # outcomes of runs without a backup
_MOST_RUNS = 2000
"""Maximum number of runs of a host that are read: more within a day are too many in any case."""


def run(call: Call) -> dict[str, Any]:
    """Starts a backup of a host, due or not."""
    host = call["host"]
    if host not in call.service.config().hosts:
        raise _not_configured(host)
    _require_writable(call)
    if call.peer.uid != ROOT or call.viewer.session:
        require_free(call.service, host, call.who)  # the name of the running job is more useful than the time until the next run
        if refused := _too_early(call, (host,)).get(host):
            raise refused
    job = begin(call.service, "run", host, call.who, {"host": host})
    return {"unit": job.unit, "job": job.id}


def run_all(call: Call, hosts: Sequence[str]) -> dict[str, ServeJob | OperatorError]:
    """Starts or queues a backup of each host. Returns, by host, the job or why there is none."""
    _require_writable(call)
    configured = call.service.config().hosts
    refused: dict[str, OperatorError] = {host: _not_configured(host) for host in hosts if host not in configured}
    if call.peer.uid != ROOT or call.viewer.session:
        refused |= _too_early(call, [host for host in hosts if host not in refused])
    begun = begin_runs(call.service, [host for host in hosts if host not in refused], call.who)
    return {host: refused[host] if host in refused else begun[host] for host in hosts}


def _not_configured(host: str) -> RequestRefused:
    return RequestRefused(f"{host} is not configured", "only configured hosts can be backed up", "missing", is_public=True)


def _require_writable(call: Call) -> None:
    if "ro" in mount_options(call.service.pool().path):
        raise PoolUnusable("the pool is read-only", READ_ONLY_HINT)


def _too_early(call: Call, hosts: Collection[str]) -> dict[str, RequestRefused]:
    """Returns a refusal, of kind busy, for each host whose last backup was a short time ago, or that had too many within a day."""
    settings, now = call.service.config().serve, call.service.clock.now()
    since = now - max(A_DAY, timedelta(seconds=settings.run_distance))
    with call.service.opened() as context:
        runs = context.catalogue.past_runs(PastRuns(hosts=hosts, since=since, night=False), _MOST_RUNS * len(hosts))
    earlier: dict[str, list[RequestedRun]] = {}
    for run in runs:
        earlier.setdefault(run.host, []).append(RequestedRun(run.started, has_failed=run.outcome in _FAILED))
    delays = {host: next_request(host_runs, now, settings.run_distance, settings.runs_a_day) for host, host_runs in earlier.items()}
    return {
        host: RequestRefused(
            f"{host}: {_previous_words(delay, settings.runs_a_day)}; the next one may be requested from {local_time(delay.until)}",
            f"on the server, at any time: backupd run {host}",
            "busy",
            is_public=True,
        )
        for host, delay in delays.items()
        if delay
    }


def _previous_words(delay: RequestDelay, a_day: int) -> str:
    if delay.previous is None:
        return f"{counted(a_day, 'backup')} started manually within 24 hours"
    failed = ", which failed," if delay.previous.has_failed else ""
    return f"the previous manual backup{failed} began at {local_time(delay.previous.started)}"


def restore(call: Call) -> dict[str, Any]:
    """Starts a restore, to the host or to a folder of this machine."""
    started = _restore(call, "restore")
    return {"unit": started.unit, "job": started.id}


def preview(call: Call) -> Any:
    """Starts a preview of a restore (`backupd restore --dry-run --json`). It may need the network, so it is a job, too."""
    started, jobs, end = _restore(call, PREVIEW), _jobs(call), time.monotonic() + _PATIENCE
    while not (serve_job := jobs.get(started.id, call.service.clock.now())).over:
        if call.gone() or time.monotonic() > end:
            raise RequestRefused(
                "the preview is not ready yet", f"job {started.id} is still running", "busy", is_public=True, job=started.id
            )
        time.sleep(_CHECK_EVERY)
    if serve_job.result is None:
        raise RequestRefused(serve_job.error or "the preview printed no result", "", "failed")
    return serve_job.result


def reach(call: Call) -> dict[str, Any]:
    """Starts a check whether the host can be reached and allows the restore; returns the job. Uses the same check of the last
    minutes.
    """
    started = _restore(call, REACH)
    return {"unit": started.unit, "job": started.id}


def _recent_check(call: Call, arguments: dict[str, Any]) -> ServeJob | None:
    """Returns a check for the same arguments that is running, or has a recent result."""
    now = call.service.clock.now()
    for other_job in _jobs(call).all(now):
        if now - parse_time(other_job.asked) > _CHECK_IS_VALID:
            return None
        if other_job.verb == REACH and other_job.arguments == arguments and (not other_job.over or other_job.result):
            return other_job
    return None


def _restore(call: Call, verb: str) -> ServeJob:
    service, host = call.service, call["host"]
    with reading():
        backup = find(service.pool(), host, call["backup"]).name
    folder = folder_of(service.restore_to, host, backup)
    allowed = RestorePermissions(folder, service.elsewhere, tuple(map(str, service.in_place)))
    restore_request(call.arguments, service.config(), allowed)  # refuses what is not allowed
    asked = {**call.arguments, "backup": backup, "paths": [os.fsdecode(path) for path in call["paths"]]}
    return (verb == REACH and _recent_check(call, asked)) or begin(service, verb, host, call.who, asked, folder)


def job(call: Call) -> dict[str, Any]:
    """Returns the state of a job, and the last lines of its log."""
    jobs = _jobs(call)
    serve_job = jobs.get(call["job"], call.service.clock.now())
    if not call.viewer.may_see(serve_job.host):
        raise no_job(call["job"])
    answer = {**_job_answer(call, serve_job), "lines": list[str]()}
    if call.viewer.limited:
        return answer
    answer["lines"] = jobs.last_lines(serve_job.id, call["lines"])
    return {**answer, "queue": _queue(call, jobs)} if serve_job.waits else answer


def _job_answer(call: Call, job: ServeJob) -> dict[str, Any]:
    """Returns what a caller may see of a job. Output of root's commands is about the whole machine, and is not shown to users who
    see only some hosts.
    """
    answer = {**job_object(job), "summary": _summary(job)}
    if call.viewer.limited and job.error is not None and not job.own:
        answer["error"] = "the job failed"
    if call.viewer.limited and job.verb == REACH and isinstance(job.result, dict):
        answer["result"] = {"reason": job.result.get("reason")}  # its error is ssh's, about this server too
    elif call.viewer.limited and job.arguments.get("to") == FOLDER:
        answer["result"] = None  # it names a folder of this server
    return answer


def _summary(job: ServeJob) -> str | None:
    """Returns the result of a restore in one sentence; None for other jobs, and for one without a result."""
    if job.verb != RESTORE or not isinstance(job.result, dict):
        return None
    try:
        return result_words(job.result)
    except (KeyError, TypeError, AttributeError):  # of another version
        return None


def _queue(call: Call, jobs: JobStore) -> dict[str, int]:
    """Returns what a backup waits for: the number of slots, of used ones, and of other waiting backups."""
    runs = [other_job for other_job in jobs.all(call.service.clock.now()) if other_job.verb == RUN and not other_job.over]
    taken = sum(is_started(other_job) for other_job in runs)
    return {"places": call.service.config().backup.concurrency, "taken": taken, "waiting": max(0, len(runs) - taken - 1)}


def jobs(call: Call) -> list[dict[str, Any]]:
    """Returns the jobs of the last 30 days, newest first, up to a number and up to the size of an answer; with `before` the jobs
    that follow that job in the list; with `of_host` and `of_verb` only these.
    """
    size, before, host, verb = AnswerSize(), call["before"], call["of_host"], call["of_verb"]
    every = (
        other_job
        for other_job in _jobs(call).all(call.service.clock.now())
        if other_job.verb not in CHECKS
        and (not before or other_job.id < before)
        and host in (None, other_job.host)
        and verb in (None, other_job.verb)
    )
    seen = (_listed(call, other_job) for other_job in every if call.viewer.may_see(other_job.host))
    return list(takewhile(size.take, islice(seen, call["limit"])))


def _listed(call: Call, job: ServeJob) -> dict[str, Any]:
    """Returns a job for a list: without its result, which may have megabytes."""
    return {key: value for key, value in _job_answer(call, job).items() if key != "result"}


def _jobs(call: Call) -> JobStore:
    return call.service.jobs()
