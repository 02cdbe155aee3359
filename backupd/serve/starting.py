"""Long or networked work is not done in the service: it is started, as a unit, or without systemd as a process of its own."""

import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.serve.ground import Ground
from backupd.serve.jobs import PREVIEW, Job, Jobs, new_id
from backupd.serve.requests import RUNTIME, Asked, leave, withdraw
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.locks import read_holder
from btrkeep.pool.marker import Pool
from btrkeep.process.programs import run
from btrkeep.process.watched import ours, start_detached
from btrkeep.serving.protocol import Refused
from btrkeep.units import format_time

PREVIEWS = 4
"""At the same time: each keeps an rsync busy, here and on its host, also when nobody waits for it any more."""
_one_at_a_time = threading.Lock()


def folder_of_requests(ground: Ground) -> Path:
    """Where requests are left."""
    return RUNTIME / ground.pool_name if ground.systemd else ground.config().pool.state / "jobs" / "asked"


def unit_of(verb: str, pool: str, job_id: str) -> str:
    """The unit that carries out a job: made of a word of ours, the pool's name and the job's, and of nothing that was asked."""
    return f"btrkeep-{'run' if verb == 'run' else 'restore'}@{pool}:{job_id}.service"


def begin(ground: Ground, verb: str, host: str, who: str, arguments: Mapping[str, Any], folder: str | None = None) -> Job:
    """Starts the work. Raises LockHeld, which says who is at work on the host already, Refused for too many
    previews, OperatorError when it cannot be started."""
    now = ground.clock.now()
    with _one_at_a_time:
        pool = ground.pool()
        jobs = Jobs(ground.config().pool.state)
        jobs.thin(now)
        _see_free(pool, jobs, verb, host, now)
        job_id = new_id(now)
        unit = unit_of(verb, ground.pool_name, job_id) if ground.systemd else None
        job = Job(job_id, verb, host, who, format_time(now), dict(arguments), unit)
        requests = folder_of_requests(ground)
        jobs.put(job)
        leave(requests, Asked(job_id, verb, who, dict(arguments), folder, format_time(now) if ground.clock.start else None))
        try:
            _start(ground, job)
        except OperatorError:
            withdraw(requests, job_id)
            jobs.forget(job_id)
            raise
        return job


def _start(ground: Ground, job: Job) -> None:
    if job.unit:
        run(start_command(job.unit))
    else:
        start_detached((*ground.words(ours("backupd")), "asked", job.id))


def start_command(unit: str) -> tuple[str, ...]:
    """Has systemd start the unit, and does not wait for it."""
    return ("systemctl", "start", "--no-block", "--no-ask-password", "--", unit)


def _see_free(pool: Pool, jobs: Jobs, verb: str, host: str, now: datetime) -> None:
    under_way = [job for job in jobs.all(now) if not job.over and job.verb == verb]
    if verb == PREVIEW and len(under_way) >= PREVIEWS:
        raise Refused(f"{PREVIEWS} previews are being worked out", "try again when one of them has ended", "busy")
    for job in under_way:
        if job.host == host and verb != PREVIEW:
            what = "is being backed up" if verb == "run" else "is being restored"
            raise LockHeld(f"{host} {what} already, for {job.who} since {job.asked}", "wait for the end of that")
    if verb == "run" and (holder := read_holder(pool.locks / f"host-{host}")) and holder.alive:
        raise LockHeld(f"{host} is locked by process {holder.pid} ({holder.what}) since {holder.since}", "wait for the end of that")
