"""Starts work that is long or needs the network in a unit, or without systemd in a separate process.

At most `concurrency` backups are started; the others wait as files, in the order of `next_turns`.
docs/decisions/0022-requested-runs.rst has the reasons.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from backupd.serve.jobs import (
    CHECKS,
    FAILED,
    RUN,
    RUNTIME,
    JobStore,
    ServeJob,
    ServeRequest,
    new_id,
    remove_request,
    request_exists,
    write_request,
)
from backupd.serve.service_context import ServiceContext
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.locks import read_holder
from btrkeep.pool.marker import Pool
from btrkeep.process.programs import our_command, run, start_detached
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import format_time, printable, recorded_time

log = logging.getLogger("backupd.serve")

PREVIEWS, PREVIEWS_OF_ONE = 4, 2
"""Maximum number of previews at the same time, in all and for one caller; one for a host. Each keeps an rsync busy on both sides,
even if no user is waiting for it any longer.
"""
_one_at_a_time = threading.Lock()
_PATIENCE = 15.0  # seconds
_AGAIN = 60.0  # seconds
_CHECK_EVERY = 0.5
"""Seconds between two checks whether a backup has ended, while others wait."""


def folder_of_requests(service: ServiceContext) -> Path:
    """Returns the folder for requests."""
    return RUNTIME / service.pool_name if service.systemd else service.config().pool.state / "jobs" / "asked"


def unit_of(verb: str, pool: str, job_id: str) -> str:
    """Returns the name of the job's unit: a fixed word, the pool's name and the job's, and nothing from the request."""
    return f"btrkeep-{RUN if verb == RUN else 'restore'}@{pool}:{job_id}.service"


def begin(
    service: ServiceContext, verb: str, host: str, who: str, arguments: Mapping[str, Any], folder: str | None = None
) -> ServeJob:
    """Starts the work; a backup when a slot is free, which may be now. Raises LockHeld with the present user of the host,
    RequestRefused for too many previews or waiting backups, OperatorError if it cannot be started.
    """
    now = service.clock.now()
    with _start_lock():
        pool = service.pool()
        jobs = service.jobs()
        jobs.thin(now)
        _require_free(pool, _unfinished(jobs, verb, now), verb, host, who)
        job = _recorded(service, jobs, verb, host, who, arguments, folder)
        try:
            if verb != RUN:
                _start_process(service, jobs, job)
            elif error := _start_due(service).get(job.id):
                raise error
        except (OperatorError, OSError):
            _forget(service, jobs, job.id)
            raise
        return job


def begin_runs(service: ServiceContext, hosts: Iterable[str], who: str) -> dict[str, ServeJob | OperatorError]:
    """Starts or queues a backup of each host, with one look at the jobs. Returns, by host, the job or why there is none. After an
    error of the disk the remaining hosts are refused.
    """
    begun: dict[str, ServeJob | OperatorError] = {}
    with _start_lock():
        pool, jobs = service.pool(), service.jobs()
        jobs.thin(service.clock.now())
        unfinished = _unfinished(jobs, RUN, service.clock.now())
        disk_error: OSError | None = None
        for host in hosts:
            try:
                if disk_error:
                    raise RequestRefused(f"the job cannot be recorded: {disk_error.strerror}")
                _require_free(pool, unfinished, RUN, host, who)
                job = _recorded(service, jobs, RUN, host, who, {"host": host}, None)
            except OperatorError as error:
                begun[host] = error
            except OSError as error:
                disk_error, begun[host] = error, RequestRefused(f"the job cannot be recorded: {error.strerror}")
            else:
                unfinished.append(job)
                begun[host] = job
        not_started = _start_due(service)
    return {host: not_started.get(job.id, job) if isinstance(job, ServeJob) else job for host, job in begun.items()}


def _recorded(
    service: ServiceContext, jobs: JobStore, verb: str, host: str, who: str, arguments: Mapping[str, Any], folder: str | None
) -> ServeJob:
    """Writes the job and its request; neither of them stays after an error. Raises OSError."""
    now = service.clock.now()
    job_id = new_id(now)
    unit = unit_of(verb, service.pool_name, job_id) if service.systemd else None
    job = ServeJob(job_id, verb, host, who, format_time(now), dict(arguments), unit, since=_with_microseconds(now))
    in_place = tuple(map(str, service.in_place))
    started = format_time(now) if service.clock.start else None
    request = ServeRequest(job_id, verb, who, dict(arguments), folder, service.elsewhere, in_place, started)
    try:
        jobs.put(job)
        write_request(folder_of_requests(service), request)
    except OSError:
        _forget(service, jobs, job_id)
        raise
    return job


def _forget(service: ServiceContext, jobs: JobStore, job_id: str) -> None:
    remove_request(folder_of_requests(service), job_id)
    jobs.forget(job_id)


def require_free(service: ServiceContext, host: str, who: str) -> None:
    """Raises the same as `begin` of a backup if the host is in use, without starting anything."""
    _require_free(service.pool(), _unfinished(service.jobs(), RUN, service.clock.now()), RUN, host, who)


def start_due(service: ServiceContext) -> None:
    """Starts the backups whose turn it is. Raises OperatorError if the pool's jobs cannot be read."""
    with _start_lock():
        _start_due(service)


def cancel_waiting(service: ServiceContext, ended: ServeJob) -> bool:
    """Ends a job that waits for a slot; `ended`: its last state. Returns False if it has been started."""
    with _start_lock():
        jobs = service.jobs()
        if not jobs.get(ended.id, service.clock.now()).waits:
            return False
        remove_request(folder_of_requests(service), ended.id)
        jobs.put(ended)
        return True


@contextmanager
def _start_lock() -> Iterator[None]:
    """Locks for one thread at a time. Raises RequestRefused, of kind busy, if another thread keeps the lock: it may wait for the
    state folder.
    """
    if not _one_at_a_time.acquire(timeout=_PATIENCE):
        hint = "try again in a moment; if that does not help, check whether the state folder answers"
        raise RequestRefused(f"another job has been starting for more than {_PATIENCE:.0f} s", hint, "busy", is_public=True)
    try:
        yield
    finally:
        _one_at_a_time.release()


def _start_due(service: ServiceContext) -> dict[str, OperatorError]:
    """Starts waiting backups while slots are free. Returns, by job, the errors of those that could not be started."""
    now, jobs, requests = service.clock.now(), service.jobs(), folder_of_requests(service)
    serve_jobs, failed = list(jobs.all(now)), dict[str, OperatorError]()
    for job in serve_jobs:
        if job.over and job.called is None and job.started is None:
            remove_request(requests, job.id)  # it has waited too long
    for job in next_turns(serve_jobs, service.config().backup.concurrency):
        try:
            if not request_exists(requests, job.id):
                raise RequestRefused("the machine was restarted before a slot was free", "request the backup again", is_public=True)
            _start_process(service, jobs, job)
        except OperatorError as error:
            log.warning("%s: %s", job.id, printable(error.message))
            failed[job.id] = error
            jobs.put(replace(job, state=FAILED, error=error.message, own=isinstance(error, RequestRefused) and error.is_public))
            remove_request(requests, job.id)
    serve_jobs = [job for job in jobs.all(now) if not job.over and job.verb == RUN]
    service.queue.before = tuple(job.id for job in serve_jobs if is_started(job))
    service.queue.waits = any(job.waits for job in serve_jobs)
    service.queue.changed.set()
    return failed


def _start_process(service: ServiceContext, jobs: JobStore, job: ServeJob) -> None:
    """Starts the job's process after that is recorded, because the process may be faster. Raises OperatorError."""
    jobs.put(replace(job, called=_with_microseconds(service.clock.now())))
    if job.unit:
        run(start_command(job.unit))
    else:
        start_detached((*service.words(our_command("backupd")), "run-job", job.id))


def _with_microseconds(now: datetime) -> str:
    return now.isoformat(timespec="microseconds")


def keep_starting(service: ServiceContext) -> NoReturn:
    """Starts waiting backups when a slot is free, also those of an earlier service. A thread runs this for ever.

    Nothing is checked while nothing waits. If the jobs cannot be read (for example because the pool is not mounted), the service
    may end; if it continues, it tries again after a minute, or with the next request.
    """
    service.queue.waits = True
    while True:
        service.queue.changed.clear()
        try:
            if service.queue.waits and _has_free_slot(service):
                start_due(service)
        except (OperatorError, OSError) as error:
            log.warning("waiting backups cannot start: %s", printable(str(error)))
            with suppress(RequestRefused), _start_lock():
                service.queue.waits = service.queue.changed.is_set()  # set by a new request
            service.queue.changed.wait(_AGAIN)  # also without a new request: a hung folder may answer again
            service.queue.waits = True
        if service.queue.waits:
            time.sleep(_CHECK_EVERY)
        else:
            service.queue.changed.wait()


def _has_free_slot(service: ServiceContext) -> bool:
    """Returns True if a running job has ended, or if there was none."""
    now, jobs, before = service.clock.now(), service.jobs(), service.queue.before
    return not before or any(jobs.is_over(job_id, now) for job_id in before)


def start_command(unit: str) -> tuple[str, ...]:
    """Returns the command that makes systemd start the unit without waiting for it."""
    return ("systemctl", "start", "--no-block", "--no-ask-password", "--", unit)


def _require_preview_slot(previews: Sequence[ServeJob], host: str, who: str) -> None:
    """Raises RequestRefused, of kind busy, where one more preview would take the slots of others."""
    hint = "try again when one has ended"
    if any(job.host == host for job in previews):
        raise RequestRefused(f"a preview of {host} is running", "try again when it has ended", "busy", is_public=True)
    if sum(job.who == who for job in previews) >= PREVIEWS_OF_ONE:
        raise RequestRefused(f"{PREVIEWS_OF_ONE} previews of {who} are running", hint, "busy", is_public=True)
    if len(previews) >= PREVIEWS:
        raise RequestRefused(f"{PREVIEWS} previews are running", hint, "busy", is_public=True)


def _unfinished(jobs: JobStore, verb: str, now: datetime) -> list[ServeJob]:
    return [job for job in jobs.all(now) if not job.over and job.verb == verb]


def _require_free(pool: Pool, serve_jobs: Sequence[ServeJob], verb: str, host: str, who: str) -> None:
    if verb in CHECKS:
        _require_preview_slot(serve_jobs, host, who)
    for job in serve_jobs:
        if job.host == host and verb not in CHECKS:
            state = "waits for a slot for its backup" if job.waits else "is being backed up"
            state = state if verb == RUN else "is being restored"
            raise LockHeld(f"{host} {state} already, for {job.who} since {job.asked}", "wait until it ends")
    if verb != RUN:
        return
    if (holder := read_holder(pool.host_lock(host))) and holder.is_alive:
        raise LockHeld(
            f"{host} is locked by process {holder.pid} ({holder.what}) since {recorded_time(holder.since)}",
            "wait until it ends",
        )
    require_waiting_slot(serve_jobs, who)


PER_ASKER = 250
IN_ALL = 1000
"""Maximum number of waiting backups. Each is a file of half a kilobyte, and no process; more would be a mistake, or an attack."""
FOR_OTHERS = 100
"""The last slots of all are for users without a waiting backup: a few users with very many requests do not shut out others."""


def is_started(job: ServeJob) -> bool:
    """Returns True if it was started and has not ended: it has a process, or will have one in a moment."""
    return not job.over and not job.waits


def next_turns(jobs: Iterable[ServeJob], at_once: int) -> list[ServeJob]:
    """Returns the waiting backups to start now, in order, so that `at_once` are running.

    The next one is of the users with the fewest running backups; of these, of the user whose last start is the oldest; then the
    oldest request. So one person's hundred hosts do not delay another's single host.
    """
    runs = [job for job in jobs if job.verb == RUN]
    waiting = [job for job in runs if job.waits]
    busy = Counter(job.who for job in runs if is_started(job))
    served: dict[str, tuple[str, int]] = {}
    for job in runs:
        served[job.who] = max(served.get(job.who, ("", 0)), (job.called or "", 0))
    latest, chosen = max((moment for moment, _ in served.values()), default=""), list[ServeJob]()
    while waiting and busy.total() < at_once:
        first = min(waiting, key=lambda job: (busy[job.who], served[job.who], job.since or "", job.id))
        waiting.remove(first)
        chosen.append(first)
        busy[first.who] += 1
        served[first.who] = (latest, len(chosen))
    return chosen


def require_waiting_slot(jobs: Iterable[ServeJob], who: str) -> None:
    """Raises RequestRefused, of kind busy, if too many wait already."""
    waiting = Counter(job.who for job in jobs if job.waits)
    hint = "try again when some of them have started; on the server: backupd run --all"
    if waiting[who] >= PER_ASKER:
        raise RequestRefused(f"{PER_ASKER} backups requested by {who} wait for a slot already", hint, "busy", is_public=True)
    places = IN_ALL - FOR_OTHERS if waiting[who] else IN_ALL
    if waiting.total() >= places:
        raise RequestRefused(f"{places:,} backups wait for a slot already", hint, "busy", is_public=True)
