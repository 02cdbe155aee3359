"""The verdict in one sentence: it omits no problem, and calls nothing good that was not checked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import KINDS, SERVICE
from btrkeep.decisions.copy_status import CopyState
from btrkeep.decisions.findings import CHECKS, ERROR, NOTE, USED, WARNING, Finding, PoolVerdict
from btrkeep.decisions.host_state import STATES
from btrkeep.decisions.overall import OverallFacts, judge

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def facts(**more: Any) -> OverallFacts:
    return OverallFacts(**{"states": {"ok": 3}, "now": NOW, "alarms_checked": NOW, **more})


def alarm(subject: str, event: str = "failure") -> StoredAlarm:
    return StoredAlarm(event, subject, "text", 1, NOW, 1, NOW, None, None)


def test_without_a_problem_all_is_well() -> None:
    verdict = judge(facts(copies=[CopyState.OK], states={"ok": 3, "never": 1}))
    assert (verdict.level, verdict.sentence, verdict.problems) == ("ok", "All is well", ())


def test_errors_come_before_warnings_and_those_before_what_is_unknown() -> None:
    verdict = judge(
        facts(
            states={"ok": 270, "failing": 10, "late": 1, "unknown": 2},
            damaged=8,
            pool=PoolVerdict((Finding(USED, WARNING, "91.4% of the pool are used"), Finding(USED, NOTE, "a note")), ("min_free",)),
            copies=[CopyState.FAILING, CopyState.LATE, CopyState.LATE],
        )
    )
    assert verdict.level == "error"
    assert verdict.sentence == (
        "Needs attention: 10 hosts failing, 8 backups damaged, 1 copy failing, pool used above its limit, 1 host late, "
        "2 copies late, 1 check of the pool not made, 2 hosts in an unknown state"
    )


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("ok", "never")])
def test_each_bad_state_of_a_host_is_a_problem_of_its_name(state: str) -> None:
    (problem,) = judge(facts(states={"ok": 1, state: 7})).problems
    assert (problem.kind, problem.count) == (state, 7)
    assert problem.words.startswith("7 hosts ")


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_of_the_pool_has_words(check: str) -> None:
    verdict = judge(facts(pool=PoolVerdict((Finding(check, ERROR, "text"), Finding(check, WARNING, "text")))))
    assert [(problem.kind, problem.level, problem.count) for problem in verdict.problems] == [(check, ERROR, 2)]


@pytest.mark.parametrize(
    ("checked", "words"),
    [
        (None, "alarms never checked"),
        (NOW - timedelta(hours=2), "alarms not checked"),
        (NOW + timedelta(days=1), "alarms not checked"),
    ],
)
def test_what_was_not_checked_is_never_well(checked: datetime | None, words: str) -> None:
    verdict = judge(facts(alarms_checked=checked))
    assert verdict.level == "unknown"
    assert verdict.sentence.startswith(f"Not everything could be checked: {words}")
    assert judge(facts(states={"late": 1}, alarms_checked=checked)).sentence.startswith("Needs attention: 1 host late, alarms")


OF_A_STATE = {"host", "damaged", "altered", "replica", "push", "fetched_by", "offsite"}
OF_THE_POOL = {"device", "missing device", "pool", "read-only", "min_free", "unallocated", "used", "catalogue", "schedule"}


def test_each_kind_of_alarm_is_in_the_sentence_or_is_counted_from_the_state_itself() -> None:
    """A new kind of alarm must not leave the verdict at "All is well"."""
    for kind in KINDS:
        verdict = judge(facts(alarms=[alarm(f"{kind} a" if KINDS[kind].named else kind)]))
        assert bool(verdict.problems) != (kind in OF_A_STATE | OF_THE_POOL), kind
    assert judge(facts(alarms=[alarm("mail", SERVICE)])).sentence == "Needs attention: 1 notification service failing"


def test_who_may_not_see_alarms_is_not_told_that_they_were_not_checked() -> None:
    assert judge(facts(now=None, alarms_checked=None)).level == "ok"
