"""Conversions between text and numbers: round trips, compared with GNU coreutils, and refused values."""

import os
import random
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote_to_bytes
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.units import (
    backup_name,
    counted,
    format_duration,
    format_given,
    format_share,
    format_size,
    format_time,
    local_day,
    local_minute,
    local_time,
    names_in_words,
    parse_backup_name,
    parse_duration,
    parse_share,
    parse_size,
    parse_time,
    percent_encoded,
    printable,
    recorded_time,
    seconds_between,
    show_times_in,
    with_encoded,
)
from tests.beds import work


def lines(*argv: str, given: list[str]) -> list[str]:
    """Returns a program's results for the given lines, one for each."""
    return work(*argv, input="\n".join(given) + "\n").stdout.splitlines()


# Sizes

SIZES = ["0", "1", "512", "1K", "20G", "3T", "7P", "1.5K", "0.25M", "12KiB", "20GiB"]
DECIMAL = ["16MB", "1KB", "2.5GB", "3TB", "1PB"]


def test_sizes_mean_what_coreutils_take_them_for() -> None:
    """As numfmt has it: K and KiB are 1024 (IEC), KB is 1000 (SI)."""
    iec = lines("numfmt", "--from=iec", given=[text.removesuffix("iB") for text in SIZES])
    assert [parse_size(text) for text in SIZES] == list(map(int, iec))
    si = lines("numfmt", "--from=si", given=[text.removesuffix("B") for text in DECIMAL])
    assert [parse_size(text) for text in DECIMAL] == list(map(int, si))


@pytest.mark.parametrize("text", [" 16 MB ", "16mb", "16Mb"])
def test_blanks_and_case_do_not_matter_in_a_size(text: str) -> None:
    assert parse_size(text) == 16_000_000


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1 000", "1,5G", "1e3", "16XB", "16 MB/s", "0x10", "1..5G", "\u0661MB", "nan", "16MB16"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="16MB") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, 2**63))
def test_a_shown_size_is_read_back_within_its_three_digits(size: int) -> None:
    shown = format_size(size)
    assert abs(parse_size(shown) - size) <= 0.006 * size
    assert re.fullmatch(r"\d{1,3} B|(\d\.\d\d|\d\d\.\d|\d{3}) [KMGT]iB|\d+(\.\d+)? PiB", shown)


def test_sizes_are_shown_with_three_digits_and_a_binary_unit() -> None:
    shown = {
        0: "0 B",
        999: "999 B",
        1000: "0.98 KiB",
        1536: "1.50 KiB",
        10 << 20: "10.0 MiB",
        123 << 30: "123 GiB",
        999 << 40: "999 TiB",
    }
    assert {size: format_size(size) for size in shown} == shown
    assert format_size(None) == "-"


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("6h", 21600), ("1d", 86400), ("1d12h", 129600), ("1d 12h", 129600), ("2w", 1209600), ("90s", 90),
     ("1.5h", 5400), ("5min", 300), ("0s", 0)],
)  # fmt: skip
def test_durations_are_read_as_systemd_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    output = work("systemd-analyze", "timespan", text, check=False).stdout
    if output:  # where systemd is installed
        assert int(re.findall(r"μs: (\d+)", output)[0]) == seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "30", "m", "1x", "-1h", "1h-", "1h, 2m", "1H", "h1", "1d x", "1month", "\u0967h"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="30m"):
        parse_duration(text)


@given(st.integers(10, 10**9))
def test_a_shown_duration_is_read_back_without_what_its_two_units_leave_out(seconds: int) -> None:
    shown = format_duration(seconds)
    assert len(shown.split()) <= 2
    unit = shown[-1] if len(shown.split()) == 2 else {"d": "h", "h": "m", "m": "s", "s": "s"}[shown[-1]]
    assert 0 <= seconds - parse_duration(shown) < {"s": 1, "m": 60, "h": 3600}[unit]


def test_durations_are_shown_in_two_units_at_the_most() -> None:
    shown = {
        0.4: "0.4s",
        9.94: "9.9s",
        59: "59s",
        60: "1m",
        3599: "59m 59s",
        3600: "1h",
        3725: "1h 2m",
        3605: "1h",
        86400 * 400: "400d",
    }
    assert {seconds: format_duration(seconds) for seconds in shown} == shown
    assert format_duration(None) == "-"
    assert format_duration(-0.1) == format_duration(-90061) == "-"


def test_the_time_between_two_moments_in_the_wrong_order_is_unknown() -> None:
    start = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    assert seconds_between(start, start + timedelta(seconds=90)) == 90.0
    assert seconds_between(start, start) == 0.0
    assert (
        seconds_between(start + timedelta(seconds=1), start) is seconds_between(None, start) is seconds_between(start, None) is None
    )


# Shares


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0%", 0), ("100%", 1), (" 2.5 % ", 0.025), ("0.1%", 0.001)])
def test_shares_are_percentages(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("text", ["", "5", "%", "101%", "100.1%", "-1%", "5%%", "0,5%", "5 percent", "\u0665%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="percentage"):
        parse_share(text)


@given(st.floats(0, 1))
def test_a_shown_share_is_read_back_to_a_tenth_of_a_percent(share: float) -> None:
    assert abs(parse_share(format_share(share)) - share) <= 0.0005 + 1e-9


def test_shares_are_shown_without_a_useless_zero() -> None:
    assert [format_share(share) for share in (0, 0.034, 0.05, 0.5, 0.999, 1)] == ["0%", "3.4%", "5%", "50%", "99.9%", "100%"]
    assert format_share(0.1004) == "10%"


# Times

ZONES = st.sampled_from(
    [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), timezone(timedelta(hours=-9, minutes=-30))]
)
TIMES = st.datetimes(datetime(1000, 1, 2), datetime(9998, 12, 30), timezones=ZONES)  # noqa: DTZ001 - hypothesis adds the zone


@given(TIMES)
def test_a_time_comes_back_as_the_same_second_in_utc(moment: datetime) -> None:
    again = parse_time(format_time(moment))
    assert again.timestamp() == moment.replace(microsecond=0).timestamp()  # "==" is never true across zones in a repeated hour
    assert again.tzinfo is UTC


@given(TIMES, TIMES)
def test_written_times_and_names_sort_as_the_moments_do(first: datetime, second: datetime) -> None:
    first, second = (moment.replace(microsecond=0).astimezone(UTC) for moment in (first, second))
    assert (format_time(first) < format_time(second)) is (first < second)
    assert (backup_name(first) < backup_name(second)) is (first < second)


def test_times_are_written_as_gnu_date_writes_them() -> None:
    moments = [random.Random(7).randrange(0, 4_000_000_000) for _ in range(50)]
    actual_lines = lines(
        "date", "-u", "-f", "-", "+%Y-%m-%dT%H:%M:%SZ %Y-%m-%dT%H%M%SZ", given=[f"@{moment}" for moment in moments]
    )
    ours = [datetime.fromtimestamp(moment, ZoneInfo("Australia/Lord_Howe")) for moment in moments]
    assert [f"{format_time(moment)} {backup_name(moment)}" for moment in ours] == actual_lines


@pytest.mark.parametrize(
    "text", ["2026-11-20T22:00:03Z", "2026-11-20 22:00:03+00:00", "2026-11-21T00:00:03+02:00", "2026-11-20T11:30:03-10:30"]
)
def test_a_time_may_be_written_in_any_zone(text: str) -> None:
    assert parse_time(text) == datetime(2026, 11, 20, 22, 0, 3, tzinfo=UTC)
    assert work("date", "-u", "-d", text, "+%s").stdout.strip() == f"{parse_time(text).timestamp():.0f}"


@pytest.mark.parametrize(
    "text", ["2026-11-20T22:00:03", "2026-11-20", "", "yesterday", "2026-13-20T22:00:03Z", "2026-11-20T25:00:03Z"]
)
def test_a_time_without_a_zone_or_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="2026-11-20T22:00:00Z"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_utc_has_no_year_for_is_refused_as_any_other_wrong_one(text: str) -> None:
    with pytest.raises(ValueError, match="years 1 to 9999"):
        parse_time(text)


@given(TIMES)
def test_a_backups_name_says_when_it_started(moment: datetime) -> None:
    started = parse_backup_name(backup_name(moment))
    assert started
    assert started.timestamp() == moment.replace(microsecond=0).timestamp()


@pytest.mark.parametrize(
    "name",
    [
        "", ".working", "latest", "notes.json", "2026-11-20T220003", "2026-11-20T22:00:03Z", "2026-11-20T220003Z ",
        "2026-02-30T220003Z", "2026-11-20T250003Z", "2026-11-20T226003Z", "2026-11-20T220003Z.new", "x2026-11-20T220003Z",
        "2026-11-20T220003Z\n", "\u0662\u0660\u0662\u0666-11-20T220003Z", "0000-11-20T220003Z",
        "0001-01-01T000000Z", "9999-12-31T235959Z",
    ],
)  # fmt: skip
def test_what_is_no_backups_name_is_none(name: str) -> None:
    assert parse_backup_name(name) is None


# What others wrote


@given(st.binary() | st.text() | st.text(st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)))
def test_nothing_that_is_shown_can_touch_a_terminal(anything: str | bytes) -> None:
    shown = printable(anything)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("plain ä € 漢", "plain ä € 漢"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31m", r"\x1b[31m"),
        (b"caf\xe9", r"caf\xe9"),
        ("\u202egnp.exe", r"\u202egnp.exe"),  # right-to-left override
        ("\u200b", r"\u200b"),
        ("\U000e0001", r"\U000e0001"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
    ],
)
def test_what_cannot_be_shown_is_escaped_and_the_rest_stays(given_: str | bytes, shown: str) -> None:
    assert printable(given_) == shown


def test_nouns_are_counted() -> None:
    assert [counted(number, "host") for number in (0, 1, 2, 2000)] == ["0 hosts", "1 host", "2 hosts", "2,000 hosts"]


def test_of_many_names_the_first_are_shown() -> None:
    assert names_in_words(["a", "b"], 2) == "a, b"
    assert names_in_words(["a", "b", "c"], 2) == "a, b and 1 more"
    assert names_in_words(["a", "b", "c"], 2, "host") == "a, b and 1 more host"
    assert names_in_words([str(number) for number in range(2000)], 1, "host") == "0 and 1,999 more hosts"


@pytest.mark.parametrize(
    "text", ["16 MB", "20 GiB", "100 MiB", "1.5 GB", "512 B", "1 KiB", "999 KB", "0.5 GiB", "2.5 MiB", "4 TiB", "1 PB", "10 GB"]
)
def test_a_size_is_shown_in_the_unit_that_it_was_written_in(text: str) -> None:
    shown = format_given(parse_size(text))
    assert parse_size(shown) == parse_size(text), "nothing is rounded"
    assert shown == text.replace("0.5 GiB", "512 MiB")


def test_a_size_without_a_short_form_is_shown_rounded() -> None:
    assert format_given(1_234_567_891) == format_size(1_234_567_891)


def test_only_names_that_are_no_utf_8_are_there_once_more() -> None:
    value = {"name": "caf\udce9 %", "inner": [{"path": "/\u4e2d", "target": "\udcff"}], "count": 1}
    assert with_encoded(value) == {
        "name": "caf\udce9 %",
        "name_encoded": "caf%E9%20%25",
        "inner": [{"path": "/\u4e2d", "target": "\udcff", "target_encoded": "%FF"}],
        "count": 1,
    }
    assert unquote_to_bytes(percent_encoded(bytes(range(1, 256)))) == bytes(range(1, 256))


# Times in words

CLOCKS = ["America/Los_Angeles", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"]


@pytest.fixture
def in_utc_again() -> Iterator[None]:
    yield
    show_times_in(UTC)


@pytest.mark.parametrize("zone", CLOCKS)
def test_times_in_words_are_on_the_clocks_of_the_zone_as_date_has_them(zone: str, in_utc_again: None) -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=37 * number, seconds=number) for number in range(200)]
    show_times_in(ZoneInfo(zone))
    given = [f"@{int(moment.timestamp())}" for moment in moments]
    assert [local_time(moment) for moment in moments] == _date(zone, "%Y-%m-%dT%H:%M:%S%:z", given)
    assert [local_minute(moment) for moment in moments] == _date(zone, "%Y-%m-%d %H:%M %z", given)
    assert [local_day(moment) for moment in moments] == _date(zone, "%Y-%m-%d", given)
    assert [parse_time(local_time(moment)) for moment in moments] == moments, "what is shown can be typed"


def _date(zone: str, form: str, given: list[str]) -> list[str]:
    return work("date", "-f", "-", f"+{form}", env={**os.environ, "TZ": zone}, input="\n".join(given) + "\n").stdout.splitlines()


def test_the_hour_that_clocks_show_twice_has_two_offsets(in_utc_again: None) -> None:
    show_times_in(ZoneInfo("America/Los_Angeles"))
    first, second = datetime(2026, 11, 1, 8, 30, tzinfo=UTC), datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
    assert [local_time(first), local_time(second)] == ["2026-11-01T01:30:00-07:00", "2026-11-01T01:30:00-08:00"]


def test_without_a_zone_and_in_utc_times_in_words_end_with_z(in_utc_again: None) -> None:
    moment = datetime(2026, 11, 20, 22, 0, 3, 999999, tzinfo=UTC)
    assert local_time(moment) == "2026-11-20T22:00:03Z"
    show_times_in(ZoneInfo("UTC"))
    assert local_time(moment) == "2026-11-20T22:00:03Z"


def test_the_ends_of_the_calendar_are_shown_in_any_zone(in_utc_again: None) -> None:
    show_times_in(ZoneInfo("America/Los_Angeles"))
    assert local_time(datetime.min.replace(tzinfo=UTC)).startswith("0001-01-01T00:00:00")
    show_times_in(ZoneInfo("Asia/Tokyo"))
    assert local_time(datetime.max.replace(tzinfo=UTC)).startswith("9999-12-31T23:59:59")


def test_a_recorded_time_is_shown_in_the_zone_and_other_text_as_it_is(in_utc_again: None) -> None:
    show_times_in(ZoneInfo("Europe/Berlin"))
    assert recorded_time("2026-11-20T22:00:03Z") == "2026-11-20T23:00:03+01:00"
    assert recorded_time("yesterday") == "yesterday"
