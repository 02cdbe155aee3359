"""The night in one sentence, computed from an invented night of which everything is known."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from btrkeep.catalogue import HostFacts, HostRuns
from btrkeep.config import HostConfig, Window
from web.hosts.night_sum import NightFacts, NightSum, nights_of, runs_of_backups, since
from web.hosts.nights import boundaries, usual_window

BERLIN = ZoneInfo("Europe/Berlin")
WINDOW = Window(time(22), time(6))
MORNING = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
LAST_TIME = datetime(2026, 11, 19, 21, 30, tzinfo=UTC)


def at(text: str) -> datetime:
    """Returns a local time of Berlin: 20 22:00 is the evening of the 20th."""
    day, _, clock = text.partition(" ")
    hour, _, minute = clock.partition(":")
    return datetime(2026, 11, int(day), int(hour), int(minute), tzinfo=BERLIN).astimezone(UTC)


def tried(host: str, begin: str, end: str | None, outcome: str | None = "complete", **more: Any) -> HostRuns:
    plain = HostRuns(host, 1, at(begin), at(end) if end else None, outcome, None, None, 1000, 1, "1", True)
    return plain._replace(**more)


def facts(last: datetime | None) -> HostFacts:
    return HostFacts(last, last, 1, 1, 1, "complete", None, (), 1, last, "complete", None)


def hosts_with(
    hosts: Sequence[HostConfig], runs: Sequence[HostRuns], now: datetime = MORNING, alive: frozenset[int] = frozenset()
) -> NightFacts:
    """Returns hosts whose last complete backup was two nights ago, except for the given runs."""
    newest = {run.host: run.started for run in runs if run.outcome == "complete"}
    return NightFacts(
        {host.name: host for host in hosts},
        {host.name: facts(newest.get(host.name, LAST_TIME)) for host in hosts},
        runs,
        alive,
        BERLIN,
        now,
    )


def named(*names: str, window: Window | None = WINDOW, **more: Any) -> list[HostConfig]:
    return [HostConfig(name, paths=("/",), window=window, **more) for name in names]


def only(result: tuple[NightSum, ...]) -> NightSum:
    (night,) = result
    return night


def test_a_night_is_told_in_one_sentence() -> None:
    names = [f"web{number}" for number in range(1, 314)]
    runs = [tried(name, "20 22:10", "20 22:20") for name in names if name != "web7"]
    runs += [tried("web1", "20 22:00", "20 22:01"), tried("web313", "21 03:00", "21 03:41")]
    runs += [tried("web7", "20 23:00", "20 23:01", "failed"), tried("db1", "20 23:00", "20 23:01", "failed")]
    night = only(nights_of(hosts_with(named(*names, "db1"), runs)))
    assert night.sentence == "312 of 314 hosts complete between 22:00 and 03:41; 2 failed: db1, web7"
    assert (night.day, night.going_on, night.complete, night.expected) == ("2026-11-20", False, 312, 314)
    assert night.new_bytes == 1000 * len(runs)


def test_the_best_run_of_a_host_counts() -> None:
    runs = [
        tried("a", "20 22:00", "20 22:01", "failed"),
        tried("a", "21 02:00", "21 02:05"),
        tried("a", "21 04:00", "21 04:01", "failed"),
    ]
    assert only(nights_of(hosts_with(named("a"), runs))).sentence == "1 of 1 host complete between 22:00 and 04:01"


def test_a_host_that_was_not_tried_is_missed_in_the_morning_and_pending_in_the_night() -> None:
    hosts, runs = named("a", "b"), [tried("a", "20 22:00", "20 22:10")]
    assert only(nights_of(hosts_with(hosts, runs))).sentence == "1 of 2 hosts complete between 22:00 and 22:10; 1 not tried: b"
    tonight = nights_of(hosts_with(hosts, runs, at("20 22:30")))[0]
    assert tonight.going_on
    assert tonight.sentence == "1 of 2 hosts complete so far, since 22:00; 1 to come"


def test_what_runs_is_told_beside_the_night_before() -> None:
    hosts = named("a", "b")
    runs = [
        tried("a", "19 22:00", "19 22:10"),
        tried("b", "19 22:00", "19 22:20", "partial"),
        tried("a", "20 22:00", None, None, id=7),
    ]
    tonight, before = nights_of(hosts_with(hosts, runs, at("20 22:05"), frozenset({7})))
    assert tonight.sentence == "0 of 2 hosts complete so far, since 22:00; 1 running; 1 to come"
    assert before.sentence == "1 of 2 hosts complete between 22:00 and 22:20; 1 partial: b"
    assert (before.going_on, before.day) == (False, "2026-11-19")


def test_a_run_whose_process_is_gone_is_partial() -> None:
    night = only(nights_of(hosts_with(named("a"), [tried("a", "20 22:00", None, None, id=7)])))
    assert [(part.outcome, part.names) for part in night.parts] == [("partial", ("a",))]


def test_without_windows_a_night_is_not_cut_at_midnight() -> None:
    hosts = named("a", "b", window=None)
    runs = [tried("a", "20 23:50", "21 00:10"), tried("b", "21 00:10", "21 00:20")]
    assert only(nights_of(hosts_with(hosts, runs))).sentence == "2 of 2 hosts complete between 23:50 and 00:20"


def test_without_windows_no_host_is_pending_once_nothing_has_run_for_a_while() -> None:
    hosts, runs = named("a", "b", window=None), [tried("a", "20 22:00", "20 22:10")]
    assert nights_of(hosts_with(hosts, runs, at("20 22:20")))[0].going_on
    night = only(nights_of(hosts_with(hosts, runs, at("20 23:20"))))
    assert [part.names for part in night.parts if part.outcome != "complete"] == [("b",)]


def test_one_host_that_was_run_by_hand_in_the_afternoon_begins_no_night_and_is_told_before_it() -> None:
    hosts = named("a", "b", "c", window=None)
    night = [tried(name, "20 22:00", "20 22:10") for name in "abc"]
    by_hand = tried("a", "21 15:00", "21 15:05", night=False)
    today, before = nights_of(hosts_with(hosts, [*night, by_hand], at("21 16:00")))
    assert (before.day, before.by_hand, before.complete) == ("2026-11-20", False, 3)
    assert (today.by_hand, today.sentence) == (True, "1 of 1 host complete between 15:00 and 15:05")


def test_on_the_first_day_there_is_what_was_run_by_hand_and_no_night_before_the_installation() -> None:
    hosts = named("a", "b", "c")
    runs = [tried("a", "21 10:30", "21 10:40", night=False), tried("b", "21 10:50", "21 10:55", "failed", night=False)]
    here = replace(hosts_with(hosts, runs, at("21 12:00")), facts={}, began=dict.fromkeys("abc", at("21 10:00")))
    today = only(nights_of(here))
    assert (today.by_hand, today.sentence) == (True, "1 of 2 hosts complete between 10:30 and 10:55; 1 failed: b")
    assert nights_of(replace(here, runs=())) == ()
    all_of_them = [tried(name, "21 10:30", "21 10:40", night=False) for name in "abc"]
    assert only(nights_of(replace(here, runs=all_of_them))).by_hand
    with_all = [run._replace(night=True) for run in all_of_them]  # `backupd run --all`, which minds no window
    assert only(nights_of(replace(here, runs=with_all))).by_hand
    tonight = nights_of(replace(here, now=at("21 22:05")))
    assert [(night_sum.going_on, night_sum.day, night_sum.expected) for night_sum in tonight] == [
        (True, "2026-11-21", 3),
        (False, "2026-11-20", 2),
    ]
    tomorrow = only(nights_of(replace(here, runs=[*runs, tried("a", "21 22:01", "21 22:02")], now=at("22 08:00"))))
    assert tomorrow.sentence == "1 of 3 hosts complete between 22:01 and 22:02; 2 not tried: b, c"


def test_a_host_is_missed_only_in_nights_in_which_it_was_there_before_the_window_closed() -> None:
    hosts, runs = named("a", "b"), [tried("a", "20 22:00", "20 22:10")]
    for began, expected in (("21 05:59", 2), ("21 06:00", 1), ("21 07:00", 1)):
        here = replace(hosts_with(hosts, runs), began={"b": at(began)})
        here = replace(here, facts={"a": here.facts["a"]})
        assert only(nights_of(here)).expected == expected, began


def test_a_night_unknown_to_the_catalogue_misses_no_host_and_is_shown_by_its_backups() -> None:
    unknown = [(at("1 00:00"), at("21 07:00"))]
    made = {name: replace(facts(at("20 22:30")), last_complete_finished=at("20 23:00")) for name in "ab"}
    here = replace(hosts_with(named("a", "b", "c"), []), facts=made, unknown=unknown)
    assert nights_of(here) == ()
    night = only(nights_of(replace(here, runs=runs_of_backups(made, [], unknown))))
    assert night.sentence == "2 of 2 hosts complete between 22:30 and 23:00"
    assert runs_of_backups(made, [], []) == []
    assert runs_of_backups(made, [tried("a", "20 22:30", "20 23:00"), tried("b", "20 22:30", "20 23:00")], unknown) == []


def test_a_night_says_which_24_hours_it_is() -> None:
    assert only(nights_of(hosts_with(named("a"), [tried("a", "20 22:00", "20 22:10")]))).about.startswith(
        "A night is the 24 hours from 22:00"
    )
    assert "from noon to noon" in only(nights_of(hosts_with(named("a", window=None), [tried("a", "20 22:00", "20 22:10")]))).about


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
    night = only(nights_of(hosts_with([*named("a"), host], [tried("a", "20 22:00", "20 22:10")])))
    assert night.expected == expected


def test_of_hosts_that_all_failed_some_are_named_and_the_others_counted() -> None:
    names = [f"h{number:03}" for number in range(200)]
    night = only(nights_of(hosts_with(named(*names), [tried(name, "20 22:00", "20 22:01", "failed") for name in names])))
    assert night.sentence.endswith("200 failed: h000, h001, h002, h003, h004 and 195 more")


@pytest.mark.parametrize(("poor", "level"), [(0, "ok"), (1, "warning"), (19, "warning"), (20, "error"), (200, "error")])
def test_a_finished_night_is_a_warning_if_a_few_hosts_are_not_complete_and_an_error_from_a_share_on(poor: int, level: str) -> None:
    names = [f"h{number:03}" for number in range(200)]
    runs = [tried(name, "20 22:00", "20 22:01", "failed" if number < poor else "complete") for number, name in enumerate(names)]
    facts = hosts_with(named(*names), runs)
    assert only(nights_of(facts)).level == level
    assert only(nights_of(replace(facts, red=1.0))).level == ("warning" if level == "error" and poor < 200 else level)


def test_a_night_in_progress_is_no_failure_yet() -> None:
    runs = [tried("a", "20 22:00", "20 22:01", "failed"), tried("b", "20 22:00", None, None)]
    night = nights_of(hosts_with(named("a", "b"), runs, at("20 22:05"), alive=frozenset({1})))[0]
    assert (night.going_on, night.level) == (True, "ok")


def test_a_pool_where_nothing_was_ever_tried_has_no_night() -> None:
    hosts = named("a", window=None)
    night = only(nights_of(hosts_with(hosts, [])))
    assert night.sentence == "0 of 1 host complete: no run was attempted; 1 not tried: a"
    assert nights_of(hosts_with([], [])) == ()


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


def test_a_suspect_backup_that_was_accepted_is_complete_as_on_the_page_of_the_host() -> None:
    made = tried("web1", "20 22:00", "20 22:10", "suspect", backup="2026-11-20T210000Z")
    before = hosts_with(named("web1", "web2"), [made, tried("web2", "20 22:00", "20 22:10")])
    assert "1 suspect: web1" in only(nights_of(before)).sentence
    after = replace(before, facts={**before.facts, "web1": facts(made.started)})
    assert "2 of 2 hosts complete" in only(nights_of(after)).sentence
