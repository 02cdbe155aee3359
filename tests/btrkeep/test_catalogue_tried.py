"""The catalogue's queries for lists of hosts, compared with sqlite3."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench import make_catalogue
from bench.make_catalogue import add_runs
from btrkeep.catalogue import Catalogue, HostRuns

HOSTS = 700  # more than fit into one statement's list
SINCE = make_catalogue.LAST_NIGHT - timedelta(days=3)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tried")
    make_catalogue.make(path, HOSTS, 6)
    return path


@pytest.fixture
def catalogue(state: Path) -> Iterator[Catalogue]:
    with Catalogue.open(state) as result:
        yield result


@pytest.fixture
def sql(state: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{state}/catalogue.sqlite?mode=ro", uri=True)) as connection:
        yield connection


@pytest.mark.slow
def test_runs_since_a_moment_are_those_that_began_then_or_later(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    runs = catalogue.runs_since(SINCE)
    rows = sql.execute("select id, host, outcome, backup from run where started >= '2026-11-16T22:00:00' order by id").fetchall()
    assert [(run.id, run.host, run.outcome, run.backup) for run in runs] == rows
    assert len(rows) == 4 * HOSTS
    assert all(run.started >= SINCE and run.started.tzinfo is UTC for run in runs)


@pytest.mark.slow
def test_of_some_hosts_or_of_many_only_theirs_come_in_the_same_order(catalogue: Catalogue) -> None:
    every = catalogue.runs_since(SINCE)
    for names in (catalogue.hosts()[5:8], catalogue.hosts()[:650], []):
        assert catalogue.runs_since(SINCE, names) == [run for run in every if run.host in set(names)]
    assert catalogue.runs_since(SINCE, ["nobody"]) == []
    assert catalogue.runs_since(make_catalogue.LAST_NIGHT + timedelta(days=9)) == []


def test_a_run_without_an_end_is_among_them(tmp_path: Path) -> None:
    began = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    with Catalogue.open(tmp_path) as catalogue:
        number = catalogue.start_run("a", began, 4242, "99", night=True)
        assert catalogue.runs_since(began) == [HostRuns("a", number, began, None, None, None, None, None, 4242, "99", True)]
        assert catalogue.runs_since(began + timedelta(seconds=1)) == []


def test_what_began_under_a_clock_that_was_set_back_is_found_by_what_the_clock_said(tmp_path: Path) -> None:
    """The later run has the earlier time. A query since the earlier run's time finds only the run with the later time."""
    later, earlier = datetime(2026, 11, 20, 23, 0, tzinfo=UTC), datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    plain = make_catalogue.run_of(make_catalogue.backup_of(1, 0, later))
    with Catalogue.open(tmp_path) as catalogue:
        add_runs(catalogue, (replace(plain, started=moment, finished=moment + timedelta(minutes=1)) for moment in (later, earlier)))
        assert [run.started for run in catalogue.runs_since(later)] == [later]
        assert [run.started for run in catalogue.runs_since(earlier)] == [later, earlier]


def test_final_backups_are_counted_and_told_by_host(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    assert catalogue.backup_counts() == dict(sql.execute("select host, count(*) from backup where name <> '' group by host"))
    names = catalogue.hosts()[10:13]
    rows = sql.execute(
        "select host, name, state, outcome from backup where host in (?, ?, ?) and name <> '' order by host, started, name", names
    )
    assert [tuple(backup_outcome) for backup_outcome in catalogue.backup_outcomes(names)] == rows.fetchall()
    assert len(catalogue.backup_outcomes(catalogue.hosts())) == 6 * HOSTS


def test_a_working_is_no_backup_yet(tmp_path: Path) -> None:
    backup = make_catalogue.backup_of(1, 0, make_catalogue.LAST_NIGHT)
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_backup(replace(backup, name=None, state="partial", detail={}))
        assert catalogue.backup_counts() == {}
        assert catalogue.backup_outcomes([backup.host]) == []
