"""What a silence covers. Without this, a silence would hide damage, outlive its date, or reach hosts that nobody named."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from btrkeep.catalogue import Silence, StoredAlarm
from btrkeep.decisions.findings import CHECKS, ERROR, ROOM, Finding, PoolVerdict
from btrkeep.decisions.overall import OverallFacts, judge
from btrkeep.decisions.silences import PROBLEM_KINDS, Silences, silence_words, without_silenced

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=2)
GROUPS = {"web1": "web", "web2": "web", "db1": None}


def silence(kind: str, name: str, until: datetime = LATER, **more: Any) -> Silence:
    return Silence(
        **{"kind": kind, "name": name, "until": until, "who": "alice", "why": "moved", "since": NOW, "paused": False, **more}
    )


def silences(*rows: Silence, now: datetime = NOW) -> Silences:
    return Silences.of(rows, GROUPS, now)


def alarm(subject: str, event: str = "failure") -> StoredAlarm:
    return StoredAlarm(event, subject, "text", 1, NOW, 1, NOW, None, None)


def test_a_host_is_silenced_by_its_name_or_its_group_until_the_date_and_no_longer() -> None:
    rows = (silence("host", "db1"), silence("group", "web", NOW + timedelta(days=1)))
    assert [bool(silences(*rows).of_host(host)) for host in ("web1", "web2", "db1", "web")] == [True, True, True, False]
    after = silences(*rows, now=NOW + timedelta(days=1))
    assert [bool(after.of_host(host)) for host in ("web1", "db1")] == [False, True]
    assert not silences(*rows, now=LATER).active
    assert not silences(silence("group", "None")).of_host("db1")


def test_of_two_silences_of_a_host_the_longer_one_counts() -> None:
    both = silences(silence("host", "web1", NOW + timedelta(hours=1), why="short"), silence("group", "web", why="long"))
    longer = both.of_host("web1")
    assert longer
    assert longer.why == "long"
    assert both.pause_of("web1") is None


@pytest.mark.parametrize("subject", ["damaged web1", "altered", "device 1", "missing device 1", "pool", "read-only", "catalogue"])
def test_damage_is_never_silenced(subject: str) -> None:
    every = silences(
        silence("host", "web1"), silence("group", "web"), *(silence("problem", kind) for kind in (*PROBLEM_KINDS, *CHECKS))
    )
    event = "devices" if "device" in subject or "damaged" in subject else "failure"
    assert every.of_alarm(alarm(subject, event)) is None


@pytest.mark.parametrize("kind", ["damaged", "altered", "failing", "unusable", "errors", "missing", "unchecked", "in-doubt"])
def test_a_kind_that_cannot_be_silenced_stays_in_the_verdict_whatever_the_catalogue_has(kind: str) -> None:
    assert silences(silence("problem", kind)).problem_kinds == frozenset()


def test_a_kind_of_problem_is_silenced_with_its_alarm_and_no_other() -> None:
    room = silences(silence("problem", ROOM))
    assert room.of_alarm(alarm("min_free", "room"))
    assert not room.of_alarm(alarm("unallocated", "room"))
    assert silences(silence("problem", "copy-never")).of_alarm(alarm("replica there", "silent"))
    assert not silences(silence("problem", "copy-never")).of_alarm(alarm("replica there", "failure"))


def judged(rows: Silences, states: dict[str, str], *alarms: StoredAlarm, **more: Any) -> str:
    hosts = without_silenced(states.items(), alarms, rows)
    facts = OverallFacts(
        hosts.states, now=NOW, alarms_checked=NOW, alarms=hosts.alarms, never=hosts.never, **more,
        silenced_hosts=len(hosts.silenced), silenced_kinds=rows.problem_kinds,
    )  # fmt: skip
    return judge(facts).sentence


def test_silenced_problems_are_counted_apart_and_never_hidden() -> None:
    web = silences(silence("group", "web"))
    states = {"web1": "failing", "web2": "ok", "db1": "failing"}
    assert judged(web, states) == "Needs attention: 1 host failing, 1 silenced"
    assert judged(web, states | {"db1": "ok"}) == "Nothing else needs attention: 1 silenced"
    assert judged(web, states | {"web1": "ok", "db1": "ok"}) == "All is well"
    assert judged(web, states | {"db1": "ok"}, damaged=1) == "Needs attention: 1 backup damaged, 1 silenced"


def test_a_host_that_should_have_its_first_backup_is_counted_once() -> None:
    never, overdue = {"web1": "never", "web2": "ok"}, alarm("host web1", "silent")
    assert judged(silences(), never, overdue) == "Needs attention: 1 host without a first backup"
    assert (
        judged(silences(silence("host", "web1")), never, overdue, alarm("condition web1"))
        == "Nothing else needs attention: 1 silenced"
    )
    assert judged(silences(silence("host", "web1")), never) == "All is well"


def test_a_host_whose_first_run_failed_is_a_problem_before_its_backup_is_overdue() -> None:
    never, failed = {"web1": "never", "web2": "ok"}, alarm("host web1", "failure")
    assert judged(silences(), never, failed) == "Needs attention: 1 host without a first backup"
    assert judged(silences(silence("host", "web1")), never, failed) == "Nothing else needs attention: 1 silenced"


def test_a_silenced_check_of_the_pool_is_counted_as_silenced() -> None:
    pool = PoolVerdict((Finding(ROOM, ERROR, "full"),))
    assert judged(silences(silence("problem", ROOM)), {}, pool=pool) == "Nothing else needs attention: 1 silenced"


def test_a_limited_user_sees_silences_of_hosts_that_he_sees_and_no_group_or_problem() -> None:
    every = silences(silence("host", "web1"), silence("host", "db1"), silence("group", "web"), silence("problem", ROOM))
    assert [row.name for row in every.visible_to(lambda host: host == "web1", limited=True)] == ["web1"]
    assert len(every.visible_to(lambda _: True, limited=False)) == 4


def test_the_words_name_the_end_the_user_and_the_reason() -> None:
    words = silence_words(silence("host", "web1", paused=True))
    assert words.startswith("disabled until 2026-12-02")
    assert words.endswith(", by alice: moved")
