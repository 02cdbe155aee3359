"""`backupd asked`: carries out what somebody asked the root service for. Units call it; people call the commands themselves."""

import os
import sys
from pathlib import Path

import click

from backupd.cli.context import load_config
from backupd.serve.commands import command_of
from backupd.serve.job_runner import PREVIEW_TAKES, carry_out
from backupd.serve.jobs import PREVIEW, JobStore
from backupd.serve.requests import RUNTIME, take
from btrkeep.clock import Clock
from btrkeep.config import load
from btrkeep.errors import UsageError
from btrkeep.process.watched import ours
from btrkeep.units import parse_time


@click.command("asked")
@click.argument("name")
@click.pass_context
def command(ctx: click.Context, name: str) -> int:
    """Carry out the request NAME that `backupd serve` left: POOL:JOB for units, JOB without systemd.

    The unit btrkeep-run@POOL:JOB.service calls it, and so does btrkeep-restore@. What it says goes to the job's log as well.
    """
    pool, _, job_id = name.rpartition(":")
    chosen = ctx.find_root().obj
    if pool:
        config, folder, words = load(pool), RUNTIME / pool, ("--pool", pool)
    else:
        config = load_config(ctx)
        folder = config.pool.state / "jobs" / "asked"
        words = ("--config", str(Path(chosen["config"]).absolute())) if chosen["config"] else ("--pool", chosen["pool"])
    asked = take(folder, job_id)
    clock = Clock(parse_time(asked.now) if asked.now else None)
    jobs = JobStore(config.pool.state)
    job = jobs.get(job_id, clock.now())
    if job.over:
        raise UsageError(f"the job {job_id} is over", "ask again")
    line = command_of(asked, config, (*ours("backupd"), *words))
    within = PREVIEW_TAKES if asked.verb == PREVIEW else None
    return carry_out(job, jobs, line, clock, _say, speaks_json=asked.verb != "run", within=within)


def _say(data: bytes) -> None:
    """For the journal. That nobody listens ends nothing."""
    try:
        os.write(sys.stdout.fileno(), data)
    except OSError:
        return
