"""Alarms and sums in the catalogue, compared with sqlite3."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Backup, BalanceTotals, Catalogue, ExpiryTotals, StoredAlarm

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
ALARM = StoredAlarm("failure", "host web1", "web1: it broke \udcff", 0, NOW, 1, None, None, None)


def ask(state: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as connection:
        return connection.execute(statement).fetchall()


def test_an_alarm_comes_back_as_it_went_in_and_is_replaced_by_its_key(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_alarms([ALARM, replace(ALARM, what="suspect")])
        changed = replace(ALARM, told=NOW, recovered=NOW + timedelta(hours=1), cleared=NOW, times=3, grade=7)
        catalogue.put_alarms([changed], [("suspect", "host web1"), ("room", "never there")])
        assert catalogue.alarms() == [changed]
        catalogue.put_alarms([])
    assert ask(tmp_path, "SELECT what, subject, grade, since, times, told FROM alarm") == [
        ("failure", "host web1", 7, "2026-11-20T22:00:00.000000Z", 3, "2026-11-20T22:00:00.000000Z")
    ]


@pytest.mark.parametrize(
    ("subject", "kind", "name", "host"),
    [
        ("host web1", "host", "web1", "web1"),
        ("unit btrkeep-run@main.service", "unit", "btrkeep-run@main.service", None),
        ("device 2", "device", "2", None),
        ("missing device 2", "missing device", "2", None),
        ("pool", "pool", "", None),
    ],
)
def test_a_stored_subject_is_of_a_kind_and_only_one_kind_is_a_host(subject: str, kind: str, name: str, host: str | None) -> None:
    alarm = replace(ALARM, subject=subject)
    assert (alarm.about.kind, alarm.about.name, str(alarm.about)) == (kind, name, subject)
    assert alarm.host == host


@pytest.mark.parametrize(
    ("moment", "cleared", "is_true"), [(None, None, False), (NOW, None, True), (NOW, NOW - timedelta(1), True), (NOW, NOW, False)]
)
def test_people_know_of_what_was_told_after_its_last_end(moment: datetime | None, cleared: datetime | None, is_true: bool) -> None:
    assert replace(ALARM, told=moment, cleared=cleared).is_notified is is_true


def test_the_sums_are_those_of_the_rows(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        assert catalogue.run_totals(NOW, NOW + timedelta(hours=9)) == []
        assert (catalogue.balance_totals("u"), catalogue.expiry_totals()) == (BalanceTotals(0, 0, 0, 0), ExpiryTotals(0, 0))
        for number, (outcome, literal) in enumerate([("complete", 5), ("complete", 7), ("failed", None), ("complete", 100)]):
            run = catalogue.start_run(f"h{number}", NOW, 1, None, True)
            end = NOW + timedelta(hours=number) - (timedelta(days=2) if literal == 100 else timedelta())
            catalogue.finish_run(run, finished=end, outcome=outcome, literal_bytes=literal)
        catalogue.start_run("running", NOW, 1, None, True)
        wrong = catalogue.start_run("clock", NOW, 1, None, True)
        catalogue.finish_run(wrong, finished=NOW + timedelta(days=2000), outcome="complete", literal_bytes=1000)
        for moved, written, uuid in ((10, 15, "u"), (20, None, "u"), (40, 400, "other")):
            run = catalogue.start_balance(uuid, "/m", NOW, 1, None, policy="score", budget=None)
            catalogue.update_balance(run, moved=moved, written=written, block_groups=1)
        for deleted in (3, 4):
            catalogue.start_expiry(NOW, 1, None, deleted=deleted)
        for number, state in enumerate(("complete", "complete", "expired")):
            catalogue.put_backup(Backup("h0", f"n{number}", "/p", state, NOW, NOW, 1.0, 1, 1, 1, None))
        runs = [
            (run_total.outcome, run_total.runs, run_total.literal_bytes)
            for run_total in catalogue.run_totals(NOW, NOW + timedelta(hours=9))
        ]
        balances, expiries, states = catalogue.balance_totals("u"), catalogue.expiry_totals(), catalogue.state_counts()
    assert runs == [("complete", 2, 12), ("failed", 1, 0)]
    assert balances == BalanceTotals(2, 2, 30, 15)
    assert [(expiries.runs, expiries.deleted)] == ask(tmp_path, "SELECT count(*), sum(deleted) FROM expiry")
    assert sorted(states.items()) == ask(tmp_path, "SELECT state, count(*) FROM backup GROUP BY state ORDER BY state")
