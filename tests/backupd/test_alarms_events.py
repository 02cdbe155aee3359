"""Finds problems: alarms from plain facts."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.alarms.dead_man_switch import judge_night
from backupd.alarms.events import Known, find
from backupd.health.status_report import with_problem
from btrkeep.catalogue import CatalogueDamaged, CatalogueFull, HostFacts, StoredAlarm
from btrkeep.config import HostConfig
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.alarm_advice import AlarmPatience, advice
from btrkeep.decisions.copy_status import HostBehind, ReplicaSession, copy_status
from btrkeep.decisions.host_state import host_status
from btrkeep.decisions.pool_health import PoolFacts
from btrkeep.pool.space_by_profile import Room
from tests.backupd.facts import NOW, ago, facts
from tests.backupd.seen import GIB, balance, config, expiry, seen, well

WEB = HostConfig("web1", paths=("/etc",))
FINE = facts(complete=10, run=10, outcome="complete")


def stored(name: str, subject: str, **others: object) -> StoredAlarm:
    row = StoredAlarm(name, subject, "text", 0, ago(1), 1, ago(1), None, None)
    return replace(row, **others)  # type: ignore[arg-type]


def keys(facts_of_web1: HostFacts | None, host: HostConfig = WEB, by_name: Known | None = None, **notify: object) -> list[str]:
    look = seen(config(host, **notify), {"web1": facts_of_web1} if facts_of_web1 else {})
    return [f"{alarm.event} {alarm.subject}" for alarm in find(look, by_name or {}, {}).alarms if alarm.is_due]


@pytest.mark.parametrize(
    ("of_web1", "expected"),
    [
        (FINE, []),
        (facts(complete=20, run=1, outcome="failed", error="connection refused"), ["failure host web1"]),
        (facts(complete=20, run=1, outcome="partial"), ["failure host web1"]),
        (facts(run=1, outcome="failed"), ["failure host web1"]),
        (facts(complete=20, run=1, outcome="suspect", newest_state="suspect"), ["suspect host web1"]),
        (facts(complete=37, run=37, outcome="complete"), ["silent host web1"]),
        (facts(complete=35, run=35, outcome="complete"), []),
        (facts(complete=90, run=1, outcome="failed"), ["failure host web1", "silent host web1"]),
    ],
)
def test_a_host_is_told_for_what_its_last_run_and_backup_are(of_web1: HostFacts, expected: list[str]) -> None:
    assert keys(of_web1) == expected


def test_what_has_lasted_since_the_first_night_is_a_reason_of_the_alarm_about_silence() -> None:
    look = seen(config(WEB), {"web1": facts(complete=73, run=1, outcome="failed", error="the host made no snapshots: none")})
    texts = {alarm.event: alarm.text for alarm in find(look, {}, {}).alarms}
    assert texts["silent"] == "web1: no complete backup for 3d 1h: the host made no snapshots: none"
    suspect = facts(complete=73, run=1, outcome="suspect", newest_state="suspect", newest_error="no dump shop")
    texts = {alarm.event: alarm.text for alarm in find(seen(config(WEB), {"web1": suspect}), {}, {}).alarms}
    assert texts["silent"] == "web1: no complete backup for 3d 1h: no dump shop"
    (silent,) = find(seen(config(WEB), {"web1": facts(complete=73, run=73, outcome="complete")}), {}, {}).alarms
    assert silent.text == "web1: no complete backup for 3d 1h"


def test_a_full_state_folder_wants_space_and_no_rebuild() -> None:
    look = seen(config(WEB), {"web1": FINE})
    (alarm,) = find(with_problem(look, CatalogueFull("there is no room for the catalogue")), {}, {}).alarms
    row = stored(alarm.event, str(alarm.subject))
    assert row.about.name == str(look.config.pool.state)
    assert advice(row).command == f"df -h {look.config.pool.state}; df -i {look.config.pool.state}"
    (damaged,) = find(with_problem(look, CatalogueDamaged("the catalogue is damaged")), {}, {}).alarms
    assert advice(stored(damaged.event, str(damaged.subject))).command == "backupd check"


def test_a_clock_that_cannot_be_right_is_an_alarm_and_unknown_while_the_pool_cannot_be_read() -> None:
    look = seen(config(WEB), {"web1": FINE})
    assert find(look, {}, {}).alarms == ()
    (alarm,) = find(replace(look, clock="the clock went backwards"), {}, {}).alarms
    assert (alarm.event, str(alarm.subject), alarm.text, alarm.is_due) == ("failure", "clock", "the clock went backwards", True)
    unreadable = find(replace(look, pool=PoolFacts("not mounted", "mount it")), {}, {})
    assert not unreadable.is_known(("failure", "clock"))
    assert find(look, {}, {}).is_known(("failure", "clock"))


def test_an_optional_host_is_silent_when_it_was_away_too_long_and_one_that_is_not_enabled_is_nothing() -> None:
    old = facts(complete=900, run=900, outcome="complete")
    assert keys(old, replace(WEB, optional=True, max_absence=None)) == []
    assert keys(old, replace(WEB, optional=True, max_absence=901 * 3600.0)) == []
    assert keys(old, replace(WEB, optional=True, max_absence=899 * 3600.0)) == ["silent host web1"]
    assert keys(None, replace(WEB, optional=True)) == []
    assert keys(facts(complete=900, run=1, outcome="failed"), replace(WEB, enabled=False)) == []


def test_a_host_without_any_backup_is_silent_when_it_was_waited_for_long_enough() -> None:
    key = ("silent", "host web1")
    assert keys(None) == []
    assert keys(None, by_name={key: stored(*key, since=ago(35), told=None)}) == []
    assert keys(None, by_name={key: stored(*key, since=ago(37), told=None)}) == ["silent host web1"]
    assert keys(None, by_name={key: stored(*key, since=ago(73), recovered=ago(1))}) == []  # an earlier, separate alarm


CONFIGURED: tuple[tuple[int, HostConfig, dict[str, Any], bool], ...] = (
    (37, WEB, {}, True),
    (37, replace(WEB, late=2 * 86400.0), {}, False),
    (49, replace(WEB, late=2 * 86400.0), {}, True),
    (37, WEB, {"silent": 3 * 86400.0}, False),
    (73, WEB, {"silent": 3 * 86400.0}, True),
    (200, replace(WEB, every=7 * 86400.0), {}, False),
)


def test_the_message_comes_when_the_host_is_late_and_not_before_the_age_that_notify_sets() -> None:
    """A host is late at one moment: for its state, the message and the dashboard's list of alarms."""
    for hours, host, settings, expected in CONFIGURED:
        past = facts(complete=hours, run=hours, outcome="complete")
        assert (keys(past, host, **settings) == ["silent host web1"]) is expected, (hours, host)
        if "silent" not in settings:
            assert (host_status(host, past, ZoneInfo("UTC"), NOW).state == "late") is expected, (hours, host)
        row = stored("silent", "host web1", since=ago(hours), told=None)
        assert AlarmPatience.of(config(host, **settings)).is_active(row, NOW) is expected, (hours, host)


def test_a_copy_that_was_never_made_waits_in_the_lists_as_long_as_it_does_for_the_message() -> None:
    patience = AlarmPatience({}, ZoneInfo("UTC"), None, {"office": 48 * 3600.0})
    waiting = stored("silent", "replica office", since=ago(47), told=None)
    assert not patience.is_active(waiting, NOW)
    assert patience.is_active(replace(waiting, since=ago(49)), NOW)
    assert patience.is_active(replace(waiting, told=NOW), NOW)
    assert not patience.is_active(replace(waiting, since=ago(49), recovered=NOW), NOW)


OFFICE = ReplicaSettings("office", address="root@backup1")
DISK = ReplicaSettings("disk", folder=Path("/srv/disk"))
BEHIND = (HostBehind("db1", "2026-03-02T220000Z", None, "no room"),)


def of_copies(replica: ReplicaSettings, session: ReplicaSession | None, by_name: Known | None = None) -> list[tuple[str, str]]:
    look = replace(seen(config()), copies=(copy_status(replica, session, NOW),))
    return [(f"{alarm.event} {alarm.subject}", alarm.text) for alarm in find(look, by_name or {}, {}).alarms if alarm.is_due]


@pytest.mark.parametrize(
    ("replica", "session", "expected"),
    [
        (OFFICE, ReplicaSession(ago(1), ago(1)), []),
        (OFFICE, ReplicaSession(ago(49), ago(49)), [("failure replica office", "replica office: not fetched for 2d 1h")]),
        (OFFICE, ReplicaSession(ago(1), ago(2), "no route"), [("failure replica office", "replica office: no route")]),
        (OFFICE, ReplicaSession(ago(1), ago(1), behind=BEHIND), [("failure replica office", "replica office: db1: no room")]),
        (DISK, ReplicaSession(ago(1), ago(40), "it is not there", away=True), []),
        (DISK, ReplicaSession(ago(1), ago(49), "it is not there"), [("failure replica disk", "replica disk: it is not there")]),
        (OFFICE, None, []),
    ],
)
def test_a_replica_is_told_when_it_fails_or_is_late_and_a_disk_only_when_it_is_late(
    replica: ReplicaSettings, session: ReplicaSession | None, expected: list[tuple[str, str]]
) -> None:
    assert of_copies(replica, session) == expected


def test_a_replica_that_never_was_fetched_is_waited_for() -> None:
    key = ("silent", "replica office")
    assert of_copies(OFFICE, None, {key: stored(*key, since=ago(47), told=None)}) == []
    assert [name for name, _ in of_copies(OFFICE, None, {key: stored(*key, since=ago(49), told=None)})] == ["silent replica office"]


def test_the_limit_of_room_is_left_again_only_well_below_it() -> None:
    def alarm_subjects(used: int, by_name: Known) -> list[str]:
        look = seen(config(), pool=well(room=Room(100 * GIB, 0, (100 - used) * GIB, GIB)))
        return [str(alarm.subject) for alarm in find(look, by_name, {}).alarms]

    standing = {("room", "used"): stored("room", "used")}
    assert [alarm_subjects(89, {}), alarm_subjects(90, {})] == [[], ["used"]]
    assert [alarm_subjects(89, standing), alarm_subjects(88, standing), alarm_subjects(87, standing)] == [["used"], ["used"], []]
    assert alarm_subjects(96, {}) == ["min_free", "used"]


def test_errors_of_a_device_are_graded_by_their_number_and_missing_ones_named() -> None:
    look = seen(config(), pool=well(errors={2: {"write": 3, "corruption": 1}}, missing=(4,)))
    alarms = find(look, {}, {}).alarms
    assert [(str(alarm.subject), alarm.grade, alarm.text) for alarm in alarms] == [
        (
            "missing device 4",
            0,
            "device 4 is missing: the pool is mounted without it; the number of remaining good copies could not be read",
        ),
        ("device 2", 4, "device 2 has counted 3 write errors, 1 corruption error"),
    ]


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [("complete", False), ("partial", False), ("stopped", True), ("failed", True), ("killed", True), (None, True)],
)
def test_an_expiry_that_did_not_end_well_is_told(outcome: str | None, wrong: bool) -> None:
    alarms = find(seen(config(), expiry=expiry(outcome, "why")), {}, {}).alarms
    assert [str(alarm.subject) for alarm in alarms] == (["expiry"] if wrong else [])
    assert all("why" in alarm.text for alarm in alarms)


@pytest.mark.parametrize(
    ("outcome", "wrong"), [("done", False), ("budget", False), ("stopped", False), ("failed", True), (None, True)]
)
def test_so_is_a_balance(outcome: str | None, wrong: bool) -> None:
    alarms = find(seen(config(), balance=balance(outcome)), {}, {}).alarms
    assert [str(alarm.subject) for alarm in alarms] == (["balance"] if wrong else [])


def test_what_a_pool_that_is_gone_cannot_tell_is_not_taken_for_well() -> None:
    found_alarms = find(seen(config(), pool=PoolFacts("/srv/backup is not mounted"), numbers=None), {}, {})
    assert [alarm.text for alarm in found_alarms.alarms] == ["the pool cannot be used: /srv/backup is not mounted"]
    assert not found_alarms.is_known(("room", "used"))
    assert not found_alarms.is_known(("devices", "device 2"))
    assert not found_alarms.is_known(("failure", "balance"))
    assert found_alarms.is_known(("failure", "expiry"))


def test_a_unit_stands_until_it_ran_well_and_is_left_alone_while_it_runs() -> None:
    by_name = {("failure", "unit a.service"): stored("failure", "unit a.service")}
    states = {failed: find(seen(config()), by_name, {"a.service": failed}) for failed in (True, False, None)}
    assert [str(alarm.subject) for alarm in states[True].alarms] == ["unit a.service"]
    assert states[False].alarms == states[None].alarms == ()
    assert [states[failed].is_known(("failure", "unit a.service")) for failed in (True, False, None)] == [True, True, False]


def test_a_host_that_is_not_configured_any_more_is_dropped() -> None:
    by_name = {("failure", "host old"): stored("failure", "host old"), ("failure", "host web1"): stored("failure", "host web1")}
    assert find(seen(config(WEB), {"web1": FINE}), by_name, {}).dropped == {"host old"}


def test_a_night_is_judged_by_the_hosts_that_count() -> None:
    hosts = [HostConfig(f"h{n}") for n in range(10)] + [HostConfig("laptop", optional=True), HostConfig("off", enabled=False)]
    by_name = {f"h{n}": FINE for n in range(9)}

    def met(goal: float, ended: str | None = None, **others: HostFacts) -> bool:
        of = config(*hosts, ping_goal=goal)
        return judge_night(of, seen(of, by_name | others).hosts, ended).met

    assert (met(1.0), met(0.9), met(0.91)) == (False, True, False)
    assert met(1.0, h9=FINE)
    assert not met(0.0, "stopped by SIGTERM", h9=FINE)
    assert not met(1.0, h9=facts(complete=20, run=1, outcome="failed"))


def test_the_verdict_names_who_is_not_well_and_why() -> None:
    of = config(WEB, HostConfig("b"))
    text = judge_night(of, seen(of, {"web1": facts(complete=20, run=1, outcome="failed", error="no <route>")}).hosts).text
    assert text.splitlines() == ["0 of 2 hosts are ok, the goal is 100%", "web1: failing: no \u2039route\u203a", "b: never"]


def test_damage_that_grows_bit_by_bit_is_told_again_when_there_is_twice_as_much() -> None:
    """Each night may find more damage: a message is sent for every grade above the one that was sent before."""
    grades = []
    for backups, files in ((1, 1), (1, 2), (1, 3), (3, 3), (10, 60), (10, 100), (10, 110)):
        (alarm,) = find(seen(config(WEB), {"web1": FINE}, damaged={"web1": (backups, files)}), {}, {}).alarms
        assert alarm.text == f"web1: {backups} backup{'s' * (backups > 1)} damaged, up to {files} file{'s' * (files > 1)} in " + (
            "each" if backups > 1 else "it"
        )
        grades.append(alarm.grade)
    assert grades == [1, 2, 2, 4, 10, 10, 11]


def test_alarms_of_what_a_mistake_in_the_configuration_leaves_out_are_not_over() -> None:
    wrong = replace(
        config(), excluded={"web1": replace(WEB, fault="main.toml:3: x")}, excluded_copies={"nas": "main.toml:9: y"}, faults=("f",)
    )
    rows = [
        StoredAlarm("failure", subject, "", 0, NOW, 1, NOW, None, None) for subject in ("host web1", "replica nas", "host other")
    ]
    by_name = {row.key: row for row in rows}
    found_alarms = find(seen(wrong, faults=("main.toml:3: x", "main.toml:9: y")), by_name, {})
    assert [found_alarms.is_known(row.key) for row in rows] == [False, False, True]
    (alarm,) = found_alarms.alarms
    assert (str(alarm.subject), alarm.text) == (
        "configuration",
        "the configuration is wrong: main.toml:3: x; main.toml:9: y",
    )
