"""Optional steps: those that were not finished several times in succession, and the savings of a dedupe. Pure.

A step that is stopped by its time limit, and continues from there the next time, has made progress, so it counts as done. Each step
records its result in the catalogue: drills, dedupe and balance in their own rows, the others here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from btrkeep.catalogue import KILLED, Balance, Dedupe
from btrkeep.decisions import FactWriter, parse_fact
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult, read_drills
from btrkeep.decisions.findings import WARNING, Finding
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, format_time, local_time, parse_time, printable

CHECK = "repeated"
"""The name of the findings."""
ATTEMPTS = "attempts:"
"""Start of the name of the fact with a step's newest attempts."""
TIMES = 3
_KEPT = 8
_LONGEST_TEXT = 200
_STILL_COMPARED = timedelta(days=14)  # a host that was not compared for longer was removed, or `against_source` was
_MAY_RUN = timedelta(days=7)  # an attempt that was started and has not ended may still be running


class AttemptOutcome(StrEnum):
    """`begun`: it has not ended, or was killed. `unfinished`: it ended without progress. Never renamed, because it is stored."""

    BEGUN = "begun"
    DONE = "done"
    UNFINISHED = "unfinished"
    FAILED = "failed"


class Step(StrEnum):
    """The optional steps."""

    DRILL = "drill"
    OFFSITE_CHECK = "offsite check"
    SCRUB = "scrub"
    VERIFY = "verify"
    AGAINST_SOURCE = "comparison with the host"
    DEDUPE = "dedupe"
    BALANCE = "balance"


_COMMANDS = {
    Step.DRILL: "backupd drill",
    Step.OFFSITE_CHECK: "backupd offsite check {name}",
    Step.SCRUB: "backupd scrub",
    Step.VERIFY: "backupd verify",
    Step.AGAINST_SOURCE: "backupd verify --against-source {name}",
    Step.DEDUPE: "backupd dedupe",
    Step.BALANCE: "btrfs-balancer plan --pool {pool}",
}
"""The command of each step for the pool `main`, or with its --pool."""


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """One run of a step."""

    at: datetime
    """When it started."""
    outcome: AttemptOutcome
    """How it ended."""
    text: str = ""
    """Why it was not finished; "" if it was."""


@dataclass(frozen=True, slots=True)
class StepAttempts:
    """The newest attempts of a step, the newest first. `name`: of the repository, "" for other steps."""

    step: Step
    attempts: tuple[StepAttempt, ...]
    name: str = ""

    @property
    def subject(self) -> str:
        return f"{self.step} {self.name}" if self.name else str(self.step)


@dataclass(frozen=True, slots=True)
class RepeatedFailure:
    """A step that was not finished several times in succession."""

    step: Step
    """The optional step."""
    name: str
    """The name of the repository; "" for other steps."""
    subject: str
    """The step, with that name, in the form of messages."""
    times: int
    """How many times in succession."""
    since: datetime
    """When the first of these started."""
    text: str
    """Why the last one was not finished."""


def repeated_failures(steps: Iterable[StepAttempts], now: datetime) -> tuple[RepeatedFailure, ...]:
    """Returns the steps of which the newest attempts, TIMES or more in succession, were not finished."""
    failures = []
    for step in steps:
        if step.step is Step.AGAINST_SOURCE and step.attempts and now - step.attempts[0].at > _STILL_COMPARED:
            continue
        failed = _newest_failures(step.attempts, now)
        if len(failed) >= TIMES:
            text = next((attempt.text for attempt in failed if attempt.text), "")
            failures.append(RepeatedFailure(step.step, step.name, step.subject, len(failed), failed[-1].at, text))
    return tuple(failures)


def _newest_failures(attempts: Sequence[StepAttempt], now: datetime) -> list[StepAttempt]:
    failed: list[StepAttempt] = []
    for number, attempt in enumerate(attempts):
        if attempt.outcome is AttemptOutcome.BEGUN and number == 0 and now - attempt.at < _MAY_RUN:
            continue
        if attempt.outcome is AttemptOutcome.DONE:
            break
        failed.append(attempt)
    return failed


def repeated_words(failure: RepeatedFailure) -> str:
    """Formats a repeated failure in one line."""
    why = f": {printable(failure.text)}" if failure.text else ""
    return f"{failure.subject}: did not finish {counted(failure.times, 'time')} in a row, since {local_time(failure.since)}{why}"


def repeated_object(failure: RepeatedFailure) -> dict[str, object]:
    """Returns a repeated failure as a JSON object."""
    since = format_time(failure.since)
    return {
        "step": str(failure.step),
        "name": failure.name or None,
        "times": failure.times,
        "since": since,
        "why": failure.text or None,
    }


def repeated_hint(failure: RepeatedFailure, command: str) -> str:
    """Returns what to do. `command`: the command line of `backupd` for this pool."""
    options = command.removeprefix("backupd").strip() or "--pool main"
    typed = _COMMANDS[failure.step].replace("backupd", command, 1).replace("--pool {pool}", options).replace("{name}", failure.name)
    longer = "; give it more time ([drill] time) or a smaller sample" if failure.step is Step.DRILL else ""
    return f"run it manually to see why it ends: {typed}{longer}"


def repeated_findings(failures: Iterable[RepeatedFailure], command: str) -> list[Finding]:
    """Returns the findings for `check`, `doctor` and `status`."""
    return [
        Finding(CHECK, WARNING, repeated_words(failure), repeated_hint(failure, command), subject=failure.subject)
        for failure in failures
    ]


class StepFacts(Protocol):
    """The catalogue, as far as it is needed here."""

    def facts(self, beginning: str) -> Mapping[str, str]: ...
    def dedupes(self, limit: int) -> list[Dedupe]: ...
    def balances(self, filesystem: str, limit: int) -> list[Balance]: ...


def read_steps(catalogue: StepFacts, filesystem: str | None) -> list[StepAttempts]:
    """Returns the attempts of all steps. `filesystem`: the pool's UUID; None if it is unknown, which means that the balances are
    unknown, too.
    """
    attempts = [StepAttempts(Step.DRILL, _of_drills(read_drills(catalogue)))]
    attempts.append(StepAttempts(Step.DEDUPE, tuple(filter(None, map(_of_dedupe, catalogue.dedupes(_KEPT))))))
    if filesystem:
        attempts.append(StepAttempts(Step.BALANCE, tuple(filter(None, map(_of_balance, catalogue.balances(filesystem, _KEPT))))))
    for key, text in catalogue.facts(ATTEMPTS).items():
        step, _, name = key.removeprefix(ATTEMPTS).partition(":")
        with suppress(ValueError):  # written by a newer version
            attempts.append(StepAttempts(Step(step), _attempts(text), name))
    return attempts


def _of_drills(drills: Mapping[str, Sequence[DrillResult]]) -> tuple[StepAttempt, ...]:
    """A drill that failed is finished: it has its own alarm."""
    every = [drill for host in drills.values() for drill in host if drill.kind is DrillKind.RESTORE]
    every.sort(key=lambda drill: drill.at, reverse=True)
    return tuple(
        StepAttempt(drill.at, AttemptOutcome.UNFINISHED, f"{drill.host}@{drill.backup}: {drill.text}"[:_LONGEST_TEXT])
        if drill.outcome is DrillOutcome.UNFINISHED
        else StepAttempt(drill.at, AttemptOutcome.DONE)
        for drill in every
    )


def _of_dedupe(dedupe: Dedupe) -> StepAttempt | None:
    if dedupe.outcome is None:
        return None
    if dedupe.outcome in ("failed", "killed"):
        return StepAttempt(dedupe.started, AttemptOutcome.FAILED, dedupe.outcome)
    came_forward = dedupe.outcome == "complete" or dedupe.backups > 0 or dedupe.read_bytes > 0
    return StepAttempt(dedupe.started, AttemptOutcome.DONE if came_forward else AttemptOutcome.UNFINISHED, dedupe.outcome)


def _of_balance(balance: Balance) -> StepAttempt | None:
    if balance.outcome is None:
        return None
    text = (balance.why or balance.outcome)[:_LONGEST_TEXT]
    if balance.outcome in ("failed", "killed"):
        return StepAttempt(balance.started, AttemptOutcome.FAILED, text)
    came_forward = balance.block_groups > 0 or balance.outcome in ("done", "budget", "window", "stopped", "time")
    return StepAttempt(balance.started, AttemptOutcome.DONE if came_forward else AttemptOutcome.UNFINISHED, text)


def note_attempt(facts: FactWriter, step: Step, attempt: StepAttempt, name: str = "") -> None:
    """Records an attempt; the record of its end replaces that of its start."""
    key = f"{ATTEMPTS}{step}:{name}"
    before = [earlier for earlier in _attempts(facts.get_fact(key)) if earlier.at != attempt.at]
    kept = [StepAttempt(attempt.at, attempt.outcome, attempt.text[:_LONGEST_TEXT]), *before][:_KEPT]
    facts.set_fact(
        key,
        json.dumps(
            [
                {"at": format_time(step_attempt.at), "outcome": step_attempt.outcome, "text": step_attempt.text}
                for step_attempt in kept
            ]
        ),
    )


def _attempts(text: str | None) -> tuple[StepAttempt, ...]:
    def parse(entries: list[dict[str, Any]]) -> tuple[StepAttempt, ...]:
        return tuple(
            StepAttempt(parse_time(entry["at"]), AttemptOutcome(entry["outcome"]), str(entry.get("text", ""))) for entry in entries
        )

    return parse_fact(text, parse, ())


@dataclass(slots=True)
class RunningAttempt:
    """An attempt in progress, which the step completes."""

    outcome: AttemptOutcome = AttemptOutcome.UNFINISHED
    """How it ended; UNFINISHED until then."""
    text: str = ""
    """Why it was not finished."""

    def end(self, outcome: AttemptOutcome, text: str = "") -> None:
        self.outcome, self.text = outcome, text


@contextmanager
def noted_attempt(facts: FactWriter, step: Step, now: datetime, name: str = "") -> Iterator[RunningAttempt]:
    """Records the start of the step, and its result at the end: unfinished, unless `end` was called. A catalogue that cannot be
    written does not stop the step.
    """
    now = now.replace(microsecond=0)
    running = RunningAttempt()
    with suppress(OperatorError):
        note_attempt(facts, step, StepAttempt(now, AttemptOutcome.BEGUN), name)
    try:
        yield running
    except OperatorError as error:
        running.end(AttemptOutcome.FAILED, error.message)
        raise
    finally:
        with suppress(OperatorError):
            note_attempt(facts, step, StepAttempt(now, running.outcome, running.text), name)


def dedupe_words(dedupe: Dedupe, *, with_outcome: bool = True) -> str:
    """Formats the result of a dedupe: "complete: 4.5 MiB of 12 files shared; 3 MiB less of data, 1 MiB more of metadata in use"."""
    parts = [f"{format_size(dedupe.shared_bytes)} of {counted(dedupe.files, 'file')} shared"]
    if dedupe.data_saved is not None and dedupe.metadata_added is not None:
        parts.append(f"{_more(-dedupe.data_saved)} of data, {_more(dedupe.metadata_added)} of metadata in use")
    if dedupe.left_out:
        parts.append(f"{counted(dedupe.left_out, 'backup')} skipped")
    summary = "; ".join(parts)
    return f"{dedupe.outcome or KILLED}: {summary}" if with_outcome else summary


def _more(number: int) -> str:
    return f"{format_size(abs(number))} {'more' if number > 0 else 'less'}"
