"""`backupd run-job`: runs a job of the root service. Units call it; people call the commands themselves."""

import os
import sys
from pathlib import Path

import click

from backupd.cli.context import load_config, outlive_hung_state
from backupd.serve.commands import command_of
from backupd.serve.job_runner import PREVIEW_TAKES, carry_out
from backupd.serve.jobs import PREVIEW, RUN, RUNTIME, JobStore, take_request
from btrkeep.clock import Clock
from btrkeep.config import load_usable
from btrkeep.errors import UsageError
from btrkeep.hung_storage import require_answer
from btrkeep.process.watched import our_command
from btrkeep.units import parse_time, show_times_in


@click.command("run-job")
@click.argument("name")
@click.pass_context
def command(ctx: click.Context, name: str) -> int:
    """Run the job NAME that `backupd serve` has written down: POOL:JOB for units, JOB without systemd.

    The units btrkeep-run@POOL:JOB.service and btrkeep-restore@POOL:JOB.service call it. Its output goes to the job's log as well.
    """
    pool, _, job_id = name.rpartition(":")
    chosen = ctx.find_root().obj
    if pool:
        config, folder, words = load_usable(pool), RUNTIME / pool, ("--pool", pool)
    else:
        config = load_config(ctx)
        folder = config.pool.state / "jobs" / "asked"
        words = ("--config", str(Path(chosen["config"]).absolute())) if chosen["config"] else ("--pool", chosen["pool"])
    show_times_in(config.pool.zone)
    require_answer(config.pool.state)
    outlive_hung_state(ctx, config)  # the job and its log are there
    request = take_request(folder, job_id)
    clock = Clock(parse_time(request.now) if request.now else None)
    jobs = JobStore(config.pool.state)
    job = jobs.get(job_id, clock.now())
    if job.over:
        raise UsageError(f"the job {job_id} is over", "ask again")
    line = command_of(request, config, (*our_command("backupd"), *words))
    within = PREVIEW_TAKES if request.verb == PREVIEW else None
    return carry_out(job, jobs, line, clock, _say, speaks_json=request.verb != RUN, within=within)


def _say(data: bytes) -> None:
    """Writes to the journal. A closed output does not end the job."""
    try:
        os.write(sys.stdout.fileno(), data)
    except OSError:
        return
