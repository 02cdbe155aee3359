"""Past runs of hosts, by host, outcome and time: as `backupd log` has them, newest first, a page at a time."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from btrkeep.catalogue import KILLED, RUN_OUTCOMES, Catalogue, PastRuns, Run
from btrkeep.decisions.rsync_meaning import exit_words
from btrkeep.serving.places import AnswerSize
from btrkeep.units import seconds_between
from web.redaction import host_error, host_line
from web.running import is_alive
from web.same_names import of_row

OUTCOMES = (*RUN_OUTCOMES, "unfinished")
"""Filters for runs; unfinished: running and killed ones."""
PAGE = 50


@dataclass(frozen=True, slots=True)
class LogRun:
    """One attempt to back up one host, and rsync's output. Text from the host is unchanged: display it with `shown`."""

    id: int
    host: str
    started: datetime
    finished: datetime | None
    seconds: float | None
    outcome: str
    """One of RUN_OUTCOMES, or running, or killed."""
    backup: str | None
    night: bool
    attempts: int
    exit_code: int | None
    """rsync's exit code; negative for a signal; None if rsync did not run."""
    meaning: str | None
    error: str | None
    last_lines: tuple[str, ...]
    literal_bytes: int | None
    matched_bytes: int | None
    received_bytes: int | None
    rsync_version: str | None
    protocol: int | None


@dataclass(frozen=True, slots=True)
class LogPage:
    """`older`: before which id the next page begins; None: this is the last one."""

    runs: tuple[LogRun, ...]
    older: int | None


def log_page(catalogue: Catalogue, wanted: PastRuns, now: datetime, limit: int = PAGE) -> LogPage:
    """Returns one page of the selected runs."""
    found = catalogue.past_runs(wanted, limit + 1)
    size = AnswerSize()  # rsync's output is the host's
    runs = tuple(takewhile(lambda run: size.take([run.error, *run.last_lines]), (log_run(run, now) for run in found[:limit])))
    return LogPage(runs, runs[-1].id if len(found) > len(runs) else None)


def wanted_runs(
    hosts: Collection[str] | None, host: str | None, outcome: str | None, since: datetime | None, before: int | None
) -> PastRuns:
    """Returns the filter. `hosts`: those that the viewer may see, None: all; `host`: the requested one."""
    seen = hosts if host is None else {host} if hosts is None or host in hosts else set[str]()
    outcomes = () if outcome is None else ("" if outcome == "unfinished" else outcome,)
    return replace(PastRuns(), hosts=seen, outcomes=outcomes, since=since, before=before)


def log_run(run: Run, now: datetime) -> LogRun:
    """Returns a run as it is shown."""
    return as_shown(run, run.finished is None and is_alive(run.pid, run.pid_started, run.started, now))


def as_shown(run: Run, runs: bool) -> LogRun:
    """Returns the run as the viewer may read it; `runs`: whether it is still running, if it has no outcome."""
    return of_row(
        LogRun,
        run,
        seconds=seconds_between(run.started, run.finished),
        outcome=KILLED if run.killed else run.outcome or ("running" if runs else KILLED),
        meaning=exit_words(run.meaning, run.exit_code) if run.meaning else None,
        error=host_error(run.error, run.cause, run.host),
        last_lines=tuple(host_line(line, run.host) for line in run.last_lines),
    )
