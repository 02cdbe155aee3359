"""Stops a job: a requested one, or any run, expiry, balance or verification, also one that a timer or a shell started.

Its process gets one SIGTERM, as by `systemctl stop`: it ends its transfers, keeps the files, and records the end. Only root writes
the process numbers in the catalogue, the jobs and the locks; a start time identifies the process, so that its number cannot be that
of a later one.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from backupd.repo.actions_log import UserAction, record_action
from backupd.serve.jobs import FAILED, RESTORE, RUN, JobStore, ServeJob, is_id, no_job
from backupd.serve.service_context import Call
from backupd.serve.start_job import cancel_waiting
from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import VERIFY_LOCK, read_holder
from btrkeep.process.proc import ancestors_of, start_time, terminate
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import counted, format_time, printable

log = logging.getLogger("backupd.serve")


@dataclass(frozen=True, slots=True)
class _JobProcess:
    """The process of a job."""

    pid: int
    """Its number."""
    started: str | None
    """Its start time; None: unknown."""
    words: str
    """What it does."""
    host: str | None = None
    """The host of a job of one host; None: of several, or of the pool."""


def stop(call: Call) -> dict[str, Any]:
    """Stops a job, by its id or by the id of its page. Users may stop their own jobs, operators all jobs of hosts that they see,
    and operators of all hosts everything.
    """
    jobs, job_id = call.service.jobs(), call["job"]
    if is_id(job_id):
        return _stop_requested(call, jobs, jobs.get(job_id, call.service.clock.now()))
    process = _process_of(call, job_id)
    job = _requested_by(call, jobs, process.pid) if process else None
    if job and call.viewer.may_see(job.host):  # otherwise the refusal must not have its name
        return _stop_requested(call, jobs, job)
    if call.viewer.limited:  # its process may work for other hosts too
        if process and process.host and call.viewer.may_see(process.host):
            raise RequestRefused(
                "this run was not started from the dashboard", "ask an administrator of this pool", "refused", is_public=True
            )
        raise no_job(job_id)
    _require_operator(call)
    if process is None:
        raise _over()
    return _stop_process(call, jobs, job_id, process)


def _require_operator(call: Call) -> None:
    if not call.viewer.operator:
        raise RequestRefused(
            "only operators may stop jobs of others", "ask an administrator of this pool", "refused", is_public=True
        )


def _over() -> RequestRefused:
    return RequestRefused("the job has ended already", "reload the page", "refused", is_public=True)


def _stop_requested(call: Call, jobs: JobStore, job: ServeJob) -> dict[str, Any]:
    """Stops a job of this service. Raises RequestRefused."""
    if not call.viewer.may_see(job.host):
        raise no_job(job.id)
    if job.who != call.who:
        _require_operator(call)
    words = {RUN: "backup", RESTORE: "restore"}.get(job.verb, job.verb)
    now = format_time(call.service.clock.now())
    if job.waits:
        ended = replace(job, state=FAILED, finished=now, error=f"stopped by {call.who}", own=True, stopped=call.who)
        if not cancel_waiting(call.service, ended):
            raise _starting()
        return _recorded(call, job.id, f"waiting {words}", job.host)
    if job.over:
        raise _over()
    if job.pid is None:
        raise _starting()
    return _stop_process(call, jobs, job.id, _JobProcess(job.pid, job.pid_started, words, job.host))


def _starting() -> RequestRefused:
    return RequestRefused("the job is just starting", "try again in a moment", "busy", is_public=True)


def _stop_process(call: Call, jobs: JobStore, job_id: str, process: _JobProcess) -> dict[str, Any]:
    """Sends one signal: a second one would end the process in the middle of a step."""
    pid, started = process.pid, process.started or ""
    if start_time(pid) != started:
        raise _over()
    if by := jobs.mark_stopped(pid, started, call.who):
        raise RequestRefused(f"{by} stopped this job already; it is ending", "wait until it has ended", "refused", is_public=True)
    if not terminate(pid, started):
        jobs.unmark_stopped(pid, started)
        raise _over()
    return _recorded(call, job_id, process.words, process.host)


def _recorded(call: Call, job_id: str, words: str, host: str | None) -> dict[str, Any]:
    """Records the stop in the pool, and returns the answer. The job is stopped even if the pool is full or missing."""
    now = call.service.clock.now().replace(microsecond=0)
    try:
        reason = record_action(call.service.pool(), UserAction(now, "stop", call.who, host, None, words))
    except OperatorError as error:
        reason = error.message
    if reason:
        log.warning("the stop of %s by %s could not be recorded in the pool: %s", job_id, printable(call.who), printable(reason))
    return {"job": job_id, "stopped": words, "host": host, "recorded": not reason}


def _process_of(call: Call, job_id: str) -> _JobProcess | None:
    """Returns the process of a job that the catalogue or a lock has; None if it has ended."""
    config = call.service.config()
    if job_id == "verify":
        holder = read_holder(call.service.pool().locks / VERIFY_LOCK)
        own = holder and holder.is_alive and holder.what.startswith("backupd verify")
        return _JobProcess(holder.pid, holder.started, "verification") if holder and own else None
    kind, _, number = job_id.partition("-")
    with Catalogue.open_readonly(config.pool.state) as catalogue:
        return next(_unfinished(catalogue, kind, int(number)), None)


def _unfinished(catalogue: Catalogue, kind: str, number: int) -> Iterator[_JobProcess]:
    if kind in ("night", "backup"):
        runs = catalogue.unfinished_runs()
        night = catalogue.night(number) if kind == "night" else None
        chosen = night or next((run for run in runs if run.id == number), None)
        if chosen:
            hosts = [run.host for run in runs if (run.pid, run.pid_started) == (chosen.pid, chosen.pid_started)]
            is_night = night is not None or any(run.id == number and run.night for run in runs)
            words = f"run over all hosts, during {counted(len(hosts), 'backup')}" if is_night else f"backup of {', '.join(hosts)}"
            host = hosts[0] if len(hosts) == 1 and not is_night else None
            yield _JobProcess(chosen.pid, chosen.pid_started, "backup" if host else words, host)
    elif kind == "expire":
        yield from (_JobProcess(row.pid, row.pid_started, "expiry") for row in catalogue.unfinished_expiries() if row.id == number)
    else:
        yield from (_JobProcess(row.pid, row.pid_started, "balance") for row in catalogue.unfinished_balances() if row.id == number)


def _requested_by(call: Call, jobs: JobStore, pid: int) -> ServeJob | None:
    """Returns the job of this service in which the process runs; None: it was started in another way."""
    above = ancestors_of(pid)
    running = (job for job in jobs.all(call.service.clock.now()) if not job.over and job.pid is not None)
    return next((job for job in running if job.pid in above), None)
