"""Old samples: those of an hour become one, later those of a day; no written byte is lost or counted twice."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from backupd.observe.sampling import STEPS, merge_samples, window
from tests.backupd.made_samples import START, every_five_minutes, sample

BERLIN, ZULU = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
RAW, HOURS = STEPS


def test_an_hour_is_the_last_of_its_samples_with_the_sums_of_all() -> None:
    raw = every_five_minutes(23, orphans=3, used=7, pressure={"io some": 1.5}, counters={"boot": "x"})
    raw[4] = sample(raw[4].taken, orphans=99, seconds=0.0, written=12345, activity="scrub")
    first, second = merge_samples(raw, RAW, ZULU)
    assert (first.span, first.taken, first.used) == ("hour", raw[10].taken, 7)
    assert (first.seconds, first.written, first.orphans) == (3000.0, 10 * (600 << 20), 99)
    assert (first.peak_written, first.pressure, first.activity) == (2e6, {"io some": 15.0}, "scrub")
    assert (first.counters, first.id) == ({}, 0)
    assert (second.taken, second.seconds, second.activity) == (raw[22].taken, 3600.0, "")


def test_days_are_those_of_the_pools_zone_also_when_its_clock_changes() -> None:
    begin = datetime(2026, 10, 24, 22, tzinfo=UTC)  # midnight in Berlin before the day of 25 hours
    hours = [sample(begin + timedelta(hours=number, minutes=59), span="hour", seconds=3600.0, written=1) for number in range(49)]
    assert [day.written for day in merge_samples(hours, HOURS, BERLIN)] == [25, 24]
    assert [day.written for day in merge_samples(hours, HOURS, ZULU)] == [2, 24, 23]


def test_only_whole_hours_that_are_two_weeks_old_become_one() -> None:
    oldest = START + timedelta(minutes=5)
    assert window(RAW, oldest, START + timedelta(days=14, minutes=59), ZULU, 48) is None
    assert window(RAW, oldest, START + timedelta(days=14, minutes=60), ZULU, 48) == (START, START + timedelta(hours=1))
    assert window(HOURS, oldest, START + timedelta(days=365, hours=23), ZULU, 48) is None


def test_what_has_piled_up_is_done_some_hours_at_a_time() -> None:
    later = START + timedelta(days=100)
    assert window(RAW, START, later, ZULU, 48) == (START, START + timedelta(hours=48))
    due = window(HOURS, START, START + timedelta(days=800), BERLIN, 10)
    assert due is not None
    assert due[0] == datetime(2026, 5, 31, 22, tzinfo=UTC)
    assert due[1] - due[0] == timedelta(days=10)
