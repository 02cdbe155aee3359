"""Functions of the dashboard without input or output: paths of any bytes, times in a zone with daylight saving, cached results."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote_to_bytes
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.exceptions import BadRequest

from tests.web.gate import add_user, gate, made
from web.filters import absolute, ago, browser, comes_twice, exact, relative
from web.request_values import path_of_request, path_of_text, path_query, path_text, paths_of_form, paths_of_request

BERLIN = ZoneInfo("Europe/Berlin")
NAME = (
    st.binary(min_size=1, max_size=20)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"?"))
    .filter(lambda n: n not in (b".", b".."))
)
PATH = st.lists(NAME, max_size=5).map(lambda names: b"/" + b"/".join(names))
APP = Flask("paths")
FIRST, LAST = datetime(2000, 1, 1), datetime(2037, 1, 1)  # noqa: DTZ001  hypothesis wants them so


@given(PATH, st.text(max_size=8))
def test_a_path_comes_out_of_an_address_as_it_went_in(path: bytes, other: str) -> None:
    query = path_query(path, backup=other)
    assert query.isascii()
    assert unquote_to_bytes(query.partition("&")[0].removeprefix("path=")) == path  # as every client decodes it
    with APP.test_request_context("/x?" + query):
        assert path_of_request() == path
        assert paths_of_request() == [path]


@given(PATH)
def test_a_path_comes_out_of_a_form_as_it_went_in(path: bytes) -> None:
    with APP.test_request_context("/x", method="POST", data={"path": [path_text(path), path_text(b"/etc")]}):
        assert paths_of_form() == [path, b"/etc"]
    assert path_of_text(path_text(path)) == path


@given(st.binary(max_size=60))
def test_whatever_stands_in_an_address_gives_an_absolute_path_without_dots_or_is_refused(raw: bytes) -> None:
    with APP.test_request_context("/x", environ_overrides={"QUERY_STRING": "path=" + raw.decode("latin-1")}):
        try:
            path = path_of_request()
        except BadRequest:
            return
    assert path.startswith(b"/")
    assert b"\0" not in path
    assert not {b".", b".."} & set(path.split(b"/"))
    assert path == b"/" or b"" not in path.split(b"/")[1:]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("path=/a+b", b"/a b"),
        ("path=/a%2Bb", b"/a+b"),
        ("path=%2Fa%ff", b"/a\xff"),
        ("p%61th=/a", b"/a"),
        ("x=1&path=//a///b/", b"/a/b"),
        ("", b"/"),
        ("path=/first&path=/second", b"/second"),
    ],
)
def test_addresses_are_read_as_browsers_write_them(query: str, path: bytes) -> None:
    with APP.test_request_context("/x?" + query):
        assert path_of_request() == path


@pytest.mark.parametrize(
    "query", ["path=", "path=etc", "path=/a/../b", "path=/a%2f..", "path=/a%00", "path=/./a", "path=/" + "a" * 4096]
)
def test_what_is_no_path_is_refused(query: str) -> None:
    with APP.test_request_context("/x?" + query), pytest.raises(BadRequest):
        path_of_request()


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def test_the_hour_that_comes_twice_says_which_one_it_is() -> None:
    first, second = moment("2026-10-25T00:30:00Z"), moment("2026-10-25T01:30:00Z")
    assert (absolute(first, BERLIN, first), absolute(second, BERLIN, second)) == ("Sun 25 Oct 02:30 CEST", "Sun 25 Oct 02:30 CET")
    assert absolute(moment("2026-10-25T02:30:00Z"), BERLIN, first) == "Sun 25 Oct 03:30"
    assert absolute(moment("2026-03-29T00:59:00Z"), BERLIN, first) == "Sun 29 Mar 01:59"
    assert absolute(moment("2026-03-29T01:00:00Z"), BERLIN, first) == "Sun 29 Mar 03:00"  # the clock leaps


@given(
    st.datetimes(FIRST, LAST),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
def test_two_moments_within_a_day_are_never_told_alike(naive: datetime, name: str) -> None:
    zone, moment = ZoneInfo(name), naive.replace(tzinfo=UTC, second=0, microsecond=0)
    for later in (moment + timedelta(minutes=30), moment + timedelta(hours=1)):
        assert absolute(moment, zone) != absolute(later, zone)
    assert comes_twice(moment, ZoneInfo("UTC")) is False


def test_all_there_is_to_say_of_a_moment() -> None:
    assert exact(moment("2026-11-20T22:00:03Z"), BERLIN) == "2026-11-20 23:00:03 CET (UTC+01:00), 2026-11-20T22:00:03Z"
    assert exact(moment("2026-11-20T22:00:03Z"), ZoneInfo("UTC")) == "2026-11-20 22:00:03 UTC"
    assert absolute(moment("2025-11-20T22:00:00Z"), BERLIN, moment("2026-11-20T22:00:00Z")) == "20 Nov 2025 23:00"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (59, "just now"), (61, "1 minute ago"), (5399, "89 minutes ago"), (5400, "1 hour ago"), (7200, "2 hours ago"),
     (86400 * 1.4, "33 hours ago"), (86400 * 2, "2 days ago"), (-30, "in a moment"), (-1, "just now"), (-7200, "in 2 hours"),
     (86400 * 4000, "4,000 days ago")],
)  # fmt: skip
def test_how_long_ago(seconds: float, words: str) -> None:
    now = moment("2026-11-20T12:00:00Z")
    assert relative(now - timedelta(seconds=seconds), now) == words


def test_what_is_past_is_never_to_come() -> None:
    now = moment("2026-11-20T12:00:00Z")
    assert ago(now - timedelta(hours=2), now) == "2 hours ago"
    assert ago(now + timedelta(minutes=4), now) == "just now"
    assert ago(now + timedelta(days=1800), now) == "1,800 days ahead of the clock"


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Firefox 128 on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/120.0 Safari/537.36 Edg/121.0", "Edge 121 on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Version/17.1 Mobile/15E148 Safari/604.1", "Safari 17 on iPhone"),
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36",
            "Chrome 130 on Linux",
        ),
        ("curl/8.0", "curl/8.0"),
        ("", "unknown"),
    ],
)
def test_browsers_have_names(agent: str, words: str) -> None:
    assert browser(agent) == words


def test_pages_show_times_in_the_pools_zone(tmp_path: Path) -> None:
    settings = made(tmp_path, "Asia/Kathmandu")
    add_user(settings, "alice")
    here = gate(settings)
    here.log_in()
    page = here.get("/account").text
    assert "Asia/Kathmandu (+0545, UTC+05:45)" in page
    assert 'datetime="20' in page
