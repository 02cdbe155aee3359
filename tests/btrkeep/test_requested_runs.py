"""When users of the dashboard may request the next backup of a host."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from btrkeep.decisions.requested_runs import DAY, next_request

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def test_the_first_backup_may_be_requested_at_once() -> None:
    assert next_request([], NOW, 300, 1) is None


def test_two_backups_have_a_least_distance() -> None:
    assert next_request([ago(4)], NOW, 300, 24) == ago(-1)
    assert next_request([ago(90), ago(5)], NOW, 300, 24) is None


def test_a_day_has_a_number_of_backups() -> None:
    assert next_request([ago(60), ago(120), ago(180)], NOW, 300, 3) == ago(180) + DAY
    assert next_request([ago(60), ago(120), ago(1441)], NOW, 300, 3) is None


def test_a_start_in_the_future_refuses_nothing() -> None:
    assert next_request([ago(-600), ago(-1)], NOW, 300, 1) is None


@given(st.lists(st.integers(-2000, 3000)), st.integers(1, 7200), st.integers(1, 5))
def test_at_the_named_time_it_works_and_a_minute_before_it_does_not(minutes: list[int], distance: int, a_day: int) -> None:
    starts = [ago(number) for number in minutes if number >= 0]
    allowed = next_request(starts, NOW, distance, a_day)
    if allowed:
        assert next_request(starts, allowed, distance, a_day) is None
        assert next_request(starts, allowed - timedelta(seconds=1), distance, a_day) == allowed
