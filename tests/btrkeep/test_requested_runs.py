"""When users of the dashboard may request the next backup of a host."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from btrkeep.decisions.due import A_DAY, FAILED_DISTANCE, RequestDelay, RequestedRun, next_request

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def runs(*minutes: float) -> list[RequestedRun]:
    return [RequestedRun(ago(number)) for number in minutes]


def test_the_first_backup_may_be_requested_at_once() -> None:
    assert next_request([], NOW, 300, 1) is None


def test_two_backups_have_a_least_distance() -> None:
    assert next_request(runs(4), NOW, 300, 24) == RequestDelay(ago(-1), RequestedRun(ago(4)))
    assert next_request(runs(90, 5), NOW, 300, 24) is None


def test_a_day_has_a_number_of_backups() -> None:
    assert next_request(runs(60, 120, 180), NOW, 300, 3) == RequestDelay(ago(180) + A_DAY)
    assert next_request(runs(60, 120, 1441), NOW, 300, 3) is None


def test_one_that_failed_counts_for_a_minute_and_hides_no_other() -> None:
    failed = RequestedRun(ago(0.5), has_failed=True)
    until = failed.started + timedelta(seconds=FAILED_DISTANCE)
    assert next_request([failed], NOW, 300, 24) == RequestDelay(until, failed)
    assert next_request([failed], until, 300, 24) is None
    assert next_request([failed], NOW, 10, 24) is None
    assert next_request([*runs(4), failed], NOW, 300, 24) == RequestDelay(ago(-1), *runs(4))
    assert next_request([failed], NOW, 300, 1) == RequestDelay(failed.started + A_DAY)


def test_a_start_in_the_future_refuses_nothing() -> None:
    assert next_request(runs(-600, -1), NOW, 300, 1) is None


@given(st.lists(st.integers(-2000, 3000)), st.integers(1, 7200), st.integers(1, 5))
def test_at_the_named_time_it_works_and_a_minute_before_it_does_not(minutes: list[int], distance: int, a_day: int) -> None:
    starts = runs(*(number for number in minutes if number >= 0))
    allowed = next_request(starts, NOW, distance, a_day)
    if allowed:
        assert next_request(starts, allowed.until, distance, a_day) is None
        assert next_request(starts, allowed.until - timedelta(seconds=1), distance, a_day) == allowed
