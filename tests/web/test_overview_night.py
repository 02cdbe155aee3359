"""The night in one sentence: pure, with a made-up night of which everything is known."""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from btrkeep.catalogue import HostFacts, Tried
from btrkeep.config import HostConfig, Window
from web.data.night_sum import Known, NightSum, nights_of, since
from web.data.nights import boundaries, usual_window

BERLIN = ZoneInfo("Europe/Berlin")
WINDOW = Window(time(22), time(6))
MORNING = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
LAST_TIME = datetime(2026, 11, 19, 21, 30, tzinfo=UTC)


def at(text: str) -> datetime:
    """A local time of Berlin: 20 22:00 is the evening of the 20th."""
    day, _, clock = text.partition(" ")
    hour, _, minute = clock.partition(":")
    return datetime(2026, 11, int(day), int(hour), int(minute), tzinfo=BERLIN).astimezone(UTC)


def tried(host: str, begin: str, end: str | None, outcome: str | None = "complete", **more: Any) -> Tried:
    plain = Tried(host, 1, at(begin), at(end) if end else None, outcome, None, None, 1000, 1, "1", True)
    return plain._replace(**more)


def facts(last: datetime | None) -> HostFacts:
    return HostFacts(last, last, 1, 1, 1, "complete", None, (), 1, last, "complete", None)


def known(
    hosts: Sequence[HostConfig], runs: Sequence[Tried], now: datetime = MORNING, alive: frozenset[int] = frozenset()
) -> Known:
    """All hosts had their last complete backup two nights ago, unless a run says otherwise."""
    newest = {run.host: run.started for run in runs if run.outcome == "complete"}
    return Known(
        {host.name: host for host in hosts},
        {host.name: facts(newest.get(host.name, LAST_TIME)) for host in hosts},
        runs,
        alive,
        BERLIN,
        now,
    )


def named(*names: str, window: Window | None = WINDOW, **more: Any) -> list[HostConfig]:
    return [HostConfig(name, paths=("/",), window=window, **more) for name in names]


def only(found: tuple[NightSum, ...]) -> NightSum:
    (night,) = found
    return night


def test_a_night_is_told_in_one_sentence() -> None:
    names = [f"web{number}" for number in range(1, 314)]
    runs = [tried(name, "20 22:10", "20 22:20") for name in names if name != "web7"]
    runs += [tried("web1", "20 22:00", "20 22:01"), tried("web313", "21 03:00", "21 03:41")]
    runs += [tried("web7", "20 23:00", "20 23:01", "failed"), tried("db1", "20 23:00", "20 23:01", "failed")]
    night = only(nights_of(known(named(*names, "db1"), runs)))
    assert night.sentence == "312 of 314 hosts complete between 22:00 and 03:41; 2 failed: db1, web7"
    assert (night.day, night.going_on, night.complete, night.expected) == ("2026-11-20", False, 312, 314)
    assert night.new_bytes == 1000 * len(runs)


def test_the_best_run_of_a_host_counts() -> None:
    runs = [
        tried("a", "20 22:00", "20 22:01", "failed"),
        tried("a", "21 02:00", "21 02:05"),
        tried("a", "21 04:00", "21 04:01", "failed"),
    ]
    assert only(nights_of(known(named("a"), runs))).sentence == "1 of 1 host complete between 22:00 and 04:01"


def test_a_host_that_nobody_tried_is_missed_in_the_morning_and_yet_to_come_in_the_night() -> None:
    hosts, runs = named("a", "b"), [tried("a", "20 22:00", "20 22:10")]
    assert only(nights_of(known(hosts, runs))).sentence == "1 of 2 hosts complete between 22:00 and 22:10; 1 not tried: b"
    tonight = nights_of(known(hosts, runs, at("20 22:30")))[0]
    assert tonight.going_on
    assert tonight.sentence == "1 of 2 hosts complete so far, since 22:00; 1 to come"


def test_what_runs_is_told_beside_the_night_before() -> None:
    hosts = named("a", "b")
    runs = [
        tried("a", "19 22:00", "19 22:10"),
        tried("b", "19 22:00", "19 22:20", "partial"),
        tried("a", "20 22:00", None, None, id=7),
    ]
    tonight, before = nights_of(known(hosts, runs, at("20 22:05"), frozenset({7})))
    assert tonight.sentence == "0 of 2 hosts complete so far, since 22:00; 1 running; 1 to come"
    assert before.sentence == "1 of 2 hosts complete between 22:00 and 22:20; 1 partial: b"
    assert (before.going_on, before.day) == (False, "2026-11-19")


def test_a_run_whose_process_is_gone_is_partial() -> None:
    night = only(nights_of(known(named("a"), [tried("a", "20 22:00", None, None, id=7)])))
    assert [(part.outcome, part.names) for part in night.parts] == [("partial", ("a",))]


def test_without_windows_a_night_is_not_cut_at_midnight() -> None:
    hosts = named("a", "b", window=None)
    runs = [tried("a", "20 23:50", "21 00:10"), tried("b", "21 00:10", "21 00:20")]
    assert only(nights_of(known(hosts, runs))).sentence == "2 of 2 hosts complete between 23:50 and 00:20"


def test_without_windows_nobody_is_yet_to_come_once_nothing_has_run_for_a_while() -> None:
    hosts, runs = named("a", "b", window=None), [tried("a", "20 22:00", "20 22:10")]
    assert nights_of(known(hosts, runs, at("20 22:20")))[0].going_on
    assert only(nights_of(known(hosts, runs, at("20 23:20")))).unwell[0].names == ("b",)


def test_one_host_that_was_run_by_hand_in_the_afternoon_begins_no_night() -> None:
    hosts = named("a", "b", "c", window=None)
    night = [tried(name, "20 22:00", "20 22:10") for name in "abc"]
    by_hand = tried("a", "21 15:00", "21 15:05", night=False)
    assert only(nights_of(known(hosts, [*night, by_hand], at("21 16:00")))).day == "2026-11-20"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HostConfig("b", window=WINDOW), 2),
        (HostConfig("b", window=WINDOW, enabled=False), 1),
        (HostConfig("b", window=WINDOW, optional=True), 1),
        (HostConfig("b", window=WINDOW, every=7 * 86400.0), 1),
    ],
)
def test_only_who_was_due_is_missed(host: HostConfig, expected: int) -> None:
    night = only(nights_of(known([*named("a"), host], [tried("a", "20 22:00", "20 22:10")])))
    assert night.expected == expected


def test_of_hosts_that_all_failed_some_are_named_and_the_others_counted() -> None:
    names = [f"h{number:03}" for number in range(200)]
    night = only(nights_of(known(named(*names), [tried(name, "20 22:00", "20 22:01", "failed") for name in names])))
    assert night.sentence.endswith("200 failed: h000, h001, h002, h003, h004 and 195 more")


def test_a_pool_where_nothing_was_ever_tried_has_no_night() -> None:
    hosts = named("a", window=None)
    night = only(nights_of(known(hosts, [])))
    assert night.sentence == "0 of 1 host complete: nothing was tried; 1 not tried: a"
    assert nights_of(known([], [])) == ()


@pytest.mark.parametrize(("now", "hours"), [("2026-03-29T12:00", 23), ("2026-10-25T12:00", 25), ("2026-11-21T12:00", 24)])
def test_a_night_in_which_the_clock_changes_is_an_hour_longer_or_shorter(now: str, hours: int) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=BERLIN).astimezone(UTC)
    begins = boundaries(WINDOW, BERLIN, moment + timedelta(days=1), 30)
    assert all(begin.astimezone(BERLIN).time() == time(22) for begin in begins)
    lengths = {begin.astimezone(BERLIN).date(): later - begin for begin, later in pairwise(begins)}
    assert lengths[(moment - timedelta(days=1)).astimezone(BERLIN).date()] == timedelta(hours=hours)


def test_the_usual_window_is_that_of_most_hosts() -> None:
    early, late = Window(time(20), time(4)), Window(time(23), time(6))
    assert usual_window(named("a", "b", window=late) + named("c", window=early)) == late
    assert usual_window(named("a", window=late) + named("b", "c", window=early, enabled=False)) == late
    assert usual_window(named("a", window=None)) is None
    assert since(named("a", window=late), BERLIN, MORNING) == at("19 23:00")
