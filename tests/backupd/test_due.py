"""When a host is due: compared with GNU date for the same zones, and as properties that always hold."""

import functools
from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from btrkeep.config import Window
from btrkeep.config.values import parse_window
from btrkeep.decisions.due import DAY, Due, is_due, is_late, next_window, period_after, period_start, retry_from, window_end
from tests.beds import work

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
# Clock changes at midnight, over midnight, and a day that never was.
STRANGE = ("UTC", "America/Sao_Paulo", "America/Scoresbysund", "Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca")
STARTS = ("none", "22:00-06:00", "00:00-05:00", "20:15-24:00", "12:00-11:00")  # none of these begins in an hour that is changed
FIRST, LAST = date(2026, 9, 1), date(2027, 6, 1)


def window(text: str) -> Window | None:
    return parse_window(text)


def opening(text: str) -> Window:
    result = parse_window(text)
    assert result
    return result


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def gnu_date(zone: str, lines: list[str], form: str) -> list[str]:
    """Returns GNU date's reading of many times at once."""
    return work("date", "-f", "-", f"+{form}", input="\n".join(lines), env={"TZ": zone}).stdout.split()


@functools.cache
def begins(zone: str, start: str, days: int) -> list[int]:
    """Returns when periods of `days` days begin between FIRST and LAST, in seconds since the epoch: only by GNU date."""
    count = (LAST - FIRST).days
    numbers = [int(text) for text in gnu_date("UTC", [f"{FIRST} + {day} days" for day in range(count)], "%s")]
    dates = gnu_date("UTC", [f"{FIRST} + {day} days" for day in range(count)], "%F")
    counted = [day for number, day in zip(numbers, dates, strict=True) if number // 86400 % days == 0]
    return [int(text) for text in gnu_date(zone, [f"{day} {start}" for day in counted], "%s")]


def first_minute(text: str) -> str:
    return "00:00" if text == "none" else text.partition("-")[0]


MOMENTS = st.integers(int(at("2026-09-20T00:00Z").timestamp()), int(at("2027-05-10T00:00Z").timestamp()))


@pytest.mark.parametrize("days", [1, 2, 7])
@pytest.mark.parametrize("zone", ZONES)
@given(text=st.sampled_from(STARTS), moment=MOMENTS)
def test_periods_begin_where_gnu_date_sees_the_windows_start(zone: str, days: int, text: str, moment: int) -> None:
    truth = begins(zone, first_minute(text), days)
    place = bisect_right(truth, moment)
    begin = period_start(days * DAY, window(text), ZoneInfo(zone), datetime.fromtimestamp(moment, UTC))
    assert begin is not None
    assert begin.timestamp() == truth[place - 1]
    assert period_after(begin, days * DAY, window(text), ZoneInfo(zone)).timestamp() == truth[place]


@pytest.mark.parametrize("zone", ZONES)
@given(text=st.sampled_from(STARTS[1:]), moment=MOMENTS)
def test_the_next_window_is_the_next_start_that_gnu_date_sees(zone: str, text: str, moment: int) -> None:
    truth = begins(zone, first_minute(text), 1)
    result = next_window(opening(text), ZoneInfo(zone), datetime.fromtimestamp(moment, UTC))
    assert result.timestamp() == truth[bisect_right(truth, moment)]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", STARTS[1:])
def test_a_window_is_open_while_the_clock_on_the_wall_is_between_its_start_and_its_end(zone: str, text: str) -> None:
    """Every quarter of an hour around the clock changes, the wall's clock by GNU date."""
    moments = [int(at(start).timestamp()) + quarter * 900 for start in CHANGES[zone] for quarter in range(200)]
    clocks = gnu_date(zone, [f"@{moment}" for moment in moments], "%H:%M")
    start, end = text.replace("24:00", "00:00").split("-")
    closings = list[datetime]()
    for moment, clock in zip(moments, clocks, strict=True):
        is_open = start <= clock < end if start < end else clock >= start or clock < end
        result = window_end(opening(text), ZoneInfo(zone), datetime.fromtimestamp(moment, UTC))
        assert (moment, clock, result is not None) == (moment, clock, is_open)
        if result:
            closings.append(result)
            assert result.timestamp() - moment <= 86400 + 3600
    assert set(gnu_date(zone, [f"@{closing.timestamp():.0f}" for closing in closings], "%H:%M")) == {end}


# From noon of the day before each change, by systemd's table of these zones: the last Sundays of October and March, ...
CHANGES = {
    "Europe/Berlin": ("2026-10-24T10:00Z", "2027-03-27T11:00Z"),
    "America/New_York": ("2026-10-31T16:00Z", "2027-03-13T17:00Z"),
    "Australia/Lord_Howe": ("2026-10-03T01:30Z", "2027-04-03T01:00Z"),
}


def test_the_nights_of_the_clock_changes_are_shorter_and_longer_by_the_change() -> None:
    """Fixed examples: 22:00 to 06:00 is 9 hours when Berlin sets its clocks back, 7 when forward; Lord Howe moves half an hour."""
    night = opening("22:00-06:00")
    for zone, begin, hours in (
        ("Europe/Berlin", "2026-10-24T22:00+02:00", 9.0),
        ("Europe/Berlin", "2027-03-27T22:00+01:00", 7.0),
        ("Europe/Berlin", "2026-11-20T22:00+01:00", 8.0),
        ("America/New_York", "2026-10-31T22:00-04:00", 9.0),
        ("America/New_York", "2027-03-13T22:00-05:00", 7.0),
        ("Australia/Lord_Howe", "2026-10-03T22:00+10:30", 7.5),
        ("Australia/Lord_Howe", "2027-04-03T22:00+11:00", 8.5),
    ):
        end = window_end(night, ZoneInfo(zone), at(begin))
        assert end is not None
        assert (zone, begin, (end - at(begin)) / timedelta(hours=1)) == (zone, begin, hours)


def test_the_end_of_a_window_is_outside_it_and_its_start_is_inside() -> None:
    berlin, night = ZoneInfo("Europe/Berlin"), opening("22:00-06:00")
    assert window_end(night, berlin, at("2026-11-20T22:00+01:00")) == at("2026-11-21T06:00+01:00")
    assert window_end(night, berlin, at("2026-11-21T05:59:59+01:00")) == at("2026-11-21T06:00+01:00")
    assert window_end(night, berlin, at("2026-11-21T06:00+01:00")) is None
    assert window_end(night, berlin, at("2026-11-20T21:59:59+01:00")) is None
    assert next_window(night, berlin, at("2026-11-20T22:00+01:00")) == at("2026-11-21T22:00+01:00")  # strictly after now


@pytest.mark.parametrize(
    ("zone", "text", "day", "begin"),
    [
        ("Europe/Berlin", "02:30-05:00", "2027-03-28", "2027-03-28T03:30+02:00"),  # skipped: as an unchanged clock shows it
        ("Europe/Berlin", "02:30-05:00", "2026-10-25", "2026-10-25T02:30+02:00"),  # twice: the first
        ("America/New_York", "02:00-05:00", "2027-03-14", "2027-03-14T03:00-04:00"),
        ("America/New_York", "01:30-05:00", "2026-11-01", "2026-11-01T01:30-04:00"),
        ("Australia/Lord_Howe", "02:15-05:00", "2026-10-04", "2026-10-04T02:45+11:00"),
        ("America/Sao_Paulo", "none", "2018-11-04", "2018-11-04T01:00-02:00"),  # midnight itself was skipped
    ],
)
def test_a_start_that_a_clock_change_skips_or_repeats_comes_once(zone: str, text: str, day: str, begin: str) -> None:
    noon = datetime.combine(date.fromisoformat(day), time(12), ZoneInfo(zone))
    assert period_start(DAY, window(text), ZoneInfo(zone), noon) == at(begin)
    [yesterday] = gnu_date(zone, [f"{date.fromisoformat(day) - timedelta(days=1)} {first_minute(text)}"], "%s")
    before = period_start(DAY, window(text), ZoneInfo(zone), at(begin) - timedelta(seconds=1))
    assert before == datetime.fromtimestamp(int(yesterday), UTC)


WINDOWS = st.one_of(
    st.none(), st.builds(Window, st.builds(time, st.integers(0, 23), st.sampled_from((0, 15, 30, 59))), st.just(time(6)))
)
EVER = st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone


@given(st.sampled_from(ZONES + STRANGE), WINDOWS, st.sampled_from((1, 2, 3, 7, 30)), EVER)
@example("America/Scoresbysund", Window(time(23, 30), time(6)), 1, at("2025-03-30T01:10Z"))  # 23:30 was skipped, over midnight
@example("Pacific/Apia", Window(time(22), time(6)), 1, at("2011-12-31T09:00Z"))  # 2011-12-30 was skipped as a whole
def test_at_every_moment_exactly_one_period_is_current(zone: str, win: Window | None, days: int, now: datetime) -> None:
    begin = period_start(days * DAY, win, ZoneInfo(zone), now)
    assert begin is not None
    assert begin.tzinfo is UTC
    following = period_after(begin, days * DAY, win, ZoneInfo(zone))
    assert begin <= now < following
    assert period_start(days * DAY, win, ZoneInfo(zone), following) == following
    assert period_start(days * DAY, win, ZoneInfo(zone), following - timedelta(microseconds=1)) == begin
    most = 1.0 if zone == "Pacific/Apia" else 2 / 24
    assert abs((following - begin) / timedelta(days=1) - days) <= most + 1e-9


@given(st.sampled_from(ZONES + STRANGE), WINDOWS, EVER)
def test_an_open_window_has_an_end_ahead_and_a_closed_one_a_start(zone: str, win: Window | None, now: datetime) -> None:
    if win is None or win.start == win.end:
        return
    end, following = window_end(win, ZoneInfo(zone), now), next_window(win, ZoneInfo(zone), now)
    assert following > now
    assert end is None or now < end <= now + timedelta(days=1, hours=2)
    assert following <= now + timedelta(days=2, hours=2)


@pytest.mark.parametrize("every", [3600.0, 12 * 3600.0, DAY + 1, 1.5 * DAY, 0.5])
def test_a_period_that_is_no_whole_number_of_days_has_no_place_in_the_calendar(every: float) -> None:
    assert period_start(every, None, ZoneInfo("UTC"), at("2026-11-20T12:00Z")) is None


# What is due

NOW = at("2026-11-20T23:10+01:00")
NIGHT = opening("22:00-06:00")


def due(last: str | None, every: float = DAY, win: Window | None = NIGHT, now: datetime = NOW) -> Due:
    return is_due(at(last) if last else None, every, win, ZoneInfo("Europe/Berlin"), now)


@pytest.mark.parametrize(
    ("last", "every", "win", "is_now", "when"),
    [
        (None, DAY, NIGHT, True, "2026-11-20T23:10+01:00"),
        ("2026-11-19T23:00+01:00", DAY, NIGHT, True, "2026-11-20T22:00+01:00"),
        ("2026-11-20T21:59:59+01:00", DAY, NIGHT, True, "2026-11-20T22:00+01:00"),  # manually this afternoon: counts for yesterday
        ("2026-11-20T22:00:00+01:00", DAY, NIGHT, False, "2026-11-21T22:00+01:00"),
        ("2026-11-20T23:09+01:00", DAY, NIGHT, False, "2026-11-21T22:00+01:00"),
        ("2026-11-20T00:00+01:00", DAY, None, False, "2026-11-21T00:00+01:00"),
        ("2026-11-19T23:59:59+01:00", DAY, None, True, "2026-11-20T00:00+01:00"),
        ("2026-11-20T11:10+01:00", 12 * 3600, None, True, "2026-11-20T23:10+01:00"),
        ("2026-11-20T11:10:01+01:00", 12 * 3600, None, False, "2026-11-20T23:10:01+01:00"),
        ("2026-11-20T23:14:59+01:00", DAY, NIGHT, False, "2026-11-21T22:00+01:00"),  # a clock a little ahead
        ("2026-11-20T23:15:01+01:00", DAY, NIGHT, True, "2026-11-20T23:10+01:00"),  # a time from a wrong clock does not count
        ("2030-01-01T00:00+01:00", 12 * 3600, None, True, "2026-11-20T23:10+01:00"),
    ],
)
def test_a_host_is_due_when_no_complete_backup_started_since_its_period_began(
    last: str | None, every: float, win: Window | None, is_now: bool, when: str
) -> None:
    result = due(last, every, win)
    assert (result.due, result.when) == (is_now, at(when))
    assert result.reason


@given(
    st.sampled_from(ZONES + STRANGE),
    WINDOWS,
    st.sampled_from((3600.0, 12 * 3600.0, DAY, 2 * DAY, 7 * DAY)),
    EVER,
    st.timedeltas(timedelta(0), timedelta(days=20)),
)
def test_a_host_just_backed_up_is_due_again_at_the_announced_time(
    zone: str, win: Window | None, every: float, now: datetime, later: timedelta
) -> None:
    done = is_due(now, every, win, ZoneInfo(zone), now)
    assert not done.due
    assert now < done.when
    at_last = is_due(now, every, win, ZoneInfo(zone), now + later)
    assert at_last.due is (now + later >= done.when)


def test_every_answer_has_its_reason() -> None:
    assert "no complete backup yet" in due(None).reason
    assert "2026-11-20T21:00:00Z" in due("2026-11-19T23:00+01:00").reason
    assert "next period begins 2026-11-21T21:00:00Z" in due("2026-11-20T23:00+01:00").reason
    assert "future" in due("2030-01-01T00:00Z").reason
    assert "12h" in due("2026-11-20T11:10+01:00", 12 * 3600).reason


def test_periods_of_several_days_do_not_move_with_the_backups() -> None:
    """Periods of seven days from 1970-01-01, a Thursday: each starts on a Thursday, whenever the last backup was."""
    moments = [due(f"2026-11-{day:02}T23:00+01:00", 7 * DAY).when for day in (12, 13, 16, 18)]
    assert {moment.astimezone(ZoneInfo("Europe/Berlin")).strftime("%A %H:%M") for moment in moments} == {"Thursday 22:00"}
    assert all(later >= earlier for earlier, later in pairwise(moments))


def late(complete: str, now: str, every: float = DAY, window: Window | None = None, configured: float | None = None) -> bool:
    return is_late(at(complete), every, window, ZoneInfo("Europe/Berlin"), at(now), configured)


def test_without_a_window_late_is_older_than_one_and_a_half_times_every() -> None:
    assert is_late(None, DAY, None, ZoneInfo("Europe/Berlin"), NOW)
    assert not is_late(NOW - timedelta(hours=36), DAY, None, ZoneInfo("Europe/Berlin"), NOW)
    assert is_late(NOW - timedelta(hours=36, seconds=1), DAY, None, ZoneInfo("Europe/Berlin"), NOW)
    assert not is_late(NOW - timedelta(days=10), 7 * DAY, None, ZoneInfo("Europe/Berlin"), NOW)
    assert is_late(NOW + timedelta(days=1), DAY, None, ZoneInfo("Europe/Berlin"), NOW), (
        "a backup stamped in the future does not count"
    )


@pytest.mark.parametrize(
    ("complete", "every", "window", "last_moment"),
    [
        ("2026-11-20T22:05+01:00", DAY, "22:00-06:00", "2026-11-22T10:05+01:00"),  # 1.5 days, after the window of the 21st
        ("2026-11-20T04:00+01:00", 6 * 3600, "22:00-06:00", "2026-11-21T06:00+01:00"),  # due at 10:00, no window until 22:00
        ("2026-11-20T23:50+01:00", 6 * 3600, "22:00-06:00", "2026-11-22T06:00+01:00"),  # ten minutes are no chance
        ("2026-11-20T22:05+01:00", 6 * 3600, "22:00-06:00", "2026-11-21T07:05+01:00"),  # due at 04:05, its window ends before
    ],
)
def test_with_a_window_a_host_is_late_when_it_has_missed_one(complete: str, every: float, window: str, last_moment: str) -> None:
    moment = at(last_moment)
    assert not late(complete, last_moment, every, parse_window(window))
    assert late(complete, (moment + timedelta(seconds=1)).isoformat(), every, parse_window(window))


def test_a_configured_age_decides_alone() -> None:
    assert not late("2026-11-20T22:00Z", "2026-11-23T22:00Z", DAY, parse_window("22:00-06:00"), 3 * DAY)
    assert late("2026-11-20T22:00Z", "2026-11-20T23:00:01Z", DAY, parse_window("22:00-06:00"), 3600)


def test_a_host_that_failed_is_tried_again_after_a_quarter_of_every_and_five_hours_at_most() -> None:
    assert [retry_from(NOW, every) - NOW for every in (3600, 6 * 3600, DAY, 7 * DAY)] == [
        timedelta(minutes=15),
        timedelta(hours=1.5),
        timedelta(hours=5),
        timedelta(hours=5),
    ]
