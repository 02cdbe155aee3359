"""Runs one job of the service: starts its command, and records its output and how it ends."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backupd.serve.jobs import DONE, FAILED, RUNNING, JobStore, ServeJob
from btrkeep.clock import Clock
from btrkeep.errors import Exit
from btrkeep.process.error_report import VARIABLE, ReportedError, first_reported
from btrkeep.process.group import Group
from btrkeep.process.proc import start_time
from btrkeep.process.programs import environment
from btrkeep.process.progress import Status
from btrkeep.units import format_duration, format_time, printable

LONGEST_LOG = 1 << 20
LONGEST_RESULT = 2 << 20
PREVIEW_TAKES = 600.0
"""Seconds at the most: nobody looks at one that comes later, and a host may keep it waiting for good."""
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

    `speaks_json`: its standard output is its result; all else goes to the log. `within`: seconds after which it is
    ended, as by a stop; what is there still after `grace` seconds more is killed.
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
            said(data)

    def said(data: bytes) -> None:
        log.write(data)
        say(data)
        if lines := data.strip().splitlines():
            last[0] = lines[-1]
            status.go_on(lambda: printable(last[0]))

    with tempfile.TemporaryFile() as errors:
        try:
            code, late = asyncio.run(_run(command, printed, said, errors.fileno(), within, grace))
        finally:
            log.close()
        error = None if code == Exit.OK else _error(jobs, job, code, first_reported(errors))
    if error and late:
        error = f"it took longer than {format_duration(within)}, and was ended"
    ended = replace(running, state=FAILED if error else DONE, finished=format_time(clock.now()), exit=code, error=error)
    jobs.put(replace(ended, own=bool(error and late), result=_json(result)))
    return code


def _json(said: bytes | bytearray) -> Any:
    """Returns None if the output is no JSON: the command may have failed before."""
    try:
        return json.loads(said)
    except ValueError:
        return None


async def _run(
    command: Sequence[str],
    printed: Callable[[bytes], None],
    said: Callable[[bytes], None],
    errors: int,
    within: float | None,
    grace: float,
) -> tuple[int, bool]:
    """Returns the exit status, and whether the time was up."""
    kept = {name: os.environ[name] for name in _STARTED_BY_HAND if name in os.environ}
    variables = environment({**kept, VARIABLE: str(errors)})
    group = Group.start(command, on_stdout=printed, on_stderr=said, keep_open=(errors,), env=variables)
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
    """Sends a signal to the command alone, which ends its children cleanly."""
    if group.running:
        os.kill(group.pid, number)


def _error(jobs: JobStore, job: ServeJob, code: int, reported: ReportedError | None) -> str:
    """The first error that it reported, in one line; else the last line that it said."""
    lines = [line for line in jobs.last_lines(job.id, 200) if line.strip()]
    said = reported.message.splitlines() if reported else lines[-1:]
    return printable(said[0] if said else f"exit status {code}")
