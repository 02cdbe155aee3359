"""`backupd run-job`: runs one job of the root service, and records its output and its result.

Units call it; people call the commands themselves.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from backupd.cli.command_context import load_config, outlive_hung_state
from backupd.serve.commands import command_of
from backupd.serve.jobs import DONE, FAILED, PREVIEW, REACH, RUN, RUNNING, RUNTIME, JobStore, ServeJob, claim_request
from btrkeep.clock import Clock
from btrkeep.config import load_usable
from btrkeep.errors import ERRORS_VARIABLE, Exit, ReportedError, UsageError, first_reported
from btrkeep.hung_storage import require_answer
from btrkeep.process.group import Group
from btrkeep.process.proc import start_time
from btrkeep.process.programs import environment, our_command
from btrkeep.process.progress import Status
from btrkeep.units import format_duration, format_time, parse_time, printable, show_times_in


@click.command("run-job")
@click.argument("name")
@click.pass_context
def command(ctx: click.Context, name: str) -> int:
    """Run the job NAME that `backupd serve` has recorded: POOL:JOB for units, JOB without systemd.

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
    outlive_hung_state(ctx, config)  # the state folder has the job and its log
    request = claim_request(folder, job_id)
    clock = Clock(parse_time(request.now) if request.now else None)
    jobs = JobStore(config.pool.state)
    job = jobs.get(job_id, clock.now())
    if job.over:
        raise UsageError(f"the job {job_id} has ended already", "request a new job")
    line = command_of(request, config, (*our_command("backupd"), *words))
    within = {PREVIEW: PREVIEW_TAKES, REACH: REACH_TAKES}.get(request.verb)
    return carry_out(job, jobs, line, clock, _say, speaks_json=request.verb != RUN, within=within)


def _say(data: bytes) -> None:
    """Writes to the journal. A closed output does not end the job."""
    try:
        os.write(sys.stdout.fileno(), data)
    except OSError:
        return


LONGEST_LOG = 1 << 20
LONGEST_RESULT = 2 << 20
PREVIEW_TAKES = 600.0
"""Maximum seconds: a later result is useless, and a host may delay it for ever."""
REACH_TAKES = 60.0
"""Maximum seconds of a check whether a host allows a restore, for which a page waits."""
_STARTED_BY_HAND = ("PYTHONPATH",)


class Log:
    """A job's output in a file of limited size: of long output, the end."""

    def __init__(self, path: Path, longest: int = LONGEST_LOG) -> None:
        self._path, self._longest = path, longest
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "wb")

    def write(self, data: bytes) -> None:
        """Appends to the log."""
        self._file.write(data)
        self._file.flush()
        if self._file.tell() > self._longest:
            kept = self._path.read_bytes()[-self._longest // 2 :]
            self._file.seek(0)
            self._file.truncate()
            self._file.write(kept[kept.find(b"\n") + 1 :])

    def close(self) -> None:
        """Closes the log."""
        self._file.close()


def carry_out(
    job: ServeJob,
    jobs: JobStore,
    command: Sequence[str],
    clock: Clock,
    say: Callable[[bytes], None],
    *,
    speaks_json: bool,
    within: float | None = None,
    grace: float = 30.0,
) -> int:
    """Runs the command to its end and returns its exit status. SIGTERM and SIGINT are passed on to it.

    `speaks_json`: its standard output is its result; everything else goes to the log. `within`: seconds after which it is ended in
    the same way as by a stop; processes that remain after `grace` more seconds are killed.
    """
    running = replace(job, state=RUNNING, started=format_time(clock.now()), pid=os.getpid(), pid_started=start_time(os.getpid()))
    jobs.put(running)
    log, status = Log(jobs.log(job.id)), Status()
    last = [b""]

    result = bytearray()

    def printed(data: bytes) -> None:
        if speaks_json and len(result) < LONGEST_RESULT:
            result.extend(data)
        elif not speaks_json:
            write_error(data)

    def write_error(data: bytes) -> None:
        log.write(data)
        say(data)
        if lines := data.strip().splitlines():
            last[0] = lines[-1]
            status.go_on(lambda: printable(last[0]))

    with tempfile.TemporaryFile() as errors:
        try:
            code, late = asyncio.run(_run(command, printed, write_error, errors.fileno(), within, grace))
        finally:
            log.close()
        error = None if code == Exit.OK else _error(jobs, job, code, first_reported(errors))
    stopped = (jobs.stopped_by(os.getpid(), running.pid_started or "") or None) if error else None
    if stopped:
        error = f"stopped by {stopped}"
    elif error and late:
        error = f"the job took longer than {format_duration(within)}, and was stopped"
    ended = replace(running, state=FAILED if error else DONE, finished=format_time(clock.now()), exit=code, error=error)
    jobs.put(replace(ended, own=bool(stopped or (error and late)), stopped=stopped, result=_json(result)))
    return code


def _json(output: bytes | bytearray) -> Any:
    """Returns None if the output is not JSON: the command may have failed before it printed any."""
    try:
        return json.loads(output)
    except ValueError:
        return None


async def _run(
    command: Sequence[str],
    printed: Callable[[bytes], None],
    on_error: Callable[[bytes], None],
    errors: int,
    within: float | None,
    grace: float,
) -> tuple[int, bool]:
    """Returns the exit status, and whether the command took longer than `within`."""
    kept = {name: os.environ[name] for name in _STARTED_BY_HAND if name in os.environ}
    variables = environment({**kept, ERRORS_VARIABLE: str(errors)})
    group = Group.start(command, on_stdout=printed, on_stderr=on_error, keep_open=(errors,), env=variables)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _pass_on, group, number)
    ending = [] if within is None else [loop.call_later(within, _pass_on, group, signal.SIGTERM)]
    if within is not None:
        ending.append(loop.call_later(within + grace, group.signal, signal.SIGKILL))
    begun = loop.time()
    try:
        code = await group.wait()
    finally:
        for timer in ending:
            timer.cancel()
    late = within is not None and loop.time() - begun >= within
    return 128 - code if code < 0 else code, late


def _pass_on(group: Group, number: signal.Signals) -> None:
    """Sends a signal only to the command, which ends its children cleanly."""
    if group.running:
        os.kill(group.pid, number)


def _error(jobs: JobStore, job: ServeJob, code: int, reported: ReportedError | None) -> str:
    """Returns the first error that the command reported, in one line; otherwise the last line of its output."""
    lines = [line for line in jobs.last_lines(job.id, 200) if line.strip()]
    error_lines = reported.message.splitlines() if reported else lines[-1:]
    return printable(error_lines[0] if error_lines else f"exit status {code}")
