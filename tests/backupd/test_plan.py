"""The plan of a run: its hosts, their order, and why no further host may start. Pure decisions without a pool."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.run.host_order import PlannedHost, answer_call, plan
from backupd.run.room import too_little_room
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import HostFacts
from btrkeep.config import Config, HostConfig, Window
from btrkeep.config.settings import PoolSettings
from btrkeep.config.values import parse_min_free, parse_window
from btrkeep.errors import Exit, UsageError
from btrkeep.pool.space_by_profile import Room
from tests.backupd.facts import NOW, ago, facts

POOL = PoolSettings(Path("/srv/backup"), Path("/var/lib/btrkeep/main"), ZoneInfo("UTC"))


def window(text: str) -> Window | None:
    return parse_window(text)


OPEN, CLOSED = window("22:00-06:00"), window("01:00-05:00")  # at NOW, which is 23:10


def config(*hosts: HostConfig, min_free: str = "5%") -> Config:
    pool = replace(POOL, min_free=parse_min_free(min_free))
    return Config(Path("/etc/btrkeep/main.toml"), "main", pool, hosts={host.name: host for host in hosts})


def taken(planned: list[PlannedHost]) -> list[str]:
    return [entry.host.name for entry in planned if entry.runs]


THREE = config(HostConfig("a"), HostConfig("b"), HostConfig("c", enabled=False))


def test_due_hosts_run_and_the_others_are_skipped_with_a_reason() -> None:
    planned = plan(THREE, {"a": facts(complete=1, run=1), "b": facts(complete=30, run=30)}, NOW)
    assert taken(planned) == ["b"]
    assert {entry.host.name for entry in planned} == {"a", "b"}  # a disabled host is not even listed
    assert all(entry.reason for entry in planned)


def test_no_night_takes_a_host_that_calls() -> None:
    both = config(HostConfig("a"), HostConfig("laptop", calls=True))
    for everything in (False, True):
        planned = plan(both, {}, NOW, everything=everything)
        assert taken(planned) == ["a"]
        assert [entry.reason.split(":")[0] for entry in planned if not entry.runs] == ["it calls this server"]


@pytest.mark.parametrize(
    ("host_facts", "opening", "runs", "minutes"),
    [
        (None, None, True, 50),  # until midnight, when its next period begins
        (facts(complete=30, run=30), None, True, 50),
        (facts(complete=1, run=1, outcome="complete"), None, False, 50),
        (facts(complete=30), CLOSED, False, 110),  # until 01:00
        (facts(complete=30), OPEN, True, 24 * 60 - 70),  # until the next window
        (facts(complete=1), OPEN, False, 24 * 60 - 70),
        (facts(complete=30, run=0.1, outcome="partial"), None, False, 9),
        (facts(complete=30, run=0.3, outcome="partial"), None, True, 50),
        (facts(complete=30, run=1, outcome="failed"), None, False, 4 * 60),  # five hours after it
        (facts(complete=30, run=1, outcome="suspect"), None, False, 4 * 60),
        (facts(complete=30, run=5.1, outcome="failed"), None, True, 50),
        (facts(complete=-1), None, True, 50),  # a clock was wrong
    ],
)
def test_a_host_that_calls_is_told_when_to_call_again(
    host_facts: HostFacts | None, opening: Window | None, runs: bool, minutes: int
) -> None:
    answered = answer_call(HostConfig("laptop", calls=True, window=opening), host_facts, ZoneInfo("UTC"), NOW)
    assert answered.entry.runs is runs
    assert answered.entry.bound is (runs and opening is not None)
    assert round(answered.again / timedelta(minutes=1)) == minutes
    assert answered.entry.reason


def test_the_next_call_is_neither_at_once_nor_after_more_than_a_day() -> None:
    often = answer_call(HostConfig("laptop", calls=True, every=1.0), None, ZoneInfo("UTC"), NOW)
    seldom = answer_call(HostConfig("laptop", calls=True, every=30 * 86400.0), facts(complete=1), ZoneInfo("UTC"), NOW)
    assert (often.again, seldom.again) == (timedelta(minutes=1), timedelta(days=1))


def test_all_takes_those_that_are_not_due_but_none_that_is_switched_off() -> None:
    assert taken(plan(THREE, {"a": facts(complete=1, run=1)}, NOW, everything=True)) == ["b", "a"]


def test_a_name_is_taken_whether_due_or_not_or_switched_off_in_the_order_given_and_once() -> None:
    planned = plan(THREE, {"a": facts(complete=1)}, NOW, names=["c", "a", "c"])
    assert taken(planned) == ["c", "a"]
    assert {entry.reason for entry in planned} == {"requested by name"}


def test_an_unknown_name_is_wrong_usage_and_the_nearest_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        plan(config(HostConfig("web1"), HostConfig("mail")), {}, NOW, names=["web"])
    assert "web" in caught.value.message
    assert "web1" in caught.value.hint
    assert caught.value.exit_code is Exit.USAGE
    with pytest.raises(UsageError) as caught:
        plan(config(HostConfig("web1")), {}, NOW, names=["xyz"])
    assert "backupd host list" in caught.value.hint


@pytest.mark.parametrize("outcome", ["failed", "partial", "suspect", "skipped"])
@pytest.mark.parametrize(("run", "waits"), [(0.0, True), (4.9, True), (5.0, False), (6, False)])
def test_a_timer_tries_a_host_that_failed_again_after_five_hours_and_not_each_time(outcome: str, run: float, waits: bool) -> None:
    """The timer runs each quarter of an hour: it would connect to a host that is down a hundred times a day."""
    by_name = {"a": facts(complete=30, run=run, outcome=outcome), "b": facts(complete=30, run=30)}
    assert taken(plan(THREE, by_name, NOW, scheduled=True)) == (["b"] if waits else ["b", "a"])
    assert taken(plan(THREE, by_name, NOW)) == ["b", "a"]  # started by an administrator, it is attempted


def test_a_host_that_is_backed_up_often_is_tried_again_after_a_quarter_of_its_interval() -> None:
    hosts = config(HostConfig("a", every=4 * 3600.0))
    for run, expected in ((0.9, []), (1.1, ["a"])):
        assert taken(plan(hosts, {"a": facts(complete=9, run=run, outcome="failed")}, NOW, scheduled=True)) == expected


@pytest.mark.parametrize(
    "host_facts",
    [
        facts(complete=30, run=1, outcome="partial", last_run_cause=Cause(CauseCode.SIGNAL, facts={"name": "SIGTERM"})),
        facts(complete=30, run=1, outcome="partial", last_run_cause=Cause(CauseCode.WINDOW_CLOSED)),
        facts(complete=30, run=1, outcome="killed"),
        facts(complete=30, run=31, outcome="failed"),
        facts(complete=30, run=-2, outcome="failed"),
        facts(complete=30),
    ],
    ids=["a signal", "its window", "a crash", "an older attempt", "a wrong clock", "no run known"],
)
def test_what_says_nothing_about_the_host_costs_it_no_night(host_facts: HostFacts) -> None:
    assert taken(plan(config(HostConfig("a")), {"a": host_facts}, NOW, scheduled=True)) == ["a"]


def test_a_host_whose_window_closed_before_its_turn_comes_first() -> None:
    closed = Cause(CauseCode.WINDOW_CLOSED, facts={"window": "22:00-06:00"})
    by_name = {"a": facts(complete=30, run=30), "b": facts(complete=50, run=1, outcome="skipped", last_run_cause=closed)}
    assert taken(plan(config(HostConfig("a"), HostConfig("b")), by_name, NOW)) == ["b", "a"]


def test_the_host_tried_longest_ago_runs_first_and_new_hosts_before_it() -> None:
    hosts = config(*(HostConfig(name) for name in ("recent", "failing", "old", "never")))
    by_name = {
        "recent": facts(complete=26, run=26),
        "failing": facts(complete=200, run=2, outcome="failed"),  # tried again this evening: it must not starve the others
        "old": facts(complete=100, run=100),
    }
    assert taken(plan(hosts, by_name, NOW)) == ["never", "old", "recent", "failing"]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.floats(0, 1000)), min_size=1))
def test_the_order_is_that_of_the_last_tries(tries: dict[str, float | None]) -> None:
    planned = plan(
        config(*map(HostConfig, tries)),
        {name: facts(run=hours) for name, hours in tries.items() if hours is not None},
        NOW,
        everything=True,
    )
    hours = [tries[entry.host.name] for entry in planned]
    assert len(planned) == len(tries)
    seconds = [float("inf") if each is None else -round(ago(each).timestamp()) for each in hours]
    assert seconds == sorted(seconds, reverse=True)


def test_a_host_that_let_a_time_limit_pass_runs_last_and_is_not_postponed_for_ever() -> None:
    names = ("silent", "stalled", "refused", "good", "late")
    causes = {
        "silent": Cause(CauseCode.RSYNC_UNFINISHED, facts={"exit_cause": "silent", "exit_code": 255}),
        "stalled": Cause(CauseCode.STALLED, facts={"seconds": 600.0}),
        "refused": Cause(CauseCode.RSYNC_UNFINISHED, facts={"exit_cause": "refused", "exit_code": 255}),
        "late": Cause(CauseCode.DEADLINE),
    }
    ran = dict(zip(names, range(11, 16), strict=True))  # the numbers of the runs of a first night, in which they were in this order

    def order() -> list[str]:
        by_name = {name: replace(facts(), last_run=number, last_run_cause=causes.get(name)) for name, number in ran.items()}
        return taken(plan(config(*map(HostConfig, names)), by_name, NOW, everything=True))

    assert order() == ["refused", "good", "late", "silent", "stalled"]
    for night in (20, 30):  # these end before the silent ones had their turn
        ran |= {name: night + number for number, name in enumerate(("refused", "good", "late"))}
    assert order()[:2] == ["silent", "stalled"]


# Windows


def planned_host(host: HostConfig, complete: float | None, *, catch_up: bool = False) -> PlannedHost:
    [entry] = plan(config(host), {host.name: facts(complete=complete, run=complete)}, NOW, catch_up=catch_up)
    return entry


def test_inside_its_window_a_host_runs_and_must_end_with_it() -> None:
    entry = planned_host(HostConfig("a", window=OPEN), 30)
    assert (entry.runs, entry.bound) == (True, True)


def test_outside_its_window_a_host_is_skipped_with_the_time_of_the_next_start() -> None:
    entry = planned_host(HostConfig("a", window=CLOSED), 30)
    assert (entry.runs, entry.bound) == (False, False)
    assert "01:00-05:00" in entry.reason
    assert "2026-11-21T01:00:00Z" in entry.reason


def test_without_a_window_nothing_binds() -> None:
    assert planned_host(HostConfig("a"), 30).bound is False


def test_catch_up_ignores_the_window_for_those_that_are_late_and_for_them_alone() -> None:
    host = HostConfig("a", window=CLOSED)
    assert planned_host(host, 35, catch_up=True).runs is False
    late = planned_host(host, 37, catch_up=True)
    assert (late.runs, late.bound) == (True, False)
    assert "--catch-up" in late.reason
    assert planned_host(host, None, catch_up=True).runs is True
    assert planned_host(host, 37).runs is False
    assert planned_host(HostConfig("b", window=OPEN), 37, catch_up=True).bound is True  # inside its window it needs no catching up


def test_a_host_named_on_the_command_line_runs_outside_its_window() -> None:
    host = HostConfig("a", window=CLOSED)
    for entry in (*plan(config(host), {}, NOW, names=["a"]), *plan(config(host), {}, NOW, everything=True)):
        assert (entry.runs, entry.bound) == (True, False)


def test_the_pools_zone_is_what_the_window_is_read_in() -> None:
    host = HostConfig("a", window=window("12:00-13:00"))
    tokyo = replace(config(host), pool=replace(POOL, zone=ZoneInfo("Asia/Tokyo")))
    midday = datetime.fromisoformat("2026-11-21T12:30:00+09:00")
    assert taken(plan(tokyo, {}, midday)) == ["a"]
    assert taken(plan(config(host), {}, midday)) == []


# Room

GIB = 1 << 30


def room(free: int, unallocated: int, metadata_free: int = GIB, total: int = 100 * GIB) -> Room:
    return Room(total, free, unallocated, metadata_free)


@pytest.mark.parametrize(
    ("result", "floor", "enough"),
    [
        (room(3 * GIB, 2 * GIB), "5%", True),  # together exactly the required amount
        (room(3 * GIB, 2 * GIB - 1), "5%", False),
        (room(5 * GIB, 0), "5%", True),
        (room(0, 5 * GIB), "5%", True),
        (room(9 * GIB, 10 * GIB), "20GiB", False),
        (room(10 * GIB, 10 * GIB), "20GiB", True),
        (room(1, 0), "0%", True),
    ],
)
def test_free_and_unallocated_room_count_together(result: Room, floor: str, enough: bool) -> None:
    reason = too_little_room(result, config(min_free=floor))
    assert bool(reason) is not enough
    if reason:
        assert floor in reason
        assert "unallocated" in reason
        assert "free in data block groups" in reason


def test_without_room_for_metadata_nothing_starts_however_much_data_would_fit() -> None:
    assert "metadata" in too_little_room(room(50 * GIB, 0, metadata_free=0), config())
    assert too_little_room(room(50 * GIB, GIB, metadata_free=0), config()) == ""  # more can be allocated
