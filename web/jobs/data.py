"""All jobs: nights, backups started by hand, expiries, balances, dedupes, and activity of the kernel. Newest first.

The root service reports the jobs that the dashboard started as systemd units; `requested_job` converts its
answer to the same types.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from btrkeep.catalogue import KILLED, Catalogue, Dedupe, Night, PastRuns, Run
from btrkeep.catalogue.model_pool import JOBS
from btrkeep.decisions.cause_words import short_cause
from btrkeep.decisions.day_phases import phases
from btrkeep.decisions.findings import WARNING
from btrkeep.decisions.overall import night_level
from btrkeep.decisions.repeated import dedupe_words
from btrkeep.units import counted, format_size, parse_size, parse_time, seconds_between
from web.jobs.file_counts import CountRow, count_row
from web.log import LogPage, LogRun, log_run, page_of
from web.pool.balance import balances
from web.pool.expiry import expiries
from web.running import is_alive

KINDS = {
    "night": "nights",
    "backup": "manual backups",
    "expire": "expiries",
    "balance": "balances",
    "dedupe": "dedupes",
    "kernel": "scrubs and others",
}
DAYS = {3: "three days", 14: "two weeks", 60: "two months", 366: "a year"}
USUAL = 14
LIMIT = 400
_RUNS_A_DAY, _MOST_RUNS = 4000, 100_000
_ID = re.compile(r"(night|backup|expire|balance)-(\d{1,15})", re.ASCII)
_NAMED = 5  # hosts of a cause
_MOST_POOR = 10_000  # runs of a night
_GOOD = ("complete", "skipped")


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job."""

    id: str | None
    """The id of its page; null: it has none."""
    kind: str
    """The kind of job."""
    title: str
    """Its name on the page."""
    state: str
    """Its outcome, or running, or killed."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; null: it has not."""
    seconds: float | None
    """How long it took; null: it has not ended."""
    about: str
    """The result in words."""


@dataclass(frozen=True, slots=True)
class NightCause:
    """Runs of a night that are not complete for the same cause."""

    cause: str
    """Why, in the words under which runs are grouped."""
    count: int
    """Number of runs."""
    hosts: tuple[str, ...]
    """The first hosts."""


@dataclass(frozen=True, slots=True)
class NightView:
    """A night."""

    row: JobRow
    """The job."""
    outcomes: Mapping[str, int]
    """Number of runs by outcome."""
    literal_bytes: int
    """Bytes of new data of all runs."""
    poor: LogPage
    """A page of the runs that are not complete."""
    causes: tuple[NightCause, ...]
    """Why they are not, the most frequent cause first."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a waiting backup."""

    places: int
    """Number of slots for requested backups."""
    taken: int
    """Number of slots in use."""
    waiting: int
    """Number of other backups that wait."""


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """How far a restore is."""

    share: float | None
    """0 to 1; None: unknown."""
    words: str
    """Its files, bytes, rate and time left."""


_PROGRESS = re.compile(r"(?:writing|comparing): ([\d,]+) of ([\d,]+) names?(?:, ([\d.]+ \w+) of ([\d.]+ \w+))?(?:, .*)?", re.ASCII)


def progress_bar(line: str) -> ProgressBar | None:
    """Parses a line that `backupd restore --progress-lines` printed; None for any other line."""
    if line.startswith(("scanning: ", "waiting until all data")):
        return ProgressBar(None, line)
    match = _PROGRESS.fullmatch(line)
    if not match:
        return None
    sizes = [parse_size(size.replace(" ", "")) for size in match.groups()[2:] if size]
    done, total = sizes or [int(number.replace(",", "")) for number in match.groups()[:2]]
    return ProgressBar(min(1.0, done / total) if total else None, line)


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job that the root service started or queued."""

    id: str
    """Its id."""
    verb: str
    """The verb of the root service."""
    host: str
    """The host's name."""
    who: str
    """The user who requested it."""
    state: str
    """queued, running, done or failed."""
    asked: datetime | None
    """When it was requested; null: unknown."""
    started: datetime | None
    """When it started; null: it waits."""
    finished: datetime | None
    """When it ended; null: it has not."""
    seconds: float | None
    """How long it took; null: it has not ended."""
    backup: str | None
    """The backup's name; null: it concerns none."""
    paths: tuple[str, ...]
    """The paths of a restore."""
    to: str | None
    """The destination of a restore; null: another job."""
    overwrite: str | None
    """What a restore may overwrite; null: another job."""
    lines: tuple[str, ...]
    """The last lines of its output."""
    exit: int | None
    """Its exit status; null: it has not ended, or it is not known."""
    error: str | None
    """Why it failed; null: it did not."""
    queue: QueuePosition | None = None
    """The position of a waiting backup; null: it does not wait, or the user may not see other jobs."""
    stopped: str | None = None
    """The user who stopped it; null: it was not stopped."""
    summary: str | None = None
    """The result of a restore in one sentence; null: it has none."""
    files: Mapping[str, CountRow] | None = None
    """The result of a restore: numbers of files and some of them, by what was done; null: it has none, or this is a list."""

    @property
    def is_over(self) -> bool:
        """Returns True if it has ended, successfully or not."""
        return self.state in ("done", "failed")

    @property
    def outcome(self) -> str:
        """Returns its state in a word for people: a job that was stopped did not fail."""
        return "stopped" if self.stopped and self.is_over else self.state

    @property
    def progress(self) -> ProgressBar | None:
        """Returns how far a restore is, from the last line of its output; None if that is unknown."""
        return None if self.is_over or not self.lines else progress_bar(self.lines[-1])

    @property
    def title(self) -> str:
        """Returns a description of the job in a few words."""
        return f"{'backup' if self.verb == 'run' else self.verb} of {self.host}"


def parse_id(text: str) -> tuple[str, int] | None:
    """Parses the kind and number of a job of the catalogue; None if the id has another form."""
    match = _ID.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def jobs(
    catalogue: Catalogue, filesystem: str | None, now: datetime, days: int, kinds: Collection[str], red: float
) -> tuple[JobRow, ...]:
    """Returns all jobs of that many days, at most LIMIT of each kind. `red`: see `night_row`."""
    since = now - timedelta(days=days)
    wanted = tuple(kind for kind in KINDS if not kinds or kind in kinds)
    job_rows = [row for kind in wanted for row in _of_kind(kind, catalogue, filesystem, now, since, red)]
    return tuple(sorted(job_rows, key=lambda row: row.started, reverse=True))


def _of_kind(
    kind: str, catalogue: Catalogue, filesystem: str | None, now: datetime, since: datetime, red: float
) -> Iterator[JobRow]:
    if kind == "night":
        yield from (night_row(night, now, red) for night in catalogue.nights(_among(now, since)) if night.started >= since)
    elif kind == "backup":
        yield from by_hand(catalogue, None, now, since)
    elif kind == "expire":
        yield from (_expiry(expiry) for expiry in expiries(catalogue, now, LIMIT) if expiry.started >= since)
    elif kind == "dedupe":
        yield from (_dedupe(dedupe, now) for dedupe in catalogue.dedupes(LIMIT) if dedupe.started >= since)
    elif filesystem and kind == "balance":
        yield from (_balance(balance) for balance in balances(catalogue, filesystem, now, LIMIT) if balance.started >= since)
    elif filesystem and kind == "kernel":
        yield from _kernel(catalogue, filesystem, since, now)


def _among(now: datetime, since: datetime) -> int:
    """Returns how many runs to read for all nights since then, and one more night, in a pool of some thousand hosts."""
    return min(_MOST_RUNS, _RUNS_A_DAY * ((now - since).days + 1))


def by_hand(catalogue: Catalogue, hosts: Collection[str] | None, now: datetime, since: datetime) -> Iterator[JobRow]:
    """Yields the backups of single hosts that did not belong to a night. `hosts`: of these, None: all."""
    for run in catalogue.past_runs(PastRuns(hosts=hosts, since=since, night=False), LIMIT):
        yield run_row(log_run(run, now))


def run_row(run: LogRun) -> JobRow:
    """Returns a run of one host as a job."""
    new = f"{format_size(run.literal_bytes)} new" if run.literal_bytes else ""
    error = run.error or (f"rsync {run.exit_code}: {run.meaning}" if run.exit_code else "")
    about = ", ".join(part for part in (new, error) if part)
    return JobRow(f"backup-{run.id}", "backup", f"backup of {run.host}", run.outcome, run.started, run.finished, run.seconds, about)


def night_row(night: Night, now: datetime, red: float) -> JobRow:
    """Returns a night as a job. `red`: the share of hosts that are not complete from which it counts as failed."""
    heard = night.finished or now
    state = _night_state(night, red, is_runs=bool(night.outcomes.get("")) and is_alive(night.pid, night.pid_started, heard, now))
    return JobRow(
        f"night-{night.first_run}",
        "night",
        f"night, {counted(night.runs, 'host')}",
        state,
        night.started,
        night.finished,
        seconds_between(night.started, night.finished),
        ", ".join((*_outcome_words(night.outcomes), f"{format_size(night.literal_bytes)} new")),
    )


def _night_state(night: Night, red: float, *, is_runs: bool) -> str:
    """Returns "complete" if all hosts are, "mostly" if few are not, otherwise the state of the worst host."""
    if is_runs or night.outcomes.get(""):
        return "running" if is_runs else "killed"
    worst = next((bad for bad in ("failed", "suspect", "partial") if night.outcomes.get(bad)), "complete")
    poor = night.runs - sum(night.outcomes.get(outcome, 0) for outcome in _GOOD)
    return "mostly" if worst != "complete" and night_level(poor, night.runs, red) == WARNING else worst


def _outcome_words(outcomes: Mapping[str, int]) -> list[str]:
    order = ("complete", "suspect", "failed", "partial", "skipped", "")
    return [f"{outcomes[outcome]:,} {outcome or 'unfinished'}" for outcome in order if outcomes.get(outcome)]


def _expiry(expiry: Any) -> JobRow:
    parts = [f"{expiry.deleted:,} of {expiry.planned:,} deleted", f"{expiry.marked:,} marked"]
    parts += [f"{counted(expiry.left_out, 'host')} skipped"] if expiry.left_out else []
    parts += [expiry.error] if expiry.error else [f"paused: {expiry.paused}"] if expiry.paused else []
    return JobRow(
        f"expire-{expiry.id}", "expire", "expiry", expiry.state, expiry.started, expiry.finished, expiry.seconds, ", ".join(parts)
    )


def _balance(balance: Any) -> JobRow:
    ratio = f", amplification {balance.amplification:.1f}" if balance.amplification is not None else ""
    about = f"{counted(balance.block_groups, 'block group')}, {format_size(balance.moved)} moved{ratio}"
    return JobRow(
        f"balance-{balance.id}", "balance", "balance", balance.state, balance.started, balance.finished, balance.seconds, about
    )


def _dedupe(dedupe: Dedupe, now: datetime) -> JobRow:
    runs = dedupe.finished is None and is_alive(dedupe.pid, dedupe.pid_started, dedupe.updated, now)
    state = dedupe.outcome or ("running" if runs else KILLED)
    seconds = seconds_between(dedupe.started, dedupe.finished or dedupe.updated)
    return JobRow(
        None, "dedupe", "dedupe", state, dedupe.started, dedupe.finished, seconds, dedupe_words(dedupe, with_outcome=False)
    )


def _kernel(catalogue: Catalogue, filesystem: str, since: datetime, now: datetime) -> Iterator[JobRow]:
    """Yields the activity of the kernel in the samples that is not a job of btrkeep: scrubs, a device being replaced."""
    samples = catalogue.sample_marks(filesystem, since, now + timedelta(seconds=1))
    for phase in phases((), samples, since, now):
        if phase.kind not in JOBS:
            took = (phase.end - phase.start).total_seconds()
            runs = bool(samples) and phase.end == samples[-1].taken
            about = "seen in samples; its start and end are only as exact as the time between two samples"
            yield JobRow(
                None, "kernel", phase.kind, "running" if runs else "done", phase.start, None if runs else phase.end, took, about
            )


def night_view(
    catalogue: Catalogue, first_run: int, now: datetime, before: int | None, red: float, cause: str = ""
) -> NightView | None:
    """Returns the night that this run started; None if there is none. `cause`: only runs with this cause are on the page."""
    night = catalogue.night(first_run)
    if night is None:
        return None
    ids = (night.first_run, night.last_run)
    poor = ("", *(outcome for outcome in night.outcomes if outcome not in _GOOD))
    runs = catalogue.past_runs(PastRuns(outcomes=poor, process=(night.pid, night.pid_started), ids=ids), _MOST_POOR)
    hosts: dict[str, list[str]] = {}
    for run in runs:
        hosts.setdefault(_cause_of(run), []).append(run.host)
    causes = sorted((NightCause(words, len(names), tuple(sorted(names)[:_NAMED])) for words, names in hosts.items()), key=_rank)
    chosen = [run for run in runs if (before is None or run.id < before) and (not cause or _cause_of(run) == cause)]
    return NightView(night_row(night, now, red), night.outcomes, night.literal_bytes, page_of(chosen, now), tuple(causes))


def _cause_of(run: Run) -> str:
    words = short_cause(run.error, run.cause, run.host)
    return words or (f"{run.outcome}, no reason is recorded" if run.outcome else "without a recorded end")


def _rank(cause: NightCause) -> tuple[int, str]:
    return -cause.count, cause.cause


def requested_job(job_fields: Mapping[str, Any]) -> RequestedJob:
    """Converts a job in the root service's answer to `job` or to `jobs`."""
    started, finished = _moment(job_fields.get("started")), _moment(job_fields.get("finished"))
    arguments = job_fields.get("arguments")
    given: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    return RequestedJob(
        str(job_fields.get("job", "")),
        str(job_fields.get("verb", "")),
        str(job_fields.get("host", "")),
        str(job_fields.get("who", "")),
        str(job_fields.get("state", "")),
        _moment(job_fields.get("asked")),
        started,
        finished,
        seconds_between(started, finished),
        _text(given.get("backup")),
        tuple(str(path) for path in _list(given.get("paths"))),
        _text(given.get("to")),
        _text(given.get("overwrite")),
        tuple(str(line) for line in _list(job_fields.get("lines"))),
        job_fields["exit"] if isinstance(job_fields.get("exit"), int) else None,
        _text(job_fields.get("error")),
        _queue(job_fields.get("queue")),
        _text(job_fields.get("stopped")),
        _text(job_fields.get("summary")),
        _restored_files(job_fields.get("result")) if job_fields.get("verb") == "restore" else None,
    )


def _queue(value: object) -> QueuePosition | None:
    if not isinstance(value, Mapping):
        return None
    numbers = [number for number in map(value.get, ("places", "taken", "waiting")) if isinstance(number, int)]
    return QueuePosition(*numbers) if len(numbers) == len(fields(QueuePosition)) else None


_RESULTS = ("problems", "differences", "overwritten", "new", "kept")


def _restored_files(result: object) -> dict[str, CountRow] | None:
    """Returns what a restore did with files, without those that are the same."""
    if not isinstance(result, Mapping):
        return None
    counts = {name: result[name] for name in _RESULTS if isinstance(result.get(name), Mapping)}
    return {name: count_row(count) for name, count in counts.items() if count.get("count")}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _moment(value: object) -> datetime | None:
    return parse_time(value) if isinstance(value, str) and value else None
