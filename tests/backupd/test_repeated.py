"""An optional step that is interrupted again and again is a finding and an alarm."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.decisions.drills import DrillOutcome, DrillResult, note_drill
from btrkeep.decisions.repeated import (
    AttemptOutcome,
    Step,
    StepAttempt,
    StepAttempts,
    note_attempt,
    noted_attempt,
    read_steps,
    repeated_failures,
    repeated_hint,
)
from btrkeep.errors import OperatorError
from tests.beds.within import Within

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
LETTERS = {"b": AttemptOutcome.BEGUN, "d": AttemptOutcome.DONE, "u": AttemptOutcome.UNFINISHED, "f": AttemptOutcome.FAILED}


@pytest.mark.parametrize(
    ("newest_first", "times"),
    [("", 0), ("uu", 0), ("uuu", 3), ("ufb", 3), ("uudu", 0), ("duuu", 0), ("buuu", 3), ("buu", 0), ("uuud", 3), ("uuuuu", 5)],
)
def test_three_in_a_row_are_a_failure(newest_first: str, times: int) -> None:
    attempts = tuple(StepAttempt(NOW - timedelta(days=number), LETTERS[name]) for number, name in enumerate(newest_first))
    failures = repeated_failures([StepAttempts(Step.SCRUB, attempts)], NOW)
    assert [failure.times for failure in failures] == ([times] if times else [])


def test_a_host_that_is_not_compared_any_more_is_no_failure() -> None:
    attempts = tuple(StepAttempt(NOW - timedelta(days=number), AttemptOutcome.FAILED) for number in range(3))
    steps = [StepAttempts(Step.AGAINST_SOURCE, attempts, "web1")]
    (failure,) = repeated_failures(steps, NOW + timedelta(days=13))
    assert repeated_hint(failure, "backupd").endswith("backupd verify --against-source web1")
    assert not repeated_failures(steps, NOW + timedelta(days=15))


def test_a_killed_attempt_counts_once_it_cannot_run_any_more() -> None:
    attempts = tuple(StepAttempt(NOW - timedelta(days=10 + number), AttemptOutcome.BEGUN) for number in range(3))
    assert repeated_failures([StepAttempts(Step.SCRUB, attempts)], NOW)


def test_what_is_recorded_is_bounded_and_an_error_is_a_failure(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path / "state") as catalogue:
        for number in range(20):
            note_attempt(catalogue, Step.OFFSITE_CHECK, StepAttempt(NOW + timedelta(days=number), AttemptOutcome.DONE), "far")
        with pytest.raises(OperatorError), noted_attempt(catalogue, Step.OFFSITE_CHECK, NOW + timedelta(days=30), "far"):
            raise OperatorError("x" * 5000, "")
        (step,) = [step for step in read_steps(catalogue, None) if step.step is Step.OFFSITE_CHECK]
    assert step.subject == "offsite check far"
    assert len(step.attempts) == 8
    assert step.attempts[0].outcome is AttemptOutcome.FAILED
    assert len(step.attempts[0].text) <= 200


@pytest.mark.btrfs
def test_a_drill_that_is_never_finished_is_shown_everywhere_and_ends_with_one_that_is(shared_btrfs: Path) -> None:
    nights = Within(shared_btrfs)
    (nights.source / "file").write_text("x")
    nights.host("web1", nights.source)
    nights.run("web1")
    now = datetime.now(UTC)

    def drilled(hours: int, outcome: DrillOutcome) -> None:
        with Catalogue.open(nights.state) as catalogue:
            note_drill(catalogue, DrillResult("web1", "2026-11-20T220003Z", now - timedelta(hours=hours), outcome, text="no room"))

    def shown() -> list[bool]:
        words = "drill: did not finish 3 times in a row"
        alarms = json.loads(nights.backupd("notify", "--json", check=False).stdout)["standing"]
        return [
            any(alarm["subject"] == "step drill" and words in alarm["text"] for alarm in alarms),
            *(words in " ".join(nights.backupd(name, check=False).stdout.split()) for name in ("status", "check", "doctor")),
        ]

    for hours in (4, 3):
        drilled(hours, DrillOutcome.UNFINISHED)
    assert shown() == [False] * 4
    drilled(2, DrillOutcome.UNFINISHED)
    assert shown() == [True] * 4
    drilled(1, DrillOutcome.PROVEN)
    assert shown() == [False] * 4


@pytest.mark.btrfs
def test_commands_record_what_became_of_them(shared_btrfs: Path) -> None:
    nights = Within(shared_btrfs)
    (nights.source / "file").write_text("x")
    nights.host("web1", nights.source)
    nights.run("web1")
    nights.backupd("verify")
    nights.backupd("scrub", check=False)
    with Catalogue.open(nights.state) as catalogue:
        by_name = {step.step: step.attempts for step in read_steps(catalogue, None) if step.attempts}
    assert {step: attempts[0].outcome for step, attempts in by_name.items()} == {
        Step.VERIFY: AttemptOutcome.DONE, Step.SCRUB: AttemptOutcome.DONE,
    }  # fmt: skip
