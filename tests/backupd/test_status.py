"""The state of each host in one word: which one, in which order they are tried, and the sentence for it."""

from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.catalogue import HostFacts
from btrkeep.config import HostConfig
from btrkeep.decisions.host_state import NOT_CALLED, STATES, HostStatus, host_status
from btrkeep.units import local_time
from tests.backupd.facts import NOTHING, NOW, ago, facts

DAILY = HostConfig("web1", every=86400.0)
UTC_ZONE = ZoneInfo("UTC")


def status(host_facts: HostFacts | None, host: HostConfig = DAILY) -> HostStatus:
    return host_status(host, host_facts, UTC_ZONE, NOW)


@pytest.mark.parametrize(
    ("host_facts", "state", "error"),
    [
        (None, "never", None),
        (NOTHING, "never", None),
        (facts(run=1, outcome="failed", error="no way"), "never", "no way"),
        (facts(complete=1), "ok", None),
        (facts(complete=1, run=1, outcome="complete"), "ok", None),
        (facts(complete=35.9), "ok", None),
        (facts(complete=36.1), "late", None),
        (facts(complete=30, run=1, outcome="failed", error="no way"), "failing", "no way"),
        (facts(complete=30, run=1, outcome="partial", error="the window has closed"), "failing", "the window has closed"),
        (facts(complete=100, run=1, outcome="failed", error="no way"), "failing", "no way"),  # more specific than late
        (facts(complete=1, run=5, outcome="failed", error="no way"), "ok", None),  # it has worked since
        (facts(complete=30, run=1, outcome="skipped", error="not there"), "ok", None),
        (facts(complete=100, run=1, outcome="skipped", error="not there"), "late", None),
        (facts(complete=30, newest_state="suspect", newest_error="half is gone"), "suspect", "half is gone"),
        (facts(newest_state="suspect", newest_error="half is gone"), "suspect", "half is gone"),
        (facts(complete=9, run=1, outcome="failed", newest_state="suspect", newest_error="half gone"), "suspect", "half gone"),
        (facts(newest_state="failed", newest_error="missing"), "never", None),
        (facts(complete=30, newest_state="running"), "ok", None),
    ],
)  # fmt: skip
def test_the_state_is_the_first_that_fits(host_facts: HostFacts | None, state: str, error: str | None) -> None:
    result = status(host_facts)
    assert (result.state, result.error) == (state, error)


@pytest.mark.parametrize(
    "host_facts", [None, NOTHING, facts(complete=100), facts(complete=1), facts(complete=100, run=1, outcome="failed")]
)
def test_a_host_that_has_not_called_has_what_to_do_on_it(host_facts: HostFacts | None) -> None:
    result = status(host_facts, replace(DAILY, calls=True))
    assert (NOT_CALLED in result.warnings) == (result.state in ("late", "never"))
    assert NOT_CALLED not in status(host_facts).warnings


@pytest.mark.parametrize(
    ("host_facts", "state"),
    [
        (facts(complete=30), "unknown"),
        (facts(complete=30, run=10, outcome="skipped", error="not there"), "unknown"),
        (facts(complete=22), "ok"),  # it was not due until the runs were recorded again
        (facts(complete=30, run=2, outcome="skipped", error="not there"), "ok"),
        (facts(complete=30, run=10, outcome="failed", error="no way"), "failing"),
        (facts(complete=40), "late"),
        (None, "never"),
    ],
)
def test_a_host_that_was_due_when_no_runs_were_recorded_is_unknown(host_facts: HostFacts | None, state: str) -> None:
    unknown = [(ago(200), ago(100)), (ago(20), ago(3))]
    result = host_status(DAILY, host_facts, UTC_ZONE, NOW, unknown)
    assert result.state == state
    assert (state == "unknown") == any(f"due before {local_time(ago(3))}" in warning for warning in result.warnings)
    assert host_status(HostConfig("old", every=86400.0, enabled=False), facts(complete=30), UTC_ZONE, NOW, unknown).state == "ok"


def test_absent_laptops_and_disabled_hosts_are_not_late() -> None:
    old = facts(complete=1000)
    assert status(old).state == "late"
    assert status(old, HostConfig("lap", every=86400.0, optional=True, max_absence=None)).state == "ok"
    assert status(old, HostConfig("lap", every=86400.0, optional=True, max_absence=1001 * 3600.0)).state == "ok"
    assert status(old, HostConfig("lap", every=86400.0, optional=True, max_absence=999 * 3600.0)).state == "late"
    assert status(old, HostConfig("old", every=86400.0, enabled=False)).state == "ok"


def test_a_disabled_host_is_never_due() -> None:
    assert status(facts(complete=1), HostConfig("old", every=86400.0, enabled=False)).next_due is None


def test_age_and_next_due_are_counted_from_the_newest_complete_backup() -> None:
    result = status(facts(complete=2))
    assert (result.last_complete, result.age) == (ago(2), 7200.0)
    assert result.next_due == NOW.replace(hour=0, minute=0) + timedelta(days=1)
    never = status(None)
    assert (never.last_complete, never.age, never.next_due) == (None, None, NOW)


def test_a_backup_stamped_in_the_future_is_reported_and_its_host_is_due() -> None:
    only = status(facts(ahead=ago(-48)))
    assert (only.state, only.age, only.next_due) == ("never", None, NOW)
    assert "2026-11-22T23:10:00Z, is in the future" in only.warnings[0]
    others = status(facts(complete=100, run=1, outcome="failed", error="no way", ahead=ago(-50000)))
    assert (others.state, others.age, others.error) == ("failing", 360000.0, "no way")
    assert "in the future" in others.warnings[0]


def test_no_age_is_below_zero() -> None:
    """Clocks that differ by less than the limit for the future."""
    assert status(facts(complete=-0.05)).age == 0.0


def test_the_warnings_of_the_newest_backup_come_along() -> None:
    assert status(facts(complete=1, newest_warnings=("1 could not be read",))).warnings == ("1 could not be read",)


def test_the_reason_of_a_skipped_run_is_told_until_a_later_run_is_complete() -> None:
    away = facts(complete=30, run=1, outcome="skipped", error="not there", newest_warnings=("1 could not be read",))
    assert status(away).warnings == ("the last run skipped it: not there", "1 could not be read")
    assert status(facts(run=1, outcome="skipped", error="not there")).warnings == ("the last run skipped it: not there",)
    assert status(facts(complete=1, run=5, outcome="skipped", error="not there")).warnings == ()


HOURS = st.one_of(st.none(), st.floats(-100, 2000))
KNOWN = st.one_of(
    st.none(),
    st.builds(
        facts,
        complete=HOURS,
        run=HOURS,
        outcome=st.sampled_from((None, "complete", "suspect", "failed", "partial", "skipped")),
        error=st.sampled_from((None, "no way")),
    ),
)


@given(KNOWN, st.builds(HostConfig, name=st.just("x"), enabled=st.booleans(), optional=st.booleans(), every=st.floats(60, 1e7)))
def test_every_host_has_a_state_and_without_a_complete_backup_it_is_never_ok(
    host_facts: HostFacts | None, host: HostConfig
) -> None:
    result = status(host_facts, host)
    assert result.state in STATES
    if host_facts is None or host_facts.last_complete is None:
        assert result.state in ("never", "suspect")
    if host.enabled and not host.optional and result.state == "ok":
        assert result.age is not None
        assert result.age <= 1.5 * host.every
